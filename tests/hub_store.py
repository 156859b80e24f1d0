"""State of the test Hub: users, repositories, commits, references, discussions and file contents.

Nothing here reads or writes HTTP: errors are raised as :class:`HubError`, which carries the status, the error
code and the message that the server answers with. Everything is kept below one folder, so that a Hub started
again on the same folder has the same repositories::

    blobs/<sha1 or sha256>                          contents of files
    repositories/<type>s/<namespace>/<name>/
        repository.json                             settings, references, discussions
        commits/<sha>.json                          one commit with its whole tree; never changed

A commit's file is written before ``repository.json`` is replaced, so a crash leaves either the old or the new
state, and at worst a commit that nothing points to.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import hashlib
import json
import os
import re
import shutil
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY_TYPES = ("model", "dataset", "space")
MAIN = "main"
# Names become folders, so nothing that could leave the root folder may pass.
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,96}")
_GIT_ATTRIBUTES = "".join(
    f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n"
    for suffix in ("arrow", "bin", "gguf", "npz", "parquet", "pt", "safetensors", "zip")
).encode()


class HubError(Exception):
    """An answer other than success.

    Attributes:
        status: HTTP status.
        message: Text for ``X-Error-Message`` and the JSON body.
        code: Value of ``X-Error-Code`` (``RepoNotFound``, ``RevisionNotFound``, ...), or None.
        headers: Further headers.
        body: JSON body to send in place of ``{"error": message}``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = headers or {}
        self.body = body


@dataclass(frozen=True)
class User:
    """The bearer of a token.

    Attributes:
        name: User name, which is also a namespace.
        orgs: Organisations whose namespaces the user may use.
        role: Role of the token, "read" or "write".
    """

    name: str
    orgs: tuple[str, ...] = ()
    role: str = "write"

    def is_member(self, namespace: str) -> bool:
        """Whether the namespace is the user's own or one of the user's organisations."""
        return namespace == self.name or namespace in self.orgs


@dataclass(frozen=True)
class FileEntry:
    """One file of a tree; ``sha256`` is set for large files, whose git blob is only an LFS pointer."""

    blob_id: str
    size: int
    sha256: str | None = None

    @property
    def etag(self) -> str:
        """What identifies the content for clients, and the name under which the content is stored."""
        return self.sha256 or self.blob_id


@dataclass(frozen=True)
class Commit:
    """A commit with its whole tree."""

    sha: str
    parent: str | None
    files: dict[str, FileEntry]
    title: str
    message: str
    author: str
    date: str


@dataclass
class Discussion:
    """A discussion or a pull request; the latter's commits are on ``refs/pr/<number>``."""

    number: int
    title: str
    author: str
    is_pull_request: bool
    created_at: str
    status: str
    base_commit: str | None = None
    merge_commit: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def reference(self) -> str:
        """Git reference of the pull request."""
        return f"refs/pr/{self.number}"

    def add_event(self, kind: str, author: str, data: dict[str, Any]) -> dict[str, Any]:
        """Append an event (comment, commit, status-change, title-change) and return it."""
        event = {
            "id": uuid.uuid4().hex[:24],
            "type": kind,
            "createdAt": utc_now(),
            "author": {"name": author},
            "data": data,
        }
        self.events.append(event)
        return event


