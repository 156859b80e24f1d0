"""`lmrl data`: build, import, publish, load, verify datasets, and show their cards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from env_servers.cli import Partner, PartnerOption, Record
from hub_datasets.importers import LAYOUTS

app = typer.Typer(
    no_args_is_help=True, help="Build, publish, load and verify datasets.", epilog="Example: lmrl data build maze"
)

Option = Annotated[list[str] | None, typer.Option("--option", help="Option of the environment, as NAME=VALUE.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit; the default is the newest.")]
Force = Annotated[
    bool,
    typer.Option(
        help="Replace other data, a card edited by hand, or a tag; publish options that name a file of this machine."
    ),
]
SOURCE = "Task id (maze is lmrl/maze), folder, or repository, also as NAME@REVISION."


@app.command(epilog="Example: lmrl data build maze --output data/maze --workers 2")
def build(
    task: Annotated[str, typer.Argument(help="Task id; `lmrl tasks` lists them.")],
    output: Annotated[Path | None, typer.Option(help="Folder to build into; data/<task> by default.")] = None,
    policy: Annotated[str | None, typer.Option(help="Scripted policy that collects.")] = None,
    episodes: Annotated[int | None, typer.Option(help="Number of all episodes, divided as by default.")] = None,
    train: Annotated[int | None, typer.Option(help="Number of training episodes.")] = None,
    validation: Annotated[int | None, typer.Option(help="Number of validation episodes.")] = None,
    config: Annotated[str, typer.Option(help="Name of the configuration; a folder can hold several.")] = "episodes",
    option: Option = None,
    partner: Partner = None,
    partner_option: PartnerOption = None,
    record: Record = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; one per core by default.")] = None,
    shard: Annotated[str | None, typer.Option(help="Build part i of n (I/N) here; see `lmrl data join`.")] = None,
    shard_episodes: Annotated[int | None, typer.Option(help="Episodes in one Parquet file.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace this configuration, built from another plan.")] = False,
) -> None:
    """Play the episodes and write Parquet, statistics and the card. An interrupted build goes on where it stopped."""
    from env_servers.cli import parse_environment
    from hub_datasets.build import build as run
    from hub_datasets.build import build_part
    from hub_datasets.generators import load_generator
    from hub_datasets.plan import make_plan, split_episodes

    part = None if shard is None else _parse_shard(shard)
    folder = output or Path("data") / (task if part is None else f"{task}-{part[0]}-of-{part[1]}")
    counts = dict(load_generator(task).episodes) if episodes is None else split_episodes(task, episodes)
    counts |= {split: n for split, n in (("train", train), ("validation", validation)) if n is not None}
    counts = {split: n for split, n in counts.items() if n != 0}
    plan = make_plan(
        task,
        config=config,
        policy=policy,
        episodes=counts,
        env_kwargs=parse_environment(option, partner, partner_option),
        shard_episodes=shard_episodes,
    )
    if part is not None:
        count = build_part(plan, folder, *part, record=record, workers=workers, overwrite=overwrite, progress=True)
        typer.echo(
            f"built part {shard} ({count:,} episodes) in {folder}; `lmrl data join` makes a dataset of all parts"
        )
    else:
        manifest = run(plan, folder, record=record, workers=workers, overwrite=overwrite, progress=True)
        print_statistics(manifest)
        typer.echo(f"built {folder} (card: {folder / 'README.md'})")
    if record is not None:
        _tell_recorded(record, folder)


def _tell_recorded(record: Path, folder: Path) -> None:
    from hub_datasets.recording import read_recorded

    count = sum(1 for _ in read_recorded(record)) if record.exists() else 0
    where = f"{count:,} answers in {record}" if count else "nothing, since all was built before"
    source = record if count else folder
    typer.echo(f"recorded: {where} (`lmrl data interactions {source}` makes a dataset of what the partner said)")


def _parse_shard(shard: str) -> tuple[int, int]:
    part, slash, parts = shard.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise ValueError(f"--shard is {shard!r}; it must be I/N, part I of N, such as 1/4")
    return int(part), int(parts)


@app.command(epilog="Example: lmrl data join data/chess-1-of-2 data/chess-2-of-2 --output data/chess")
def join(
    parts: Annotated[list[Path], typer.Argument(help="Folders of all parts that `lmrl data build --shard` made.")],
    output: Annotated[Path, typer.Option(help="Folder for the dataset.")],
    overwrite: Annotated[bool, typer.Option(help="Replace this configuration, built from another plan.")] = False,
) -> None:
    """Make one dataset of parts that were built on several machines."""
    from hub_datasets.build import join as run

    manifest = run(parts, output, overwrite=overwrite, progress=True)
    print_statistics(manifest)
    typer.echo(f"joined {len(parts)} parts into {output} (card: {output / 'README.md'})")


def print_statistics(manifest: Any) -> None:
    """A dataset's numbers beside the paper's, with the sentence on the difference."""
    from rich.console import Console
    from rich.table import Table

    from env_servers.tasks import load_task

    table = Table(box=None, pad_edge=False)
    for column in ("", "episodes", "success", "mean return", "std", "mean length", "std"):
        table.add_column(column, justify="left" if not column else "right")
    rows = {"this dataset": manifest["summary"]}
    if paper := load_task(manifest["task"]).spec.paper:
        rows["the paper's (Table 1)"] = paper
    for name, numbers in rows.items():
        values = [numbers[key] for key in ("mean_return", "std_return", "mean_length", "std_length")]
        texts = ["–" if value is None else f"{value:.2f}" for value in values]
        table.add_row(name, f"{numbers['episodes']:,.0f}", f"{numbers['success_rate']:.3f}", *texts)
    Console().print(table)
    if manifest["difference"]:
        Console().print(manifest["difference"])


@app.command(
    epilog="Example: lmrl data interactions asked.jsonl --output data/twenty_questions, then "
    "lmrl eval --partner replay:data/twenty_questions"
)
def interactions(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="What --record wrote, folders of runs, or datasets, whose interactions or else episodes are taken."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder of a dataset, or a new one.")],
    config: Annotated[str | None, typer.Option(help="Configuration to take from datasets.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace other interactions that are there.")] = False,
) -> None:
    """Make a dataset's configuration `interactions`: what a partner was asked and answered, to replay and publish."""
    from hub_datasets.interactions import build_interactions

    for source in sources:
        _finish(source)
    manifest = build_interactions(sources, output, config=config, overwrite=overwrite)
    for one in manifest["partners"]:
        typer.echo(
            f"{one['partner']}@{one['revision']}: {one['recorded']:,} answers in {one['interactions']:,} rows "
            f"(different questions: {one['questions']:,}, different secrets: {one['secrets']:,})"
        )
    typer.echo(f"built {output} (play with it: --partner replay:{output})")


