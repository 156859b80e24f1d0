"""An evaluation on the Hub: its log as a dataset, its report as a static Space. (Its scores are in `results.py`.)

    lmrl push-run runs/maze/optimal --repo me/maze-runs        a configuration of a dataset, rows as everywhere
    lmrl push-report runs/maze/* --repo me/maze-report         the page of `lmrl report --html`, for everyone to read

Nothing is pushed unless one of these, or an option of `lmrl eval` that says so, is given.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from eval_harness.log import Header
    from eval_harness.score import ScoredRun
    from hub_datasets.hub import Published

run_app = typer.Typer(add_completion=False)
report_app = typer.Typer(add_completion=False)

PAGE, ABOUT = "index.html", "README.md"
MARK = "<!-- Written by `lmrl push-report` -->"  # at the end of the Space's README
NEW = {ABOUT, ".gitattributes", "index.html", "style.css"}  # what the Hub puts into a new static Space
CLAIMED = 40  # letters of a model's name in a configuration's


@run_app.command(name="push-run", epilog="Example: lmrl push-run runs/maze/optimal-seed0 --repo your-name/maze-runs")
def push_run_command(
    run: Annotated[Path, typer.Argument(help="Folder that `lmrl eval` wrote.")],
    repo: Annotated[str, typer.Option(help="The dataset, as namespace/name; made if it is not there.")],
    config: Annotated[
        str | None, typer.Option(help="Name of the configuration; by default the model's name and the seed.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new dataset private.")] = False,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Propose it as a pull request.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a configuration that has other episodes.")] = False,
) -> None:
    """Put a run's episodes on the Hub as a dataset."""
    done = push_run(run, repo, config=config, private=private, create_pr=create_pr, force=force)
    where = done.pull_request or f"{done.repo_id}@{done.revision}"
    typer.echo(f"{'pushed' if done.changed else 'already there, nothing changed:'} {where}")


@report_app.command(name="push-report", epilog="Example: lmrl push-report runs/maze/* --repo your-name/maze-report")
def push_report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `lmrl eval` wrote.", metavar="RUN")],
    repo: Annotated[str, typer.Option(help="The Space, as namespace/name; made if it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new Space private.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a Space that has other files.")] = False,
) -> None:
    """Put the report of runs on the Hub as a static Space."""
    from eval_harness.score import score

    scored = [score(folder) for folder in dict.fromkeys(runs)]
    done = push_report(scored, repo, private=private, force=force)
    typer.echo(f"{'pushed' if done.changed else 'already there, nothing changed:'} spaces/{repo} ({done.revision})")


def push_run(
    folder: str | Path,
    repo_id: str,
    *,
    config: str | None = None,
    private: bool = False,
    create_pr: bool = False,
    force: bool = False,
    token: str | bool | None = None,
) -> Published:
    """Put a run's episodes on the Hub, as one more configuration of a dataset of its task.

    Rows are those of `hub_datasets.rows`. What was committed is read back and compared, as in `publish`.

    Args:
        folder: A complete run.
        repo_id: `namespace/name`; made if it does not exist (not with `create_pr`).
        config: The configuration's name; None takes the model's name and the run's seed.
        private: Make a new repository private.
        create_pr: Open a pull request instead of committing to the default branch.
        force: Replace a configuration that has other data, or a card that was edited by hand.
        token: As in `huggingface_hub`.

    Raises:
        ValueError: The run is not complete, its options name a file of this machine, or the name is not possible.
        FileNotFoundError: The folder holds no run, or with `create_pr` the repository does not exist.
        FileExistsError: As in `hub_datasets.publish.publish`.
        PermissionError: There is no token, or it may not write there.
        ConnectionError: The Hub could not be reached.
    """
    from eval_harness.log import HEADER, read_rows
    from eval_harness.report import settings
    from eval_harness.score import score
    from hub_datasets.build import describe
    from hub_datasets.load import STARTS
    from hub_datasets.manifest import write_json
    from hub_datasets.publish import publish
    from hub_datasets.shards import write_rows

    run = score(folder)
    _refuse_incomplete(run)
    header = run.header
    name = config_name(header) if config is None else config
    if not re.fullmatch(r"[\w.+-]+", name) or name in (STARTS, ""):
        raise ValueError(f"config is {name!r}; allowed are letters, digits and ._+-, and not {STARTS!r}")
    told = settings(run)
    told.pop("folder")  # nobody's business
    with tempfile.TemporaryDirectory() as scratch:
        made, note = Path(scratch, "dataset"), Path(scratch, "note.json")
        (made / name).mkdir(parents=True)
        (made / STARTS).mkdir()
        write_rows(list(read_rows(run.folder)), made, f"{name}/{header.split}-00000-of-00001.parquet", note)
        head: dict[str, Any] = {
            "plan": None,
            "config": name,
            "task": header.task,
            "task_version": header.task_version,
            "env_kwargs": dict(header.env_kwargs),
            "policy": _public(str(header.model["name"])),
            "lmrl_version": version("lmrl"),
            "difference": "",
            "stop_reasons": {},
            "reference": {},
            "evaluated": {"settings": {**told, "model": _public(told["model"])}},
        }
        describe(head, {header.split: [json.loads(note.read_text())]}, made)
        model = {**header.model, "name": _public(str(header.model["name"]))}
        write_json(made / name / HEADER, {**json.loads((run.folder / HEADER).read_text()), "model": model})
        return publish(made, repo_id, private=private, create_pr=create_pr, force=force, token=token)