@dataclass
class Repository:
    """A repository; change it only while holding ``lock``, then call :meth:`Store.save`.

    Attributes:
        type: "model", "dataset" or "space".
        id: "namespace/name".
        gated: False, "auto" or "manual"; files of a gated repository need membership or a grant.
        granted: Names of users with access to the files of a gated repository.
        secrets: Of a Space, by name; nobody can read them through the API.
        branches: Commit sha per branch name; likewise ``tags`` and ``pull_requests`` (by "refs/pr/<n>").
        commits: All commits by sha.
        former_ids: Ids before moves; requests for them are redirected.
    """

    type: str
    id: str
    private: bool = False
    gated: bool | str = False
    granted: list[str] = field(default_factory=list)
    sdk: str | None = None
    secrets: dict[str, str] = field(default_factory=dict)
    created_at: str = ""
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pull_requests: dict[str, str] = field(default_factory=dict)
    discussions: list[Discussion] = field(default_factory=list)
    former_ids: list[str] = field(default_factory=list)
    commits: dict[str, Commit] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    @property
    def namespace(self) -> str:
        """User or organisation that owns the repository."""
        return self.id.split("/")[0]

    @property
    def web_path(self) -> str:
        """Path of the repository's page, which is also the prefix of its file URLs."""
        return f"/{self.id}" if self.type == "model" else f"/{self.type}s/{self.id}"

    def commit_at(self, revision: str) -> Commit:
        """Resolve a branch, tag, pull request reference or (shortened) sha.

        Raises:
            HubError: 404 RevisionNotFound.
        """
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        sha = self.branches.get(name) or self.tags.get(name) or self.pull_requests.get(revision)
        if sha is None and re.fullmatch(r"[0-9a-f]{7,40}", revision):
            sha = next((known for known in self.commits if known.startswith(revision)), None)
        if sha is None:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[sha]

    def history(self, commit: Commit) -> list[Commit]:
        """The commit and its ancestors, newest first."""
        found = [commit]
        while found[-1].parent:
            found.append(self.commits[found[-1].parent])
        return found

    def last_commit_of(self, commit: Commit, path: str) -> Commit:
        """The newest commit, from ``commit`` backwards, that changed the file."""
        entry = commit.files[path]
        while commit.parent and self.commits[commit.parent].files.get(path) == entry:
            commit = self.commits[commit.parent]
        return commit

    def discussion(self, number: int) -> Discussion:
        """Look up a discussion by its number, counting from 1."""
        if not 1 <= number <= len(self.discussions):
            raise HubError(404, "Discussion not found")
        return self.discussions[number - 1]

    def to_json(self) -> dict[str, Any]:
        """The mutable state, that is all but the commits."""
        state = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name not in ("commits", "lock", "discussions")
        }
        return state | {"discussions": [dataclasses.asdict(item) for item in self.discussions]}


def utc_now() -> str:
    """The present time as the Hub writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def git_object_id(data: bytes, kind: str = "blob") -> str:
    """Git's name (sha1) of an object."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The small text that git stores in place of a large file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target, then rename, so that no reader sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


