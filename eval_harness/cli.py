"""`lmrl eval`, which plays and logs; `lmrl report` and `lmrl compare`, which set logs side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from env_servers.cli import Partner, PartnerOption, Record, Servers

eval_app = typer.Typer(add_completion=False)
report_app = typer.Typer(add_completion=False)
compare_app = typer.Typer(add_completion=False)


@eval_app.command(
    name="eval", epilog="Example: lmrl eval --model scripted:optimal --task maze --episodes 100 --output runs/optimal"
)
def evaluate(
    model: Annotated[str, typer.Option(help="scripted:POLICY, a folder, or a repository, also as NAME@REVISION.")],
    task: Annotated[str, typer.Option(help="Task id; `lmrl tasks` lists them.")],
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
    report: Annotated[bool, typer.Option("--report", help="Write report.html into the folder.")] = False,
    push_results: Annotated[bool, typer.Option("--push-results", help="Put the scores beside the model.")] = False,
    results_repo: Annotated[
        str | None, typer.Option(help="Repository to push the scores to; the model's by default.")
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Push the scores as a pull request.")] = False,
) -> None:
    """Measure a model on a task. Stopped at any moment, the same command goes on where it was."""
    from rich.console import Console

    from env_servers.cli import parse_environment
    from eval_harness.report import to_partner_table, to_table
    from eval_harness.report_page import write_html
    from eval_harness.run import default_folder, run

    target = _results_target(model, results_repo) if push_results else None
    betas = _parse_betas(beta)
    if target is not None and len(betas) > 1:
        raise ValueError("--push-results takes the scores of one --beta; sweep first, then push the one you choose")
    base, env_kwargs = output or default_folder(task, model, seed), parse_environment(option, partner, partner_option)
    results = [
        run(
            task,
            model,
            episodes=episodes,
            split=split,
            starts_from=starts_from,
            env_kwargs=env_kwargs,
            seed=seed,
            batch=batch,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
            beta=value,
            rerank=rerank,
            rendering=rendering,
            dtype=dtype,
            device=device,
            record=record,
            env=env,
            output=base if len(betas) == 1 else base / f"beta-{value:g}",
            overwrite=overwrite,
        )
        for value in betas
    ]
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
        from eval_harness.results import push_results as push

        done = push(scored[0], target, create_pr=create_pr)
        where = done.pull_request or f"{done.repo_id}@{done.revision}"
        typer.echo(f"{'pushed results:' if done.changed else 'already there, nothing changed:'} {where}")


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
