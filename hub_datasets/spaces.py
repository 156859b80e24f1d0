"""`lmrl push-space`: a folder that `lmrl serve --space` wrote, as a Space on the Hub, in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from hub_datasets.hub import Published

app = typer.Typer(add_completion=False)

WRITTEN = "Dockerfile", "README.md", "openenv.yaml", "requirements.txt"  # and the wheel, by `lmrl serve --space`
MARK = "# Written by `lmrl serve --space`"  # its Dockerfile begins so
NEW = {"README.md", ".gitattributes"}  # what the Hub puts into a new Space


class PushedSpace(NamedTuple):
    """What became of a Space.

    Attributes:
        published: The repository and its commit.
        page: Address of its page on the Hub.
        host: Address of the server in it, as far as the Hub tells.
    """

    published: Published
    page: str
    host: str | None


@app.command(name="push-space", epilog="Example: lmrl push-space my-space --repo your-name/lmrl-maze")
def push_space_command(
    folder: Annotated[Path, typer.Argument(help="Folder that `lmrl serve --space` wrote.")],
    repo: Annotated[str, typer.Option(help="The Space, as namespace/name; made if it is not there.")],
    private: Annotated[bool, typer.Option(help="Make a new Space private: the Hub then asks who comes.")] = False,
    token_file: Annotated[
        Path | None, typer.Option(help="File with bearer tokens, one a line, that the server is to ask for.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace a Space that has other files.")] = False,
) -> None:
    """Put a folder on the Hub as a docker Space that serves environments."""
    from env_servers.serve import read_tokens

    tokens = None if token_file is None else read_tokens(token_file)
    done = push_space(folder, repo, private=private, tokens=tokens, force=force)
    what = "pushed" if done.published.changed else "already there, nothing changed:"
    typer.echo(f"{what} {done.page} (commit {done.published.revision})")
    if done.host is not None:
        typer.echo(f"once it is built, play on it with --env {done.host.replace('https://', 'wss://', 1)}")


def push_space(
    folder: Path,
    repo_id: str,
    *,
    private: bool = False,
    tokens: list[str] | None = None,
    force: bool = False,
    token: str | bool | None = None,
) -> PushedSpace:
    """Put the folder on the Hub.

    Args:
        folder: What `lmrl serve --space` wrote; other files in it stay here.
        repo_id: `namespace/name`; made if it does not exist.
        private: Make a new Space private.
        tokens: What the server is to ask its clients for; it becomes a secret of the Space. None leaves that as it is.
        force: Replace a Space that has other files, whose files are then gone.
        token: As in `huggingface_hub`; None takes the ambient one.

    Raises:
        FileNotFoundError: The folder is no such folder, or the name is not possible.
        FileExistsError: The Space has other files, and `force` is off.
        PermissionError: There is no token, or it may not write there.
        ConnectionError: The Hub could not be reached, or others kept committing.
        ValueError: The Space is public and should be private, or `private` and `tokens` are both given.
    """
    files = _files(folder)
    if private and tokens:
        raise ValueError(
            "a private Space asks for a token of the Hub, in the header that a token of the server would be in: leave "
            "--private or --token-file out"
        )
    from huggingface_hub import HfApi

    from env_servers.serve import TOKENS
    from hub_datasets.hub import HUB_ERRORS, Published, explain, with_retries
    from hub_datasets.publish import check_token

    api = HfApi(token=token)
    try:
        check_token(api, repo_id, create_pr=None)
        with_retries(
            lambda: api.create_repo(repo_id, repo_type="space", space_sdk="docker", private=private, exist_ok=True)
        )
        info = with_retries(lambda: api.space_info(repo_id))
        if private and not info.private:
            raise ValueError(f"space {repo_id} is there and public; make it private in its settings first")
        present = {file.rfilename for file in info.siblings or []}
        if not force:
            _refuse_others(api, repo_id, info.sha, present - NEW)
        if tokens:  # before the commit, so that no server without it is ever built
            with_retries(lambda: api.add_space_secret(repo_id, TOKENS, " ".join(tokens)))
        published = with_retries(lambda: _commit(api, repo_id, files, force))
        host = with_retries(lambda: api.space_info(repo_id)).host
    except HUB_ERRORS as error:
        raise explain(error, f"space {repo_id}") from error
    return PushedSpace(Published(*published), f"{api.endpoint}/spaces/{repo_id}", host)


def _files(folder: Path) -> list[Path]:
    """The files that are the Space."""
    wheels = sorted(folder.glob("lmrl-*.whl"))
    dockerfile = folder / WRITTEN[0]
    if not dockerfile.exists() or not dockerfile.read_text(encoding="utf-8").startswith(MARK):
        raise FileNotFoundError(f"{folder} is no Space that `lmrl serve --space` wrote; give its folder")
    missing = [name for name in WRITTEN if not (folder / name).exists()] + ([] if wheels else ["lmrl-*.whl"])
    if missing or len(wheels) > 1:
        what = f"lacks {', '.join(missing)}" if missing else f"has {len(wheels)} wheels"
        raise FileNotFoundError(f"{folder} {what}; write it anew with `lmrl serve --space`")
    return [*(folder / name for name in WRITTEN), *wheels]


def _refuse_others(api: Any, repo_id: str, revision: str | None, files: set[str]) -> None:
    """Raise where the Space holds what another one put there."""
    if not files:
        return
    first = min(files)
    if WRITTEN[0] in files:
        path = api.hf_hub_download(repo_id, WRITTEN[0], repo_type="space", revision=revision)
        if Path(path).read_text(encoding="utf-8").startswith(MARK):
            return
        first = WRITTEN[0]
    raise FileExistsError(
        f"space {repo_id} already has {first}, which is not from lmrl; push to another Space, or pass --force to "
        "replace all its files"
    )


def _commit(api: Any, repo_id: str, files: list[Path], force: bool) -> tuple[str, str, bool, None]:
    """One attempt on top of what the Space holds now; the same files again are no commit."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    info = api.space_info(repo_id)
    present = {file.rfilename for file in info.siblings or []} - {".gitattributes"}
    names = {path.name for path in files}
    stale = sorted(name for name in present - names if force or name.endswith(".whl"))
    operations: list[Any] = [CommitOperationAdd(path.name, path) for path in files]
    operations += [CommitOperationDelete(name) for name in stale]
    version = files[-1].name.split("-")[1]
    commit = api.create_commit(
        repo_id,
        operations,
        commit_message=f"Environments of lmrl {version}",
        repo_type="space",
        parent_commit=info.sha,
    )
    return repo_id, commit.oid, commit.oid != info.sha, None
