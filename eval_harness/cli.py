"""`lmrl eval`, which plays and logs; `lmrl report` and `lmrl compare`, which set logs side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from env_servers.cli import Partner, PartnerOption, Record, Servers

eval_app = typer.Typer(add_completion=False, subcommand_metavar="[merge|retry] [ARGS]...")
report_app = typer.Typer(add_completion=False)
compare_app = typer.Typer(add_completion=False)


@eval_app.callback(
    invoke_without_command=True,
    epilog="Example: lmrl eval --model scripted:optimal --task maze --episodes 100 --output runs/optimal",
)
def evaluate(
    context: typer.Context,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="scripted:POLICY, a folder, or a repository, also as NAME@REVISION. With --suite several, as "
            "LABEL=NAME, with {task} in them for a policy per task; scripted:{best} is each task's best."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task id; `lmrl tasks` lists them. With --suite some of its tasks, by commas.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Play several tasks, into one table: paper, quick, games, dialogue.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="How many; the task's number by default.")] = None,
    seed: Annotated[int, typer.Option(help="Other random numbers for the policy on the same episodes.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the log; runs/<task>/<model>-seed<seed> by default.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k most likely tokens; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample among the tokens that hold this probability; 1 is all.")] = 1.0,
    max_new_tokens: Annotated[int | None, typer.Option(help="Token budget of an action, if not the task's.")] = None,
    beta: Annotated[
        str | None, typer.Option(help="Weight of a value policy's values; several (1,2,4) are played in turn.")
    ] = None,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="Score all of the task's actions and draw among them (Maze).")
    ] = False,
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--no-strict",
            help="Take what is said as it is (policies of lmrl train, by default), or find the action in it.",
        ),
    ] = None,
    rendering: Annotated[str | None, typer.Option(help="plain or chat; what the model was trained with.")] = None,
    batch: Annotated[int, typer.Option(help="Most episodes at the same time.")] = 32,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    split: Annotated[str, typer.Option(help="Split of the episodes' seeds.")] = "test",
    starts_from: Annotated[
        str | None, typer.Option(help="Dataset that gives the episodes (configuration `tasks`), such as lmrl/maze@v1.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Option of the environment, as NAME=VALUE.")] = None,
    partner: Partner = None,
    partner_option: PartnerOption = None,
    env: Servers = None,
    record: Record = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew; an old log is moved aside.")] = False,
    shard: Annotated[
        str | None, typer.Option(help="Play part I of N alone; `lmrl eval merge` makes one run of all.", metavar="I/N")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Write report.html into the folder.")] = False,
    push_results: Annotated[bool, typer.Option("--push-results", help="Put the scores beside the model.")] = False,
    results_repo: Annotated[
        str | None, typer.Option(help="Repository to push the scores to; the model's by default.")
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Push the scores as a pull request.")] = False,
) -> None:
    """Measure a model on a task. Stopped at any moment, the same command goes on where it was."""
    from env_servers.cli import parse_environment

    if context.invoked_subcommand is not None:
        return
    if not model or (task is None and suite is None):
        missing = "--model" if not model else "--task"
        raise typer.BadParameter(f"missing {missing}: give a model and a task, or a model and a --suite", context)
    if suite is not None:
        refused = {"--shard": shard, "--beta": beta, "--record": record, "--push-results": push_results or None}
        if given := [name for name, value in refused.items() if value is not None]:
            raise ValueError(f"{given[0]} is for one run; leave it out with --suite")
        common: dict[str, Any] = {
            "strict": strict,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
            "batch": batch,
            "device": device,
            "dtype": dtype,
            "rendering": rendering,
            "env": env,
        }
        _play_suite(suite, task, episodes, model, output, overwrite, report, **common)
        return
    if len(model) > 1 or task is None:
        raise ValueError(f"{len(model)} models are given; play one after the other, or all with --suite")
    _play_one(
        model[0],
        task,
        output,
        beta=beta,
        environment=parse_environment(option, partner, partner_option),
        shard=shard,
        report=report,
        push=(push_results, results_repo, create_pr),
        episodes=episodes,
        split=split,
        starts_from=starts_from,
        seed=seed,
        batch=batch,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        rerank=rerank,
        strict=strict,
        rendering=rendering,
        dtype=dtype,
        device=device,
        record=record,
        env=env,
        overwrite=overwrite,
    )


def _play_suite(
    suite: str,
    tasks: str | None,
    episodes: int | None,
    models: list[str],
    output: Path | None,
    overwrite: bool,
    report: bool,
    **options: Any,
) -> None:
    from eval_harness.eval_suites import choose, run_suite, to_markdown
    from eval_harness.report_page import write_html

    folder = output or Path("runs") / f"suite-{suite}"
    entries = run_suite(choose(suite, tasks, episodes), models, folder, overwrite=overwrite, **options)
    typer.echo(to_markdown(entries))
    typer.echo(f"wrote {folder / 'table.md'}")
    runs = [entry.run for entry in entries if entry.run is not None]
    if report and runs:
        write_html(runs, folder / "report.html")
        typer.echo(f"report: {folder / 'report.html'}")
    if not runs:
        raise RuntimeError("nothing could be played; the reasons stand above")


def _play_one(
    model: str,
    task: str,
    output: Path | None,
    *,
    beta: str | None,
    environment: dict[str, Any],
    shard: str | None,
    report: bool,
    push: tuple[bool, str | None, bool],
    **options: Any,
) -> None:
    """One model on one task, or one for each beta."""
    from rich.console import Console

    from eval_harness.launch import place, run_launched, together
    from eval_harness.merge import parse_shard
    from eval_harness.report import to_partner_table, to_table
    from eval_harness.report_page import write_html
    from eval_harness.run import default_folder, run

    push_results, results_repo, create_pr = push
    target = _results_target(model, results_repo) if push_results else None
    betas = _parse_betas(beta)
    if target is not None and len(betas) > 1:
        raise ValueError("--push-results takes the scores of one --beta; sweep first, then push the one you choose")
    part = None if shard is None else parse_shard(shard)
    if part is not None and (target is not None or place().size > 1):
        raise ValueError(f"--shard {shard} is a part of a run; merge first, then push, and launch one process for each")
    base = output or default_folder(task, model, options["seed"], part)
    results = []
    for value in betas:
        folder = base if len(betas) == 1 else base / f"beta-{value:g}"
        arguments = {**options, "task": task, "model": model, "env_kwargs": environment, "beta": value}
        if place().size == 1:
            results.append(run(output=folder, shard=part, **arguments))
            continue
        with together():
            result = run_launched(folder, **arguments)
        if result is None:
            return  # the first process tells
        results.append(result)
    scored = [result.scored for result in results]
    Console().print(to_table(scored))
    if (partners := to_partner_table(scored)) is not None:
        Console().print(partners)
    for result in results:
        typer.echo(f"log: {result.folder}")
    if report:
        write_html(scored, base / "report.html")
        typer.echo(f"report: {base / 'report.html'}")
    if target is not None:
        from eval_harness.results import push_results as push_scores

        done = push_scores(scored[0], target, create_pr=create_pr)
        where = done.pull_request or f"{done.repo_id}@{done.revision}"
        typer.echo(f"{'pushed results:' if done.changed else 'already there, nothing changed:'} {where}")


@eval_app.command(epilog="Example: lmrl eval merge runs/shard-1 runs/shard-2 --output runs/whole")
def merge(
    shards: Annotated[list[Path], typer.Argument(help="Folders that `lmrl eval --shard` wrote.", metavar="SHARD")],
    output: Annotated[Path, typer.Option(help="Folder for the run; it must be new or empty.")],
    partial: Annotated[bool, typer.Option("--partial", help="Episodes may be missing; `retry` plays them.")] = False,
) -> None:
    """Make one run of its shards: what a single process would have written."""
    from rich.console import Console

    from eval_harness.merge import merge as merge_shards
    from eval_harness.report import to_table

    scored = merge_shards(shards, output, partial=partial)
    Console().print(to_table([scored]))
    typer.echo(f"log: {output}")


@eval_app.command(epilog="Example: lmrl eval retry runs/chess/bc-seed0")
def retry(
    run: Annotated[Path, typer.Argument(help="Folder that `lmrl eval` wrote.", metavar="RUN")],
    env: Servers = None,
    record: Record = None,
) -> None:
    """Play the episodes that a run lacks, since they failed or it was stopped, with the settings that it has."""
    from rich.console import Console

    from eval_harness.report import to_table
    from eval_harness.run import retry as retry_run

    result = retry_run(run, env=env, record=record)
    Console().print(to_table([result.scored]))
    typer.echo(f"log: {result.folder}")


def _parse_betas(text: str | None) -> list[float | None]:
    if text is None:
        return [None]
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--beta is {text!r}; it must be a number, or several with commas, such as 1,2,4") from None


def _results_target(model: str, results_repo: str | None) -> str:
    """Where the scores go, told before anything is played."""
    from eval_harness.models import parse_model

    if results_repo is not None:
        return results_repo
    ref = parse_model(model)
    if ref.scripted or Path(ref.source).is_dir():
        raise ValueError(f"model {model!r} is not on the Hub; name a repository for its results with --results-repo")
    return ref.source


@report_app.command(
    name="report",
    epilog="Example: lmrl report runs/maze/* --html report.html --open",
)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `lmrl eval` wrote.", metavar="RUN")],
    html: Annotated[Path | None, typer.Option(help="Write a page with figures and every transcript.")] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Write the page (report.html beside the runs, if not --html) and show it.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the numbers as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the numbers as CSV, a line per run.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the tables as LaTeX, for the package booktabs.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="First play all episodes again, to check.")] = False,
) -> None:
    """Score logs again, without their models, and set them side by side."""
    from rich.console import Console

    from eval_harness.report import (
        section_table,
        to_csv,
        to_json,
        to_latex,
        to_markdown,
        to_partner_table,
        to_table,
    )
    from eval_harness.report_page import write_html
    from eval_harness.score import score
    from eval_harness.sections import statistics_sections

    folders = list(dict.fromkeys(runs))
    scored = [score(folder, replay=replay) for folder in folders]
    Console().print(to_table(scored))
    if (partners := to_partner_table(scored)) is not None:
        Console().print(partners)
    for section in statistics_sections(scored):
        typer.echo()
        Console().print(section_table(section))
    for path, render in ((json, to_json), (csv, to_csv), (markdown, to_markdown), (latex, to_latex)):
        if path is not None:
            path.write_text(render(scored), encoding="utf-8")
            typer.echo(f"wrote {path}")
    page = _page_beside(folders) if html is None and open_page else html
    if page is not None:
        write_html(scored, page)
        typer.echo(f"wrote {page}")
        if open_page:
            _show(page)


def _page_beside(folders: Sequence[Path]) -> Path:
    """Where the page goes that nobody named: into the run, or into the folder that all runs are in."""
    return Path(os.path.relpath(os.path.commonpath([folder.resolve() for folder in folders]))) / "report.html"


def _show(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo(f"no browser was found here; open {page} in one yourself")


@compare_app.command(name="compare", epilog="Example: lmrl compare runs/maze/bc-seed0 runs/maze/ilql-seed0 --markdown")
def compare(
    first: Annotated[Path, typer.Argument(help="Folder that `lmrl eval` wrote.", metavar="RUN_A")],
    second: Annotated[Path, typer.Argument(help="Another, of the same task.", metavar="RUN_B")],
    json: Annotated[Path | None, typer.Option(help="Write the numbers as JSON.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Compare two runs on the episodes that both have: the difference RUN_A minus RUN_B, how sure it is."""
    import json as json_module

    from rich.console import Console

    from eval_harness.comparison import compare as compare_runs
    from eval_harness.report import escape_markdown, section_markdown, section_table
    from eval_harness.score import defined
    from eval_harness.sections import comparison_section, verdict

    found, names = compare_runs(first, second), (str(first), str(second))
    words, section = verdict(found, *names), comparison_section(found, *names)
    if markdown:
        typer.echo(f"{escape_markdown(words)}\n\n{section_markdown(section)}")
    else:
        Console(soft_wrap=True).print(words, markup=False, highlight=False)
        typer.echo()
        Console().print(section_table(section))
    if json is not None:
        record = {"first": names[0], "second": names[1], **defined(found)}
        json.write_text(json_module.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        typer.echo(f"wrote {json}", err=markdown)  # what is printed with --markdown is Markdown
