"""A run's scores beside the model they are of, on the Hub.

Two files say the same in two ways: `.eval_results/<task>.yaml`, which the Hub shows on the model's page and on the
benchmark's, and a section of the model's card for people. The section stands between marks, with a block per task
inside, so pushing again replaces what was pushed before and leaves the rest of the card alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from huggingface_hub import CommitInfo, CommitOperationAdd, EvalResultEntry, HfApi, eval_result_entries_to_yaml

from env_servers.tasks import load_task
from eval_harness.report import NOTE, cells, column_titles, escape_markdown, scale_names, settings
from eval_harness.score import ScoredRun
from hub_datasets.hub import HUB_ERRORS, Published, explain, with_retries
from hub_datasets.load import ORGANISATION

CARD = "README.md"
START, END = "<!-- lmrl-results -->", "<!-- /lmrl-results -->"
# What a reader of the card needs; the rest (folder, hash of the starts) stays in the log.
CARD_SETTINGS = (
    "revision", "dtype", "rendering", "temperature", "top k", "top p", "max new tokens",
    "partner", "partner revision", "not understood", "answers from",
    "options of the task", "split", "seed", "starts from", "versions", "began",
)  # fmt: skip


def result_entry(run: ScoredRun, source_url: str | None = None) -> EvalResultEntry:
    """The run as the Hub's record of a result. It has one value, the mean return; the rest is in its notes.

    Args:
        run: A complete run.
        source_url: Where its log can be read.
    """
    header, source = run.header, run.header.starts_from or {}
    titles, numbers = column_titles(scale_names([run])), cells(run, scale_names([run]))
    told = [f"{title.lower()} {cell.value} {cell.below}".strip() for title, cell in zip(titles, numbers, strict=True)]
    sampling = [f"{name} {value}" for name, value in (header.model.get("sampling") or {}).items()]
    revision = [f"model revision {header.model['revision']}"] if header.model.get("revision") else []
    if header.partner is not None:
        revision.append(f"partner {header.partner['name']}, revision {header.partner['revision']}")
    return EvalResultEntry(
        dataset_id=source["source"] if source.get("revision") else f"{ORGANISATION}/{header.task}",
        task_id=header.task,
        value=run.summary.mean_return,
        dataset_revision=source.get("revision"),
        date=header.created,
        source_url=source_url,
        notes="; ".join([*told, f"task version {header.task_version}", f"seed {header.seed}", *sampling, *revision]),
    )


def render_yaml(run: ScoredRun, source_url: str | None = None) -> str:
    """The text of `.eval_results/<task>.yaml`."""
    entries = eval_result_entries_to_yaml([result_entry(run, source_url)])
    return str(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=1000))


def render_block(run: ScoredRun) -> str:
    """The run's part of the card, from its mark to its mark."""
    task, scales = run.header.task, scale_names([run])
    titles = column_titles(scales)
    values = [f"{cell.value} {cell.below}".strip() for cell in cells(run, scales)]
    all_settings = settings(run)
    told = [f"{name} {escape_markdown(all_settings[name])}" for name in CARD_SETTINGS if name in all_settings]
    lines = [
        _mark(task),
        f"### {load_task(task).spec.title}",
        "",
        f"| {' | '.join(titles)} |",
        "|" + " ---: |" * len(titles),
        f"| {' | '.join(values)} |",
        "",
        f"Task `{task}`, version {run.header.task_version}; {'; '.join(told)}.",
        _mark(task, "/"),
    ]
    return "\n".join(lines)


def put_block(card: str, task: str, block: str) -> str:
    """The card with the block of one task put in, in place of an older one; all else is left as it is.

    Raises:
        ValueError: A mark of the section lacks its counterpart, so where the section ends is unknown.
    """
    if (card.count(START), card.count(END)) not in ((0, 0), (1, 1)) or card.find(START) > card.find(END):
        raise ValueError(
            f"the card's marks {START} and {END} are not a pair; mend or delete them in {CARD}, then push again"
        )
    if START not in card:
        head = card.rstrip("\n") + "\n\n" if card.strip() else ""
        return f"{head}{START}\n## Results\n\n{NOTE}\n\n{block}\n{END}\n"
    before, _, rest = card.partition(START)
    section, _, after = rest.partition(END)
    old = re.compile(f"{re.escape(_mark(task))}.*?{re.escape(_mark(task, '/'))}", re.DOTALL)
    section, found = old.subn(lambda _: block, section, count=1)
    if not found:
        section = f"{section.rstrip()}\n\n{block}\n"
    return f"{before}{START}{section}{END}{after}"


def push_results(
    run: ScoredRun,
    repo_id: str,
    *,
    create_pr: bool = False,
    source_url: str | None = None,
    token: str | bool | None = None,
    api: HfApi | None = None,
) -> Published:
    """Put a run's results on the Hub, both files in one commit on top of what is there.

    Args:
        run: A complete run.
        repo_id: The model's repository; it must exist.
        create_pr: Open a pull request instead of committing to the default branch.
        source_url: Where the run's log can be read.
        token: As in `huggingface_hub`.
        api: A client to use instead of a new one.

    Raises:
        ValueError: The run is not complete, or the card's marks are broken.
        FileNotFoundError: The repository does not exist or may not be read.
        PermissionError: The token may not write.
        ConnectionError: The Hub failed again and again.
    """
    if not run.complete:
        raise ValueError(
            f"{run.folder} holds {run.summary.episodes} of {run.header.episodes} episodes; run the same `lmrl eval` "
            "command again to complete it, then push"
        )
    client = api or HfApi(token=token)
    try:
        return with_retries(lambda: _commit(client, run, repo_id, create_pr, source_url))
    except HUB_ERRORS as error:
        raise explain(error, f"model {repo_id}") from error


def _commit(api: HfApi, run: ScoredRun, repo_id: str, create_pr: bool, source_url: str | None) -> Published:
    """One attempt on top of the newest commit; the Hub refuses it if another one came between."""
    head = api.model_info(repo_id).sha
    assert head is not None
    present = set(api.list_repo_files(repo_id, revision=head))
    old_card = _read(api, repo_id, head, CARD) if CARD in present else ""
    path = f".eval_results/{run.header.task}.yaml"
    new = {path: render_yaml(run, source_url), CARD: put_block(old_card, run.header.task, render_block(run))}
    old = {CARD: old_card, path: _read(api, repo_id, head, path) if path in present else ""}
    if new == old:
        return Published(repo_id, head, False, None)
    commit: CommitInfo = api.create_commit(
        repo_id,
        [CommitOperationAdd(name, text.encode()) for name, text in new.items() if text != old[name]],
        commit_message=f"Results on {run.header.task}: {run.summary.episodes} episodes",
        parent_commit=head,
        create_pr=create_pr,
    )
    return Published(repo_id, commit.oid, True, commit.pr_url)


def _read(api: HfApi, repo_id: str, revision: str, path: str) -> str:
    # Bytes first: reading as text would turn a card's CRLF into LF, and the push would change all its lines.
    return Path(api.hf_hub_download(repo_id, path, revision=revision)).read_bytes().decode()


def _mark(task: str, slash: str = "") -> str:
    return f"<!-- {slash}lmrl-results:{task} -->"