class Store:
    """All repositories and file contents below one folder.

    Args:
        root: Folder for the state; created if missing, loaded if it holds repositories.
        tokens: User data (``name``, ``orgs``, ``role``) per token.
    """

    def __init__(self, root: Path, tokens: dict[str, dict[str, Any]]):
        self.root = root
        self.users = {
            token: User(data["name"], tuple(data.get("orgs", ())), data.get("role", "write"))
            for token, data in tokens.items()
        }
        self.repositories: dict[tuple[str, str], Repository] = {}
        # sha256 -> Xet hash of the files that arrived through Xet; filled by hub_xet.
        self.xet_hashes: dict[str, str] = {}
        self._lock = threading.RLock()
        (root / "blobs").mkdir(parents=True, exist_ok=True)
        for path in sorted(root.glob("repositories/*/*/*/repository.json")):
            self._load(path)

    # ---- contents of files

    def blob_path(self, key: str) -> Path:
        """Where the content with this sha1 (small files) or sha256 (large files) is kept."""
        return self.root / "blobs" / key

    def has_blob(self, key: str) -> bool:
        """Whether the content is stored."""
        return self.blob_path(key).is_file()

    def read_file(self, repository: Repository, path: str, revision: str = MAIN) -> bytes:
        """Content of a file of a repository."""
        return self.blob_path(repository.commit_at(revision).files[path].etag).read_bytes()

    # ---- users and rights

    def user_of(self, authorization: str | None) -> User | None:
        """User of an ``Authorization`` header; None without the header, 401 with an unknown token."""
        if not authorization:
            return None
        user = self.users.get(authorization.removeprefix("Bearer "))
        if user is None:
            raise HubError(401, "Invalid credentials in Authorization header")
        return user

    def can_write(self, user: User | None, namespace: str) -> bool:
        """Whether the user may change repositories of the namespace."""
        return user is not None and user.role == "write" and user.is_member(namespace)

    def find(self, user: User | None, repository_type: str, repository_id: str) -> Repository:
        """Look up a repository that the user may see.

        A private repository looks like a missing one to strangers, as on the real Hub.

        Raises:
            HubError: 401 or 404 with code RepoNotFound; 307 when the repository was moved.
        """
        with self._lock:
            repository = self.repositories.get((repository_type, repository_id))
            moved = repository is None and next(
                (
                    item
                    for item in self.repositories.values()
                    if item.type == repository_type and repository_id in item.former_ids
                ),
                None,
            )
        repository = repository or moved or None
        if repository is None or (
            repository.private and not (user is not None and user.is_member(repository.namespace))
        ):
            if user is None:
                raise HubError(401, "Invalid username or password.", "RepoNotFound")
            raise HubError(404, "Repository not found", "RepoNotFound")
        if moved:
            raise HubError(307, f"Repository moved to {moved.id}", headers={"X-Moved-To": moved.id})
        return repository

    def require_write(self, user: User | None, repository: Repository) -> None:
        """Raise 401 or 403 unless the user may change the repository."""
        if user is None:
            raise HubError(401, "Invalid username or password.")
        if user.role != "write":
            raise HubError(403, "Forbidden: this token has no write access")
        if not self.can_write(user, repository.namespace):
            raise HubError(403, "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")

    def require_proposal(self, user: User | None, repository: Repository, revision: str, create_pr: bool) -> None:
        """Raise unless the user may commit to the revision, or propose the commit as a pull request.

        Anyone with a write token may open a pull request, and go on committing to their own one.
        """
        if user is not None and user.role == "write":
            if create_pr:
                return
            if any(
                item.reference == revision and item.author == user.name
                for item in repository.discussions
                if item.is_pull_request
            ):
                return
        self.require_write(user, repository)

    def require_files(self, user: User | None, repository: Repository) -> None:
        """Raise GatedRepo unless the user may read the files of the repository."""
        if not repository.gated:
            return
        if user is None:
            raise HubError(
                401,
                f"Access to {repository.type} {repository.id} is restricted. You must have access to"
                " it and be authenticated to access it. Please log in.",
                "GatedRepo",
            )
        if not user.is_member(repository.namespace) and user.name not in repository.granted:
            raise HubError(
                403,
                f"Access to {repository.type} {repository.id} is restricted and you are not in the"
                f" authorized list. Visit {repository.web_path} to ask for access.",
                "GatedRepo",
            )

    # ---- repositories

    def create(
        self,
        user: User | None,
        repository_type: str,
        namespace: str | None,
        name: str,
        *,
        private: bool = False,
        sdk: str | None = None,
        base_url: str = "",
    ) -> Repository:
        """Create a repository with its first commit."""
        if user is None:
            raise HubError(401, "Invalid username or password.")
        namespace = namespace or user.name
        if repository_type not in REPOSITORY_TYPES or not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            raise HubError(400, f"Invalid repository type or name: {repository_type} {namespace}/{name}")
        if not self.can_write(user, namespace):
            raise HubError(
                403,
                f'You don\'t have the rights to create a {repository_type} under the namespace "{namespace}"',
            )
        repository = Repository(repository_type, f"{namespace}/{name}", private, sdk=sdk, created_at=utc_now())
        with self._lock:
            if (repository_type, repository.id) in self.repositories:
                message = f"You already created this {repository_type} repo: {repository.id}"
                # exist_ok=True of the client reads "url" from this body.
                raise HubError(409, message, body={"error": message, "url": base_url + repository.web_path})
            for other in self.repositories.values():
                if other.type == repository_type and repository.id in other.former_ids:
                    other.former_ids.remove(repository.id)
                    self.save(other)
            files = {".gitattributes": self._small_file(_GIT_ATTRIBUTES)}
            commit = self._new_commit(repository, None, files, "initial commit", "", user.name)
            repository.branches[MAIN] = commit.sha
            self.save(repository)
            self.repositories[repository_type, repository.id] = repository
        return repository

    def delete(self, repository: Repository) -> None:
        """Remove a repository; contents stay, since other repositories may share them."""
        with self._lock, repository.lock:
            self.repositories.pop((repository.type, repository.id), None)
            shutil.rmtree(self._folder(repository))

    def move(self, user: User, repository: Repository, new_id: str) -> None:
        """Rename a repository; requests for the old id are redirected from then on."""
        parts = new_id.split("/")
        if len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts):
            raise HubError(400, f"Invalid repository name: {new_id}")
        if not self.can_write(user, parts[0]):
            raise HubError(403, f'You don\'t have the rights to move a repo to the namespace "{parts[0]}"')
        with self._lock, repository.lock:
            if (repository.type, new_id) in self.repositories:
                raise HubError(409, f"{new_id} exists already")
            old_folder = self._folder(repository)
            del self.repositories[repository.type, repository.id]
            repository.former_ids.append(repository.id)
            repository.id = new_id
            self._folder(repository).parent.mkdir(parents=True, exist_ok=True)
            os.replace(old_folder, self._folder(repository))
            self.save(repository)
            self.repositories[repository.type, new_id] = repository

    def save(self, repository: Repository) -> None:
        """Write the mutable state of a repository."""
        data = json.dumps(repository.to_json(), indent=1).encode()
        write_atomically(self._folder(repository) / "repository.json", data)

    # ---- commits and pull requests

    def commit(
        self,
        repository: Repository,
        revision: str,
        operations: list[dict[str, Any]],
        user: User,
        create_pr: bool = False,
    ) -> tuple[Commit, Discussion | None]:
        """Apply the operations of one commit request, all or nothing.

        Args:
            revision: Branch or pull request reference to commit to.
            operations: The lines of the request: ``{"key": "header" | "file" | "lfsFile" | "deletedFile" |
                "deletedFolder", "value": {...}}``.
            create_pr: Put the commit on a new pull request instead of on the branch.

        Returns:
            The commit, and the new pull request if there is one.
        """
        header = next((item["value"] for item in operations if item["key"] == "header"), None)
        if header is None or not header.get("summary"):
            raise HubError(400, "The commit has no header with a summary")
        with repository.lock:
            if self.repositories.get((repository.type, repository.id)) is not repository:
                raise HubError(404, "Repository not found", "RepoNotFound")  # Deleted while we waited.
            revision = revision.removeprefix("refs/heads/")
            references = repository.pull_requests if revision in repository.pull_requests else repository.branches
            base = repository.commit_at(revision)
            if revision not in references:
                raise HubError(400, "Commits can only be made on a branch")
            expected = header.get("parentCommit")
            if expected and not base.sha.startswith(expected):
                raise HubError(412, "A commit has happened since. Please refresh and try again.")
            files = dict(base.files)
            for operation in operations:
                self._apply(files, operation["key"], operation["value"])
            title, message = header["summary"], header.get("description") or ""
            commit = self._new_commit(repository, base.sha, files, title, message, user.name)
            pull_request = None
            if create_pr:
                pull_request = self.open_discussion(repository, user, title, message, True, base)
                references, revision = repository.pull_requests, pull_request.reference
            references[revision] = commit.sha
            if references is repository.pull_requests:
                number = int(revision.rsplit("/", 1)[1])
                repository.discussion(number).add_event("commit", user.name, {"subject": title, "oid": commit.sha})
            self.save(repository)
        return commit, pull_request

    def open_discussion(
        self,
        repository: Repository,
        user: User,
        title: str,
        text: str,
        is_pull_request: bool,
        base: Commit | None = None,
    ) -> Discussion:
        """Open a discussion, or an empty pull request on the main branch."""
        with repository.lock:
            base = base or repository.commit_at(MAIN)
            discussion = Discussion(
                len(repository.discussions) + 1,
                title,
                user.name,
                is_pull_request,
                utc_now(),
                "draft" if is_pull_request else "open",
                base.sha if is_pull_request else None,
            )
            discussion.add_event("comment", user.name, {"edited": False, "hidden": False, "latest": {"raw": text}})
            repository.discussions.append(discussion)
            if is_pull_request:
                repository.pull_requests[discussion.reference] = base.sha
            self.save(repository)
        return discussion

    def merge(self, repository: Repository, discussion: Discussion, user: User) -> Commit:
        """Merge a pull request into the main branch, file by file."""
        with repository.lock:
            if discussion.base_commit is None or discussion.status not in ("draft", "open"):
                raise HubError(400, "Only an open pull request can be merged")
            before = repository.commits[discussion.base_commit].files
            proposed = repository.commit_at(discussion.reference).files
            main = repository.commit_at(MAIN)
            files = dict(main.files)
            for path in before.keys() | proposed.keys():
                if proposed.get(path) == before.get(path):
                    continue
                if main.files.get(path) not in (before.get(path), proposed.get(path)):
                    raise HubError(409, f"Merge conflict in {path}")
                files.pop(path, None)
                if path in proposed:
                    files[path] = proposed[path]
            title = f"{discussion.title} (#{discussion.number})"
            commit = self._new_commit(repository, main.sha, files, title, "", user.name)
            repository.branches[MAIN] = commit.sha
            discussion.status, discussion.merge_commit = "merged", commit.sha
            discussion.add_event("status-change", user.name, {"status": "merged"})
            self.save(repository)
        return commit

    def _apply(self, files: dict[str, FileEntry], key: str, value: dict[str, Any]) -> None:
        """Apply one operation of a commit to a tree."""
        path = value.get("path", "")
        if key == "file":
            try:
                encoded = value.get("encoding") == "base64"
                data = base64.b64decode(value["content"], validate=True) if encoded else value["content"].encode()
            except binascii.Error as error:
                raise HubError(400, f"Invalid base64 content: {path}") from error
            files[path] = self._small_file(data)
        elif key == "lfsFile":
            sha256 = value["oid"]
            if not re.fullmatch(r"[0-9a-f]{64}", sha256) or not self.has_blob(sha256):
                raise HubError(400, f"LFS pointer pointed to a file that does not exist: {path}")
            size = self.blob_path(sha256).stat().st_size
            files[path] = FileEntry(git_object_id(lfs_pointer(sha256, size)), size, sha256)
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        elif key == "deletedFolder":
            inside = [name for name in files if name.startswith(path.rstrip("/") + "/")]
            if not inside:
                raise HubError(404, f"A folder with this name doesn't exist: {path}", "EntryNotFound")
            for name in inside:
                del files[name]
        elif key != "header":
            raise HubError(400, f"Unknown operation: {key}")

    def _small_file(self, data: bytes) -> FileEntry:
        """Store a file that git keeps itself."""
        blob_id = git_object_id(data)
        if not self.has_blob(blob_id):
            write_atomically(self.blob_path(blob_id), data)
        return FileEntry(blob_id, len(data))

    def _new_commit(
        self,
        repository: Repository,
        parent: str | None,
        files: dict[str, FileEntry],
        title: str,
        message: str,
        author: str,
    ) -> Commit:
        """Make and write a commit; the caller then moves a reference to it and saves the repository."""
        date = utc_now()
        tree = sorted((path, entry.etag) for path, entry in files.items())
        # A random part, since equal commits within one millisecond must differ.
        identity = json.dumps([parent, tree, title, message, author, date, uuid.uuid4().hex]).encode()
        commit = Commit(git_object_id(identity, "commit"), parent, files, title, message, author, date)
        folder = self._folder(repository) / "commits"
        write_atomically(folder / f"{commit.sha}.json", json.dumps(dataclasses.asdict(commit)).encode())
        repository.commits[commit.sha] = commit
        return commit

    def _folder(self, repository: Repository) -> Path:
        return self.root / "repositories" / f"{repository.type}s" / repository.id

    def _load(self, path: Path) -> None:
        """Read one repository back."""
        state = json.loads(path.read_bytes())
        discussions = [Discussion(**item) for item in state.pop("discussions")]
        repository = Repository(**state, discussions=discussions)
        for commit_path in path.parent.glob("commits/*.json"):
            data = json.loads(commit_path.read_bytes())
            data["files"] = {name: FileEntry(**entry) for name, entry in data["files"].items()}
            repository.commits[data["sha"]] = Commit(**data)
        self.repositories[repository.type, repository.id] = repository