def _finish(source: str | Path) -> None:
    """If a server recorded into the folder, make its dataset whole, and say so."""
    from hub_datasets.served import is_recording

    if not is_recording(Path(source)):
        return
    from hub_datasets.served_data import finish

    done = finish(Path(source))
    if done.added:
        typer.echo(f"{source}: {done.added:,} episodes came out of journals into Parquet", err=True)
    if done.recording:
        typer.echo(
            f"{source}: {done.recording} workers are recording; their newest episodes are not in it yet", err=True
        )


_LAYOUTS = "\n".join(f"{name:<17} {words}" for name, (_, words) in LAYOUTS.items())


@app.command(
    "import",
    epilog="Example: lmrl data import wordle train_data.jsonl eval_data.jsonl --output data/wordle",
    help=(
        "Import files of the original LMRL-Gym release as a dataset: JSON lists or JSON lines, also as .gz. Malformed "
        "records are left out, counted and listed. An interrupted import goes on where it stopped.\n\n\b\n" + _LAYOUTS
    ),
)
def import_(
    layout: Annotated[str, typer.Argument(help="Layout of the files, which is named as its task; see above.")],
    files: Annotated[list[Path], typer.Argument(help="The files; a name with eval or val in it is of validation.")],
    output: Annotated[Path | None, typer.Option(help="Folder for the dataset; data/<layout> by default.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of all FILES, whatever their names: train, validation.")
    ] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="A further file, of the validation split.")] = None,
    config: Annotated[str, typer.Option(help="Name of the configuration; a folder can hold several.")] = "lmrl_gym",
    option: Option = None,
    strict: Annotated[bool, typer.Option(help="End at the first malformed record, with nothing written.")] = False,
    shard_records: Annotated[int | None, typer.Option(help="Records in one Parquet file.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace this configuration, made from other files.")] = False,
) -> None:
    from env_servers.cli import parse_options
    from hub_datasets.imports import guess_split, import_files, problem_lines

    found: dict[str, list[Path]] = {"train": [], "validation": []}
    for path in files:
        found.setdefault(split or guess_split(path), []).append(path)
    found["validation"] += validation or []
    folder = output or Path("data") / layout
    manifest = import_files(
        layout,
        found,
        folder,
        config=config,
        env_kwargs=parse_options(option),
        strict=strict,
        shard_records=shard_records,
        overwrite=overwrite,
        progress=True,
    )
    print_statistics(manifest)
    typer.echo("\n".join(problem_lines(manifest)))
    typer.echo(f"imported {folder}, configuration {config} (card: {folder / 'README.md'})")