def push_report(
    runs: Sequence[ScoredRun],
    repo_id: str,
    *,
    private: bool = False,
    force: bool = False,
    token: str | bool | None = None,
) -> Published:
    """Put the report's page on the Hub as a static Space.

    Args:
        runs: Complete or not; the page says so.
        repo_id: `namespace/name`; made if it does not exist.
        private: Make a new Space private.
        force: Replace a Space that has other files.
        token: As in `huggingface_hub`.

    Raises:
        FileExistsError: The Space has other files, and `force` is off.
        FileNotFoundError: The name is not possible.
        ValueError: The Space is public and should be private.
        PermissionError: There is no token, or it may not write there.
        ConnectionError: The Hub could not be reached, or others kept committing.
    """
    from huggingface_hub import HfApi

    from eval_harness.report_page import write_html
    from hub_datasets.hub import HUB_ERRORS, explain, with_retries
    from hub_datasets.publish import check_token

    api = HfApi(token=token)
    scratch = Path(tempfile.mkdtemp())
    try:
        write_html(runs, scratch / PAGE)
        (scratch / ABOUT).write_text(render_about(runs), encoding="utf-8")
        check_token(api, repo_id, create_pr=None)
        with_retries(
            lambda: api.create_repo(repo_id, repo_type="space", space_sdk="static", private=private, exist_ok=True)
        )
        if private and not with_retries(lambda: api.space_info(repo_id)).private:
            raise ValueError(f"space {repo_id} is there and public; make it private in its settings first")
        return with_retries(lambda: _commit(api, repo_id, scratch, force))
    except HUB_ERRORS as error:
        raise explain(error, f"space {repo_id}") from error
    finally:
        shutil.rmtree(scratch)


def render_about(runs: Sequence[ScoredRun]) -> str:
    """The Space's README: what the Hub has to know, and the tables for whoever reads the files."""
    import yaml

    from eval_harness.report import to_markdown

    tasks = sorted({run.header.task for run in runs})
    head = {
        "title": f"LMRL evaluation: {', '.join(tasks)}",
        "emoji": "🎯",
        "colorFrom": "blue",
        "colorTo": "gray",
        "sdk": "static",
        "app_file": PAGE,
        "pinned": False,
        "tags": ["lmrl", "evaluation", *tasks],
    }
    text = "".join(f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n{to_markdown(runs)}")
    return f"{text}\n{MARK}\n"


def config_name(header: Header) -> str:
    """A configuration's name for a run: the model's name without what a file's name cannot hold, and the seed."""
    safe = re.sub(r"[^\w.+-]+", "-", _public(str(header.model["name"]))).strip("-.")[:CLAIMED] or "model"
    return f"{safe}-seed{header.seed}"


def _public(name: str) -> str:
    """A model's name; of a folder the last part alone, since the path is nobody's business."""
    return Path(name).resolve().name if Path(name).is_dir() or name.startswith(("/", ".", "~")) else name


def _refuse_incomplete(run: ScoredRun) -> None:
    if not run.complete:
        raise ValueError(
            f"{run.folder} holds {run.summary.episodes} of {run.header.episodes} episodes; run the same `lmrl eval` "
            "command again to complete it, then push"
        )


def _commit(api: Any, repo_id: str, folder: Path, force: bool) -> Published:
    """One attempt on top of what the Space holds now; the same files again are no commit."""
    from huggingface_hub import CommitOperationAdd

    from hub_datasets.hub import Published

    info = api.space_info(repo_id)
    present = {file.rfilename for file in info.siblings or []}
    ours = ABOUT in present and MARK in Path(
        api.hf_hub_download(repo_id, ABOUT, repo_type="space", revision=info.sha)
    ).read_text(encoding="utf-8")
    if (others := sorted(present - NEW)) and not ours and not force:
        raise FileExistsError(
            f"space {repo_id} already has {others[0]}, which is not from lmrl; push to another Space, or pass --force "
            "to write into it"
        )
    commit = api.create_commit(
        repo_id,
        [CommitOperationAdd(name, folder / name) for name in (PAGE, ABOUT)],
        commit_message="Report of lmrl",
        repo_type="space",
        parent_commit=info.sha,
    )
    return Published(repo_id, commit.oid, commit.oid != info.sha, None)
