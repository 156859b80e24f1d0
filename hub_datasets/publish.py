"""Publish a built dataset: one atomic commit, a tag, and a check of what the Hub then serves.

A repository holds one task. Each configuration has a folder with its own `stats.json`, and the card is a function
of all of them, so several processes can publish different configurations to one repository at once: each commit
names the commit it was made on, and when another one came between, it is made anew on top of that.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
from datasets import load_dataset
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.hf_api import RepoFile

from dataset_cards.render import edited_by_hand, render_card
from hub_datasets.hub import HUB_ERRORS, Published, explain, status_of, with_retries
from hub_datasets.load import STARTS
from hub_datasets.manifest import (
    NAME,
    Manifest,
    check_format,
    file_sha256,
    files_of,
    has_episodes,
    local_options,
    read_manifests,
    rows_of,
    sort_manifests,
)
from hub_datasets.served import CONFIG
from hub_datasets.served_data import finished


def publish(
    folder: Path,
    repo_id: str,
    *,
    tag: str | None = None,
    private: bool = False,
    create_pr: bool = False,
    force: bool = False,
    token: str | bool | None = None,
) -> Published:
    """Publish all configurations of a folder that `build` made, or that a server recorded into.

    A recording is made whole first. What it has become since it was published last is added to it.

    Args:
        folder: The dataset's folder.
        repo_id: `namespace/name`; made if it does not exist (not with `create_pr`).
        tag: Name for the commit, such as `v1.0`.
        private: Make a new repository private.
        create_pr: Open a pull request instead of committing to the default branch.
        force: Replace a configuration that has other data, a card that was edited by hand, or the tag; or publish
            options that name a file of this machine.
        token: As in `huggingface_hub`; None takes the ambient one.

    Returns:
        What was committed, after it was read back and found equal.

    Raises:
        FileExistsError: The repository has other data, an edited card or that tag elsewhere, and `force` is off.
        FileNotFoundError: The folder is no dataset, or with `create_pr` the repository does not exist.
        PermissionError: There is no token, or it may not write there.
        ConnectionError: The Hub could not be reached, or others kept committing.
        ValueError: A file is not what the manifest says, what the Hub serves is not what was committed, or the options
            name a file of this machine, and `force` is off.
    """
    with finished(folder):
        return _publish(folder, repo_id, tag, private, create_pr, force, token)


def _publish(
    folder: Path, repo_id: str, tag: str | None, private: bool, create_pr: bool, force: bool, token: str | bool | None
) -> Published:
    manifests = read_manifests(folder)
    if not force:
        _refuse_local(manifests)
    for manifest in manifests:
        for file in files_of(manifest):
            if not (folder / file["path"]).exists() or file_sha256(folder / file["path"]) != file["sha256"]:
                raise ValueError(f"{folder / file['path']} is not the file that was built; build the dataset again")
    api = HfApi(token=token)
    try:
        check_token(api, repo_id, create_pr)
        if create_pr:
            api.dataset_info(repo_id)
        else:
            with_retries(lambda: api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True))
        wanted = None if create_pr else tag
        published = with_retries(lambda: _commit(api, folder, repo_id, manifests, wanted, create_pr, force))
        if wanted is not None:
            with_retries(lambda: _tag(api, repo_id, wanted, published.revision))
        check_published(api, published, manifests)
    except HUB_ERRORS as error:
        raise explain(error, f"dataset {repo_id}") from error
    return published


def _refuse_local(manifests: list[Manifest]) -> None:
    """Refuse to tell the world the names of files of this machine, which are of no use to it."""
    for manifest in manifests:
        if not has_episodes(manifest):
            continue
        served = manifest.get(CONFIG)
        local = local_options(manifest["task"], manifest["env_kwargs"]) if served is None else served["local"]
        if local:
            raise ValueError(
                f"episodes of {manifest['config']!r} were played with what only this machine has ({', '.join(local)}): "
                "whoever loads them reads the name, and without the file cannot play them again; pass --force to "
                "publish them all the same"
            )


def check_token(api: HfApi, repo_id: str, create_pr: bool | None) -> None:
    """Refuse before any work what the Hub would refuse after the upload.

    Args:
        api: With the token.
        repo_id: What is to be written to.
        create_pr: Whether it is by a pull request; None where there is no such way.

    Raises:
        PermissionError: There is no token, it only reads, or its user has no part in the namespace.
    """
    if api.token is False or not (api.token or get_token()):
        raise PermissionError("there is no token; log in with `hf auth login`, or set HF_TOKEN")
    try:
        user = with_retries(api.whoami)
    except httpx2.HTTPError as error:
        if status_of(error) != 401:
            raise
        raise PermissionError("the Hub does not know your token; log in again with `hf auth login`") from error
    if user["auth"]["accessToken"].get("role") == "read":
        raise PermissionError(
            f"the token of {user['name']} only reads; publishing needs one with the role `write`: make it under "
            "Settings, Access Tokens, and run `hf auth login`"
        )
    namespace = repo_id.partition("/")[0]
    allowed = [user["name"], *(organisation["name"] for organisation in user.get("orgs", []))]
    if namespace not in allowed and not create_pr:
        other = "" if create_pr is None else ". To propose a change to another's repository, pass --create-pr"
        raise PermissionError(f"{user['name']} cannot publish to {namespace!r}; allowed: {', '.join(allowed)}{other}")


def _commit(
    api: HfApi,
    folder: Path,
    repo_id: str,
    manifests: list[Manifest],
    tag: str | None,
    create_pr: bool,
    force: bool,
) -> Published:
    """One attempt on top of what the repository holds now; the same content again is no commit."""
    head = api.dataset_info(repo_id).sha
    assert head is not None
    tagged = _tags(api, repo_id).get(tag) if tag is not None else None
    present = set(api.list_repo_files(repo_id, revision=head, repo_type="dataset"))
    with tempfile.TemporaryDirectory() as scratch:
        remote = {
            path.partition("/")[0]: _download_json(api, repo_id, head, path, scratch)
            for path in present
            if path.count("/") == 1 and path.endswith(f"/{NAME}")
        }
        merged = {**remote, **{manifest["config"]: manifest for manifest in manifests}}
        card = render_card(repo_id, sort_manifests(list(merged.values())))
        same_data = all(remote.get(m["config"], {}).get("fingerprint") == m["fingerprint"] for m in manifests)
        old_card = _download(api, repo_id, head, "README.md", scratch) if "README.md" in present else None
    if same_data and old_card == card:
        if tagged not in (None, head) and not force:
            raise _tag_taken(repo_id, tag, tagged)
        return Published(repo_id, head, False, None)
    if not force:
        if tagged is not None:  # told before the commit, not after it
            raise _tag_taken(repo_id, tag, tagged)
        _refuse_to_overwrite(repo_id, remote, manifests, present, old_card)
    operations: list[CommitOperationAdd | CommitOperationDelete] = []
    ours = {m["config"] for m in manifests} | ({STARTS} if any(has_episodes(m) for m in manifests) else set())
    uploads = [path for name in sorted(ours) for path in sorted((folder / name).iterdir()) if path.is_file()]
    names = {str(path.relative_to(folder)) for path in uploads}
    operations += [CommitOperationAdd(str(path.relative_to(folder)), path) for path in uploads]
    operations += [CommitOperationAdd("README.md", card.encode())]
    stale = sorted(path for path in present if path.partition("/")[0] in ours and path not in names)
    operations += [CommitOperationDelete(path) for path in stale]
    configs = ", ".join(m["config"] for m in manifests)
    commit: CommitInfo = api.create_commit(
        repo_id,
        operations,
        commit_message=f"{manifests[0]['task']} {configs}: {_size(manifests[0])}",
        repo_type="dataset",
        parent_commit=head,
        create_pr=create_pr,
    )
    return Published(repo_id, commit.oid, True, commit.pr_url)


def _refuse_to_overwrite(
    repo_id: str, remote: Mapping[str, Manifest], manifests: list[Manifest], present: set[str], old_card: str | None
) -> None:
    way_out = "publish to another repository, or pass --force to replace it"
    for manifest in manifests:
        old = remote.get(manifest["config"])
        if old is not None and old["fingerprint"] != manifest["fingerprint"] and not _has_grown(old, manifest):
            facts = ("task", "task_version", "policy", "env_kwargs", "lmrl_version")
            changes = [
                f"{key}: {old.get(key)!r} there, {manifest.get(key)!r} here"
                for key in facts
                if old.get(key) != manifest.get(key)
            ]
            counts = [_size(m) for m in (old, manifest)]
            changes = changes or [f"{counts[0]} there, {counts[1]} here"]
            raise FileExistsError(
                f"{repo_id} already has another dataset {manifest['config']!r} ({'; '.join(changes)}); {way_out}"
            )
        foreign = sorted(p for p in present if p.startswith(f"{manifest['config']}/"))
        if old is None and foreign:
            raise FileExistsError(f"{repo_id} already has {foreign[0]}, which is not from lmrl; {way_out}")
    if old_card is not None and edited_by_hand(old_card):
        raise FileExistsError(
            f"the card of {repo_id} was written or edited by hand and would be lost; move the words into "
            f"dataset_cards/{manifests[0]['task']}.md, or pass --force to replace the card"
        )


def _has_grown(old: Manifest, new: Manifest) -> bool:
    """Whether a recording has all that it had, and more."""
    before, after = (
        {(file["path"], file["sha256"]) for part in manifest["splits"].values() for file in part["files"]}
        for manifest in (old, new)
    )
    return old.get("policy") == new.get("policy") == CONFIG and before <= after


def _size(manifest: Manifest) -> str:
    """How much a configuration holds, as words."""
    if has_episodes(manifest):
        return f"{manifest['summary']['episodes']:,} episodes"
    return f"{sum(rows_of(manifest).values()):,} interactions"


def _download(api: HfApi, repo_id: str, revision: str, path: str, scratch: str) -> str:
    local = api.hf_hub_download(repo_id, path, repo_type="dataset", revision=revision, local_dir=scratch)
    return Path(local).read_text()


def _download_json(api: HfApi, repo_id: str, revision: str, path: str, scratch: str) -> Manifest:
    return check_format(json.loads(_download(api, repo_id, revision, path, scratch)), f"{repo_id}/{path}")


def _tags(api: HfApi, repo_id: str) -> dict[str, str]:
    return {ref.name: ref.target_commit for ref in api.list_repo_refs(repo_id, repo_type="dataset").tags}


def _tag_taken(repo_id: str, tag: str | None, commit: str) -> FileExistsError:
    return FileExistsError(
        f"{repo_id} has the tag {tag!r} at commit {commit[:8]}, which holds other content; choose another tag, or pass "
        "--force to move this one"
    )


def _tag(api: HfApi, repo_id: str, tag: str, revision: str) -> None:
    present = _tags(api, repo_id).get(tag)
    if present == revision:
        return
    if present is not None:  # only by force, see _commit
        api.delete_tag(repo_id, tag=tag, repo_type="dataset")
    api.create_tag(repo_id, tag=tag, revision=revision, repo_type="dataset")


def check_published(api: HfApi, published: Published, manifests: list[Manifest]) -> None:
    """Read the commit back: the files' hashes, and each split's rows as `load_dataset` gives them.

    Raises:
        ValueError: Something differs; the message says what.
    """
    for manifest in manifests:
        expected = {file["path"]: file["sha256"] for file in files_of(manifest)}
        found = api.get_paths_info(published.repo_id, list(expected), revision=published.revision, repo_type="dataset")
        served = {item.path: item.lfs.sha256 for item in found if isinstance(item, RepoFile) and item.lfs}
        wrong = [path for path, sha in expected.items() if served.get(path) != sha]
        if wrong:
            raise ValueError(
                f"{published.repo_id}@{published.revision[:8]} does not hold what was committed: {', '.join(wrong)}; "
                "publish again with --force"
            )
        for (config, split), rows in rows_of(manifest).items():
            dataset: Any = load_dataset(
                published.repo_id, config, split=split, revision=published.revision, token=api.token
            )
            if len(dataset) != rows:
                raise ValueError(
                    f"{published.repo_id}@{published.revision[:8]}: configuration {config!r}, split {split!r} loads "
                    f"{len(dataset)} rows, expected {rows}"
                )