@app.command(epilog="Example: lmrl data publish data/maze --to lmrl/maze --tag v1.0")
def publish(
    folder: Annotated[Path, typer.Argument(help="Folder that `lmrl data build` made, or `lmrl serve --record`.")],
    to: Annotated[str, typer.Option(help="Repository, as namespace/name.")],
    tag: Annotated[str | None, typer.Option(help="Name for the commit, such as v1.0.")] = None,
    private: Annotated[bool, typer.Option(help="Make a new repository private.")] = False,
    create_pr: Annotated[bool, typer.Option(help="Open a pull request instead of committing.")] = False,
    force: Force = False,
) -> None:
    """Publish a dataset in one commit, tag it, read it back and compare."""
    from hub_datasets.publish import publish as run

    _finish(folder)
    done = run(folder, to, tag=tag, private=private, create_pr=create_pr, force=force)
    where = done.pull_request or f"{done.repo_id}@{done.revision}"
    typer.echo(f"{'published' if done.changed else 'already there, nothing changed:'} {where}")
    typer.echo(f'load it with load_dataset("{done.repo_id}", revision="{tag or done.revision}")')


@app.command(epilog="Example: lmrl data load maze --split validation --rows 2")
def load(
    source: Annotated[str, typer.Argument(help=SOURCE)],
    split: Annotated[str, typer.Option(help="train or validation.")] = "train",
    config: Annotated[str | None, typer.Option(help="Configuration; the default one without.")] = None,
    revision: Revision = None,
    rows: Annotated[int, typer.Option(help="How many episodes to print.")] = 1,
    streaming: Annotated[bool, typer.Option(help="Read only the rows that are printed.")] = False,
) -> None:
    """Load a dataset and print its first episodes, as a check that it can be read."""
    from itertools import islice

    from hub_datasets.load import load_trajectories

    _finish(source)
    trajectories = load_trajectories(source, split, config=config, revision=revision, streaming=streaming)
    for trajectory in islice(trajectories, rows):
        typer.echo(repr(trajectory))
        for turn in trajectory.turns:
            typer.echo(f"  env    {turn.observation}\n  agent  {turn.action}    [{turn.reward:g}]")
        if trajectory.final_observation is not None:
            typer.echo(f"  env    {trajectory.final_observation}")


@app.command(epilog="Example: lmrl data verify data/maze")
def verify(
    source: Annotated[str, typer.Argument(help=SOURCE)],
    revision: Revision = None,
) -> None:
    """Check the schema and play every episode again; the first difference is printed, with exit status 1."""
    from rich.progress import Progress

    from hub_datasets.verify import verify as run

    _finish(source)
    with Progress() as bar:
        row = bar.add_task("verifying", total=None)
        found = run(source, revision=revision, advance=lambda done, total: bar.update(row, completed=done, total=total))
    if found.problem is not None:
        raise ValueError(f"{found.source} is not right: {found.problem}")
    played = f"{found.episodes - found.unplayed:,} episodes replay exactly"
    if found.unplayed:
        played += f", {found.unplayed:,} imported ones cannot be played again and keep the rules"
    more = f", {found.interactions:,} recorded answers are whole" if found.interactions else ""
    typer.echo(f"{found.source}: {played}, {found.starts:,} test starts are right{more}")


@app.command(epilog="Example: lmrl data card data/maze --to me/maze")
def card(
    folder: Annotated[Path, typer.Argument(help="Folder that `lmrl data build` made, or `lmrl serve --record`.")],
    to: Annotated[str | None, typer.Option(help="Repository the card is for; lmrl/<task> by default.")] = None,
) -> None:
    """Print the card of a built dataset, made anew from its statistics and the task's prose."""
    from dataset_cards.render import render_card
    from hub_datasets.load import ORGANISATION
    from hub_datasets.manifest import read_manifests

    _finish(folder)
    manifests = read_manifests(folder)
    typer.echo(render_card(to or f"{ORGANISATION}/{manifests[0]['task']}", manifests))
