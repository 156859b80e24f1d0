"""A small Hugging Face Hub for tests and demos, for the unmodified clients of huggingface_hub, datasets,
transformers and evaluate.

In a test::

    with HubServer(tmp_path / "hub") as hub:
        environment = client_environment(hub, tmp_path / "home")
        subprocess.run([sys.executable, "script.py"], env=environment, check=True)
        assert hub.read_file("dataset", "alice/maze", "README.md") == b"..."

From the command line::

    python tests/hub_server.py --port 8099 --root hub_data

Both ways of uploading work: classic LFS (clients with ``HF_HUB_DISABLE_XET=1``) and Xet (the default). The
tokens are in :data:`DEFAULT_TOKENS`.

Faults, given to :meth:`HubServer.faults` or posted to ``/_control``, are a list of objects with the keys
below. A request is hit by the first one that matches it and has hits left:

    match: regular expression searched in "METHOD /path" (percent-decoded); required.
    times: how many requests it hits (default 1).
    skip: how many matching requests pass before (default 0).
    delay: seconds to wait first.
    status: answer with this status, before any work is done. With ``"after": true`` the work is done first,
        and only its answer is lost.
    message, code, headers: text, ``X-Error-Code`` and further headers of that answer.
    retry_after: value of its ``Retry-After`` header.
    cut: do the work, but send only this many bytes of the answer's body, then close the connection.

``POST /_control`` takes a JSON object with, each optional, ``faults``, ``clear_log`` (bool) and ``settings``
(``{"type", "id"}`` and any of ``gated``, ``private``, ``granted``). It answers with the faults left and the
log of requests (before it was cleared), as ``GET /_control`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import fnmatch
import hashlib
import html
import json
import os
import re
import signal
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

import uvicorn
import yaml
from hub_store import (
    MAIN,
    Commit,
    Discussion,
    HubError,
    Repository,
    Store,
    User,
    git_object_id,
    lfs_pointer,
    write_atomically,
)
from hub_xet import CAS_PREFIX, XetStorage
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response

DEFAULT_TOKENS: dict[str, dict[str, Any]] = {
    "hf_alice": {"name": "alice", "orgs": ["acme", "lmrl"], "role": "write"},
    "hf_alice_ro": {"name": "alice", "orgs": ["acme", "lmrl"], "role": "read"},
    "hf_bob": {"name": "bob", "orgs": [], "role": "write"},
}
REGULAR_MAX_BYTES = 10 * 1024 * 1024
MULTIPART_OVER_BYTES = 64 * 1024 * 1024
_LARGE_FILE = re.compile(
    r"\.(7z|arrow|bin|bz2|ckpt|ftz|gguf|gz|h5|joblib|model|msgpack|npy|npz|onnx|parquet|pb|pickle|pkl|pt|pth"
    r"|rar|safetensors|tar|tflite|tgz|wasm|xz|zip|zst)$"
)
_TYPE_OF = {"models": "model", "datasets": "dataset", "spaces": "space", "": "model"}
_FRONT_MATTER = re.compile(r"\s*---\r?\n(.*?)\r?\n---", re.DOTALL)


@dataclass
class Call:
    """One request on its way through a handler.

    Attributes:
        request: The request.
        user: Who sent it, or None.
        parts: Named groups of the route, percent-decoded; absent ones are empty.
        target: The repository of routes below one; the user may see it.
    """

    request: Request
    user: User | None
    parts: dict[str, str]
    target: Repository | None = None

    @property
    def repository(self) -> Repository:
        """The repository, on routes below one."""
        assert self.target is not None, "this route has no repository"
        return self.target

    @property
    def signed_in_user(self) -> User:
        """The user; 401 for nobody."""
        if self.user is None:
            raise HubError(401, "Invalid username or password.")
        return self.user

    @property
    def revision(self) -> str:
        """Revision of the route, by default the main branch."""
        return self.parts.get("revision") or MAIN

    def flag(self, name: str) -> bool:
        """Value of a yes/no query parameter."""
        return self.request.query_params.get(name, "").lower() in ("true", "1")

    async def json(self) -> dict[str, Any]:
        """Body as a JSON object; empty bodies give an empty one."""
        body = await self.request.body()
        try:
            value = json.loads(body) if body else {}
        except ValueError as error:
            raise HubError(400, "Invalid JSON") from error
        if not isinstance(value, dict):
            raise HubError(400, "Expected a JSON object")
        return value


Handler = Callable[["HubApplication", Call], Awaitable[Response]]
_ROUTES: list[tuple[re.Pattern[str], tuple[str, ...], Handler]] = []
_API = r"/api/(?P<types>models|datasets|spaces)/(?P<id>[^/]+/[^/]+)"
_WEB = r"/(?!api/)(?:(?P<types>datasets|spaces)/)?(?P<id>[^/]+/[^/]+)"


def route(methods: str, pattern: str) -> Callable[[Handler], Handler]:
    """Register a handler for "GET POST ..." and a regular expression of the raw path.

    The raw path is used since revisions and file names contain quoted slashes (``refs%2Fpr%2F1``). Routes are
    tried in the order of the source.
    """

    def register(handler: Handler) -> Handler:
        _ROUTES.append((re.compile(pattern), tuple(methods.split()), handler))
        return handler

    return register


class HubApplication:
    """ASGI application of the Hub.

    Args:
        store: State.
        url: Base URL under which clients reach the application.
    """

    def __init__(self, store: Store, url: str):
        self.store = store
        self.url = url
        self.xet = XetStorage(store)
        self.faults: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []
        self.multipart_over = MULTIPART_OVER_BYTES

    # ---- dispatch

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request, with faults and an entry in the log."""
        request = Request(scope, receive)
        raw_path = scope["raw_path"].decode().split("?")[0]
        if raw_path == "/_control":
            await (await self._control(request))(scope, receive, send)
            return
        entry: dict[str, Any] = {
            "method": request.method,
            "path": unquote(raw_path),
            "query": request.url.query,
            "range": request.headers.get("range"),
            "authorized": "authorization" in request.headers,
            "user_agent": request.headers.get("user-agent", ""),
            "status": None,
            "fault": False,
        }
        self.log.append(entry)
        fault = self._next_fault(f"{request.method} {entry['path']}")
        entry["fault"] = fault is not None
        try:
            response = await self._answer_with_fault(request, raw_path, fault or {})
        except HubError as error:
            response = self._error_response(error)
        except Exception as error:
            # A defect of this module or a malformed request: say so here and to the client.
            traceback.print_exc()
            response = self._error_response(HubError(500, f"Internal error: {error!r}"))
        entry["status"] = response.status_code
        response.headers["X-Request-Id"] = f"Root=1-{uuid.uuid4().hex}"
        if fault and "cut" in fault:
            send = _cut_after(send, fault["cut"])
        await response(scope, receive, send)

    def _next_fault(self, line: str) -> dict[str, Any] | None:
        for fault in self.faults:
            if not re.search(fault["match"], line) or fault.get("times", 1) <= 0:
                continue
            if fault.get("skip", 0) > 0:
                fault["skip"] -= 1
                continue
            fault["times"] = fault.get("times", 1) - 1
            return fault
        return None

    async def _answer_with_fault(self, request: Request, raw_path: str, fault: dict[str, Any]) -> Response:
        if "delay" in fault:
            await asyncio.sleep(fault["delay"])
        if "status" not in fault:
            return await self._dispatch(request, raw_path)
        if fault.get("after"):
            await self._dispatch(request, raw_path)
        headers = dict(fault.get("headers", {}))
        if "retry_after" in fault:
            headers["Retry-After"] = str(fault["retry_after"])
        raise HubError(fault["status"], fault.get("message", "Injected fault"), fault.get("code"), headers)

    async def _dispatch(self, request: Request, raw_path: str) -> Response:
        if raw_path.startswith(CAS_PREFIX + "/"):
            return await self.xet.handle(request, raw_path.removeprefix(CAS_PREFIX), self.url)
        user = self.store.user_of(request.headers.get("authorization"))
        for pattern, methods, handler in _ROUTES:
            found = pattern.fullmatch(raw_path)
            if found is None or request.method not in methods:
                continue
            parts = {name: unquote(value or "") for name, value in found.groupdict().items()}
            call = Call(request, user, parts)
            if parts.get("id"):
                try:
                    call.target = self.store.find(user, _TYPE_OF[parts["types"]], parts["id"])
                except HubError as error:
                    if moved_to := error.headers.pop("X-Moved-To", None):
                        old, query = found["id"], request.url.query
                        location = raw_path.replace(old, moved_to, 1) + (f"?{query}" if query else "")
                        error.headers["Location"] = location
                    raise
            return await handler(self, call)
        if re.match(
            r"/api/(models|datasets|spaces)/[^/]+$|/[^/]+/resolve/|/(datasets|spaces)/[^/]+/resolve/",
            raw_path,
        ):
            # Names without a namespace ("gpt2"): this Hub has none.
            status = 401 if user is None else 404
            raise HubError(status, "Repository not found", "RepoNotFound")
        raise HubError(404, f"No such endpoint: {request.method} {raw_path}")

    @staticmethod
    def _error_response(error: HubError) -> Response:
        headers = dict(error.headers)
        if error.code:
            headers["X-Error-Code"] = error.code
        # Header values are latin-1 without line breaks; messages may quote anything.
        headers["X-Error-Message"] = " ".join(error.message.encode("ascii", "replace").decode().split())
        return JSONResponse(error.body or {"error": error.message}, error.status, headers)

    async def _control(self, request: Request) -> Response:
        log = self.log
        if request.method == "POST":
            body = await request.json()
            if "faults" in body:
                self.faults = body["faults"]
            if body.get("clear_log"):
                self.log = []
            if settings := body.get("settings"):
                repository = self.store.repositories[settings.pop("type"), settings.pop("id")]
                change_settings(self.store, repository, **settings)
        return JSONResponse({"log": log, "faults": self.faults})

    # ---- account and repositories

    @route("GET", "/api/whoami-v2")
    async def whoami(self, call: Call) -> Response:
        """Tell who a token belongs to."""
        user = call.signed_in_user
        return JSONResponse(
            {
                "type": "user",
                "id": user.name,
                "name": user.name,
                "fullname": user.name.title(),
                "email": None,
                "emailVerified": True,
                "isPro": False,
                "orgs": [{"type": "org", "id": name, "name": name, "fullname": name} for name in user.orgs],
                "auth": {"type": "access_token", "accessToken": {"displayName": "token", "role": user.role}},
            }
        )

    @route("GET", "/api/agent-harnesses")
    async def agent_harnesses(self, call: Call) -> Response:
        """An empty registry; huggingface_hub asks for it when it looks for the program that runs it."""
        return JSONResponse({"standardEnvVars": [], "harnesses": {}})

    @route("POST", "/api/repos/create")
    async def create(self, call: Call) -> Response:
        """Create a repository; 409 with its URL if it exists."""
        body = await call.json()
        repository = self.store.create(
            call.user,
            body.get("type") or "model",
            body.get("organization"),
            body.get("name", ""),
            private=body.get("visibility") == "private" or bool(body.get("private")),
            sdk=body.get("sdk"),
            base_url=self.url,
        )
        return JSONResponse(
            {"url": self.url + repository.web_path, "name": repository.id, "id": _object_id(repository)}
        )

    @route("DELETE", "/api/repos/delete")
    async def delete(self, call: Call) -> Response:
        """Delete a repository."""
        body = await call.json()
        namespace = body.get("organization") or (call.user.name if call.user else "")
        repository = self.store.find(call.user, body.get("type") or "model", f"{namespace}/{body.get('name')}")
        self.store.require_write(call.user, repository)
        self.store.delete(repository)
        return PlainTextResponse("OK")

    @route("POST", "/api/repos/move")
    async def move(self, call: Call) -> Response:
        """Rename a repository."""
        body = await call.json()
        repository = self.store.find(call.user, body.get("type") or "model", body["fromRepo"])
        self.store.require_write(call.user, repository)
        self.store.move(call.signed_in_user, repository, body["toRepo"])
        return PlainTextResponse("OK")

    @route("PUT", _API + "/settings")
    async def settings(self, call: Call) -> Response:
        """Change visibility or gating."""
        body = await call.json()
        self.store.require_write(call.user, call.repository)
        changes = {"gated": body["gated"]} if "gated" in body else {}
        if "visibility" in body or "private" in body:
            changes["private"] = body.get("visibility") == "private" or bool(body.get("private"))
        change_settings(self.store, call.repository, **changes)
        return JSONResponse({"private": call.repository.private, "gated": call.repository.gated})

    @route("POST", r"/api/(?P<types>spaces)/(?P<id>[^/]+/[^/]+)/secrets")
    async def secret(self, call: Call) -> Response:
        """Set a secret of a Space, which nobody can read again."""
        body = await call.json()
        self.store.require_write(call.user, call.repository)
        with call.repository.lock:
            call.repository.secrets[body["key"]] = body["value"]
            self.store.save(call.repository)
        return JSONResponse([])

    @route("GET", _API + "/auth-check(?P<write>/write)?")
    async def auth_check(self, call: Call) -> Response:
        """Answer 200 if the user may read (or write) the repository."""
        self.store.require_files(call.user, call.repository)
        if call.parts["write"]:
            self.store.require_write(call.user, call.repository)
        return PlainTextResponse("OK")

    @route("GET", "/api/(?P<types>models|datasets|spaces)")
    async def listing(self, call: Call) -> Response:
        """List repositories by author, search text and tags."""
        query = call.request.query_params
        found = []
        for repository in self._visible(call.user, _TYPE_OF[call.parts["types"]]):
            card = self._card(repository, repository.commit_at(MAIN))
            tags = _card_tags(card)
            if query.get("author") not in (None, repository.namespace):
                continue
            if query.get("search", "").lower() not in repository.id.lower():
                continue
            if any(tag not in tags for tag in query.getlist("filter")):
                continue
            found.append(self._summary(repository, repository.commit_at(MAIN), card))
        return JSONResponse(found[: int(query.get("limit", 1000))])

    @route("GET", _API + "(?:/revision/(?P<revision>.+))?")
    async def info(self, call: Call) -> Response:
        """Describe a repository at a revision."""
        repository = call.repository
        commit = repository.commit_at(call.revision)
        siblings = []
        for path, file in sorted(commit.files.items()):
            sibling: dict[str, Any] = {"rfilename": path}
            if call.flag("blobs"):
                sibling |= {"size": file.size, "blobId": file.blob_id}
                if file.sha256:
                    size = len(lfs_pointer(file.sha256, file.size))
                    sibling["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": size}
            siblings.append(sibling)
        summary = self._summary(repository, commit, self._card(repository, commit))
        return JSONResponse(summary | {"siblings": siblings})

    def _visible(self, user: User | None, repository_type: str) -> Iterable[Repository]:
        for (kind, _), repository in sorted(self.store.repositories.items()):
            if kind == repository_type and (
                not repository.private or (user is not None and user.is_member(repository.namespace))
            ):
                yield repository

    def _card(self, repository: Repository, commit: Commit) -> dict[str, Any]:
        """Metadata at the top of the README; empty if absent or broken."""
        file = commit.files.get("README.md")
        if file is None:
            return {}
        found = _FRONT_MATTER.match(self.store.blob_path(file.etag).read_text("utf-8", "replace"))
        try:
            card = yaml.safe_load(found[1]) if found else {}
        except yaml.YAMLError:
            card = {}
        # Through JSON once: YAML has dates, which JSON has not.
        return json.loads(json.dumps(card, default=str)) if isinstance(card, dict) else {}

    def _summary(self, repository: Repository, commit: Commit, card: dict[str, Any]) -> dict[str, Any]:
        summary = {
            "_id": _object_id(repository),
            "id": repository.id,
            "author": repository.namespace,
            "sha": commit.sha,
            "lastModified": commit.date,
            "createdAt": repository.created_at,
            "private": repository.private,
            "gated": repository.gated,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": _card_tags(card),
            "cardData": card,
        }
        if repository.type == "model":
            summary |= {
                "modelId": repository.id,
                "library_name": card.get("library_name"),
                "pipeline_tag": card.get("pipeline_tag"),
            }
        if repository.type == "space":
            subdomain = repository.id.replace("/", "-").lower()
            summary |= {"sdk": repository.sdk, "subdomain": subdomain, "host": f"https://{subdomain}.hf.space"}
        return summary

    # ---- trees, history, references

    @route("GET", _API + "/tree/(?P<revision>[^/]+)(?:/(?P<path>.*))?")
    async def tree(self, call: Call) -> Response:
        """List a folder, page by page."""
        commit = call.repository.commit_at(call.revision)
        folder, is_recursive, expand = call.parts["path"], call.flag("recursive"), call.flag("expand")
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        inside = [path for path in commit.files if path.startswith(prefix)]
        if prefix and not inside:
            raise HubError(
                404,
                f'{folder} does not exist on "{call.revision}"',
                "EntryNotFound",
                {"X-Repo-Commit": commit.sha},
            )
        names = set()
        for path in inside:
            steps = path[len(prefix) :].split("/")
            depth = len(steps) if is_recursive else 1
            names |= {prefix + "/".join(steps[:count]) for count in range(1, depth + 1)}
        describe = self._describer(call.repository, commit, expand)
        page, headers = self._page(call, sorted(names), 50 if expand else 1000)
        return JSONResponse([describe(name) for name in page], headers=headers)

    @route("POST", _API + "/paths-info/(?P<revision>[^/]+)")
    async def paths_info(self, call: Call) -> Response:
        """Describe the given files and folders; missing ones are left out."""
        commit = call.repository.commit_at(call.revision)
        if "json" in call.request.headers.get("content-type", ""):
            body = await call.json()
            paths, expand = body["paths"], bool(body.get("expand"))
        else:
            form = parse_qs((await call.request.body()).decode())
            paths, expand = form.get("paths", []), form.get("expand", ["False"])[0].lower() == "true"
        describe = self._describer(call.repository, commit, expand)
        paths = [path.strip("/") for path in paths]
        return JSONResponse(
            [
                describe(path)
                for path in paths
                if path in commit.files or any(name.startswith(path + "/") for name in commit.files)
            ]
        )

    @route("GET", _API + "/commits/(?P<revision>[^/]+)")
    async def commits(self, call: Call) -> Response:
        """List the history of a revision, newest first."""
        history = call.repository.history(call.repository.commit_at(call.revision))
        page, headers = self._page(call, history, 50)
        return JSONResponse(
            [
                {
                    "id": commit.sha,
                    "title": commit.title,
                    "message": commit.message,
                    "date": commit.date,
                    "authors": [{"user": commit.author}],
                }
                for commit in page
            ],
            headers=headers,
        )

    @route("GET", _API + "/refs")
    async def refs(self, call: Call) -> Response:
        """List branches, tags and, on request, pull requests."""
        repository = call.repository
        answer: dict[str, Any] = {"converts": []}
        for key, folder, names in (
            ("branches", "heads", repository.branches),
            ("tags", "tags", repository.tags),
        ):
            answer[key] = [
                {"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": sha}
                for name, sha in sorted(names.items())
            ]
        if call.flag("include_prs"):
            answer["pullRequests"] = [
                {"name": name, "ref": name, "targetCommit": sha}
                for name, sha in sorted(repository.pull_requests.items())
            ]
        return JSONResponse(answer)

    @route("POST DELETE", _API + "/branch/(?P<name>[^/]+)")
    async def branch(self, call: Call) -> Response:
        """Create or delete a branch."""
        return await self._change_reference(call, call.repository.branches, call.parts["name"])

    @route("POST DELETE", _API + "/tag/(?P<revision>[^/]+)")
    async def tag(self, call: Call) -> Response:
        """Tag a revision, or delete the tag of this name."""
        is_new = call.request.method == "POST"
        name = (await call.json()).get("tag", "") if is_new else call.revision
        return await self._change_reference(call, call.repository.tags, name)

    async def _change_reference(self, call: Call, references: dict[str, str], name: str) -> Response:
        repository = call.repository
        self.store.require_write(call.user, repository)
        start = call.parts.get("revision") or (await call.json()).get("startingPoint") or MAIN
        with repository.lock:
            if call.request.method == "DELETE":
                if name not in references:
                    raise HubError(404, f"Invalid rev id: {name}", "RevisionNotFound")
                if references is repository.branches and name == MAIN:
                    raise HubError(403, "Cannot delete the default branch")
                del references[name]
            else:
                if not name or name in references:
                    raise HubError(409 if name else 400, f"Reference already exists: {name}")
                references[name] = repository.commit_at(start).sha
            self.store.save(repository)
        return PlainTextResponse("OK")

    def _describer(self, repository: Repository, commit: Commit, expand: bool) -> Callable[[str], dict[str, Any]]:
        """Return a function that describes a file or folder as the tree API does."""

        def describe(path: str) -> dict[str, Any]:
            file = commit.files.get(path)
            if file is None:
                inside = sorted(
                    (name, entry.etag) for name, entry in commit.files.items() if name.startswith(path + "/")
                )
                last = commit
                item = {
                    "type": "directory",
                    "oid": git_object_id(repr(inside).encode(), "tree"),
                    "size": 0,
                    "path": path,
                }
            else:
                last = repository.last_commit_of(commit, path) if expand else commit
                item = {"type": "file", "oid": file.blob_id, "size": file.size, "path": path}
                if file.sha256:
                    item["lfs"] = {
                        "oid": file.sha256,
                        "size": file.size,
                        "pointerSize": len(lfs_pointer(file.sha256, file.size)),
                    }
                    if xet_hash := self.store.xet_hashes.get(file.sha256):
                        item["xetHash"] = xet_hash
            if expand:
                item["lastCommit"] = {"id": last.sha, "title": last.title, "date": last.date}
            return item

        return describe

    def _page(self, call: Call, items: list[Any], size: int) -> tuple[list[Any], dict[str, str]]:
        """Cut the page that the request asks for; the headers point to the next one."""
        query = call.request.query_params
        start, size = int(query.get("cursor", 0)), min(int(query.get("limit", size)), 1000)
        headers = {}
        if start + size < len(items):
            following = urlencode(dict(query) | {"cursor": start + size})
            path = call.request.scope["raw_path"].decode().split("?")[0]
            headers["Link"] = f'<{self.url}{path}?{following}>; rel="next"'
        return items[start : start + size], headers

    # ---- uploads

    @route("POST", "/api/validate-yaml")
    async def validate_yaml(self, call: Call) -> Response:
        """Check the metadata of a README."""
        found = _FRONT_MATTER.match((await call.json()).get("content", ""))
        if not found:
            warning = {"message": "empty or missing yaml metadata in repo card"}
            return JSONResponse({"errors": [], "warnings": [warning]})
        try:
            yaml.safe_load(found[1])
        except yaml.YAMLError as error:
            return JSONResponse({"errors": [{"message": f"YAML Metadata Error: {error}"}], "warnings": []}, 400)
        return JSONResponse({"errors": [], "warnings": []})

    @route("POST", _API + "/preupload/(?P<revision>[^/]+)")
    async def preupload(self, call: Call) -> Response:
        """Say for each file whether git or LFS keeps it, and what is there now."""
        self.store.require_proposal(call.user, call.repository, call.revision, call.flag("create_pr"))
        body, commit = await call.json(), call.repository.commit_at(call.revision)
        ignored = [line for line in (body.get("gitIgnore") or "").splitlines() if line and line[0] != "#"]
        files = []
        for file in body["files"]:
            path, known = file["path"], commit.files.get(file["path"])
            is_large = is_large_file(path, file["size"], base64.b64decode(file.get("sample") or ""))
            files.append(
                {
                    "path": path,
                    "uploadMode": "lfs" if is_large else "regular",
                    "oid": known and known.etag,
                    "shouldIgnore": any(fnmatch.fnmatch(path, pattern) for pattern in ignored),
                }
            )
        return JSONResponse({"files": files, "commitOid": commit.sha})

    @route("POST", _WEB + r"\.git/info/lfs/objects/batch")
    async def lfs_batch(self, call: Call) -> Response:
        """Say where to upload large files; ones already here get no upload action."""
        # Whoever may open a pull request needs to upload for it. Contents alone change no repository.
        self.store.require_proposal(call.user, call.repository, MAIN, create_pr=True)
        body, objects = await call.json(), []
        for item in body["objects"]:
            oid, size = item["oid"], item["size"]
            answer: dict[str, Any] = {"oid": oid, "size": size}
            if not self.store.has_blob(oid):
                upload: dict[str, Any] = {"href": f"{self.url}/_lfs/{oid}"}
                if "multipart" in body.get("transfers", []) and size > self.multipart_over:
                    count = -(-size // self.multipart_over)
                    parts = {str(number): f"{self.url}/_lfs/{oid}?part={number}" for number in range(1, count + 1)}
                    upload = {
                        "href": f"{self.url}/_lfs/{oid}/complete",
                        "header": {"chunk_size": str(self.multipart_over)} | parts,
                    }
                answer["actions"] = {"upload": upload, "verify": {"href": f"{self.url}/_lfs/verify"}}
            objects.append(answer)
        return JSONResponse({"transfer": "basic", "objects": objects})

    @route("PUT", "/_lfs/(?P<oid>[0-9a-f]{64})")
    async def lfs_put(self, call: Call) -> Response:
        """Receive a large file, or one part of it."""
        oid, part = call.parts["oid"], call.request.query_params.get("part")
        if part is not None and not part.isdigit():
            raise HubError(400, "Invalid part number")
        temporary = self.store.blob_path(f"{uuid.uuid4().hex}.tmp")
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        try:
            with temporary.open("wb") as file:
                async for data in call.request.stream():
                    file.write(data)
                    sha256.update(data)
                    md5.update(data)
            if part is None and sha256.hexdigest() != oid:
                raise HubError(400, "The content does not have this sha256")
            os.replace(temporary, self.store.blob_path(f"{oid}.part{part}" if part else oid))
        finally:
            temporary.unlink(missing_ok=True)
        return Response(headers={"ETag": f'"{md5.hexdigest()}"'})

    @route("POST", "/_lfs/(?P<oid>[0-9a-f]{64})/complete")
    async def lfs_complete(self, call: Call) -> Response:
        """Join the parts of a large file."""
        oid, body = call.parts["oid"], await call.json()
        parts = [self.store.blob_path(f"{oid}.part{int(part['partNumber'])}") for part in body["parts"]]

        def join() -> None:
            temporary, sha256 = self.store.blob_path(f"{uuid.uuid4().hex}.tmp"), hashlib.sha256()
            try:
                with temporary.open("wb") as file:
                    for path in parts:
                        data = path.read_bytes() if path.exists() else b""
                        file.write(data)
                        sha256.update(data)
                if sha256.hexdigest() != oid:
                    raise HubError(400, "The parts do not make up a file with this sha256")
                os.replace(temporary, self.store.blob_path(oid))
            finally:
                temporary.unlink(missing_ok=True)
            for path in parts:
                path.unlink(missing_ok=True)

        await run_in_threadpool(join)
        return JSONResponse({})

    @route("POST", "/_lfs/verify")
    async def lfs_verify(self, call: Call) -> Response:
        """Confirm that a large file arrived."""
        body = await call.json()
        path = self.store.blob_path(re.sub(r"[^0-9a-f]", "", body["oid"]))
        if not path.is_file() or path.stat().st_size != body["size"]:
            raise HubError(404, "Object not found")
        return JSONResponse({})

    @route("GET", _API + "/xet-(?P<scope>read|write)-token/(?P<revision>[^/]+)")
    async def xet_token(self, call: Call) -> Response:
        """Hand out a token for the content-addressed storage."""
        if call.parts["scope"] == "write":
            self.store.require_proposal(call.user, call.repository, call.revision, call.flag("create_pr"))
        else:
            self.store.require_files(call.user, call.repository)
        return self.xet.issue_token(call.parts["scope"], self.url)

    @route("POST", _API + "/commit/(?P<revision>[^/]+)")
    async def commit(self, call: Call) -> Response:
        """Make a commit, on a branch or as a new pull request."""
        repository, create_pr = call.repository, call.flag("create_pr")
        self.store.require_proposal(call.user, repository, call.revision, create_pr)
        try:
            operations = [json.loads(line) for line in (await call.request.body()).splitlines() if line.strip()]
        except ValueError as error:
            raise HubError(400, "Invalid JSON") from error
        commit, pull_request = await run_in_threadpool(
            self.store.commit, repository, call.revision, operations, call.signed_in_user, create_pr
        )
        page = self.url + repository.web_path
        answer = {
            "success": True,
            "commitOid": commit.sha,
            "commitUrl": f"{page}/commit/{commit.sha}",
            "hookOutput": "",
        }
        if pull_request is not None:
            answer["pullRequestUrl"] = f"{page}/discussions/{pull_request.number}"
        return JSONResponse(answer)

    # ---- downloads

    @route("GET HEAD", _WEB + "/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
    async def resolve(self, call: Call) -> Response:
        """Send a file or a range of it."""
        repository = call.repository
        commit = repository.commit_at(call.revision)
        self.store.require_files(call.user, repository)
        file = commit.files.get(call.parts["path"])
        if file is None:
            raise HubError(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": commit.sha})
        headers = {"ETag": f'"{file.etag}"', "X-Repo-Commit": commit.sha}
        if file.sha256:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
            if xet_hash := self.store.xet_hashes.get(file.sha256):
                refresh = f"{self.url}/api/{repository.type}s/{repository.id}/xet-read-token/{commit.sha}"
                headers |= {"X-Xet-Hash": xet_hash, "Link": f'<{refresh}>; rel="xet-auth"'}
        path = self.store.blob_path(file.etag)
        return FileResponse(path, headers=headers, media_type="application/octet-stream")

    # ---- discussions and pull requests

    @route("GET POST", _API + "/discussions")
    async def discussions(self, call: Call) -> Response:
        """List discussions, or open one."""
        repository, query = call.repository, call.request.query_params
        if call.request.method == "POST":
            self.store.require_proposal(call.user, repository, MAIN, create_pr=True)
            body = await call.json()
            discussion = self.store.open_discussion(
                repository,
                call.signed_in_user,
                body["title"],
                body.get("description", ""),
                bool(body.get("pullRequest")),
            )
            return JSONResponse(self._discussion_json(repository, discussion))
        wanted_kind = {"pull_request": True, "discussion": False}.get(query.get("type", "all"))
        found = [
            item
            for item in reversed(repository.discussions)
            if wanted_kind in (None, item.is_pull_request)
            and query.get("author") in (None, item.author)
            and (
                query.get("status", "all") == "all" or (query["status"] == "open") == (item.status in ("open", "draft"))
            )
        ]
        start = int(query.get("p", 0)) * 50
        page = [self._discussion_json(repository, item) for item in found[start : start + 50]]
        return JSONResponse({"discussions": page, "count": len(found), "start": start})

    @route("GET", _API + r"/discussions/(?P<number>\d+)")
    async def discussion(self, call: Call) -> Response:
        """Show a discussion with its events."""
        item = call.repository.discussion(int(call.parts["number"]))
        return JSONResponse(self._discussion_json(call.repository, item))

    @route("POST", _API + r"/discussions/(?P<number>\d+)/(?P<action>comment|status|title|merge)")
    async def change_discussion(self, call: Call) -> Response:
        """Comment on, close, reopen, retitle or merge a discussion."""
        repository, action, body = call.repository, call.parts["action"], await call.json()
        item = repository.discussion(int(call.parts["number"]))
        user = call.signed_in_user
        if user.role != "write" or action == "merge" or (action != "comment" and item.author != user.name):
            self.store.require_write(user, repository)
        if action == "merge":
            await run_in_threadpool(self.store.merge, repository, item, user)
            return JSONResponse({})
        with repository.lock:
            if action == "comment":
                data = {"edited": False, "hidden": False, "latest": {"raw": body["comment"]}}
                answer = {"newMessage": item.add_event("comment", user.name, data)}
            elif action == "status":
                item.status = body["status"]
                data = {"status": body["status"]}
                answer = {"newStatus": item.add_event("status-change", user.name, data)}
            else:
                data = {"from": item.title, "to": body["title"]}
                item.title = body["title"]
                answer = {"newTitle": item.add_event("title-change", user.name, data)}
            self.store.save(repository)
        return JSONResponse(answer)

    def _discussion_json(self, repository: Repository, item: Discussion) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "num": item.number,
            "title": item.title,
            "author": {"name": item.author},
            "createdAt": item.created_at,
            "status": item.status,
            "isPullRequest": item.is_pull_request,
            "events": item.events,
            "diff": "",
            "repo": {"name": repository.id, "type": repository.type},
        }
        if item.is_pull_request:
            answer |= {"filesWithConflicts": [], "changes": {"base": f"refs/heads/{MAIN}"}}
            if item.merge_commit:
                answer["changes"]["mergeCommitId"] = item.merge_commit
        return answer

    # ---- pages for people

    @route("GET", "/")
    async def home(self, call: Call) -> Response:
        """List the repositories."""
        sections = []
        for kind in ("dataset", "model", "space"):
            links = [(item.web_path, item.id) for item in self._visible(call.user, kind)]
            sections.append(f"<h2>{kind.title()}s</h2>{_link_list(links)}")
        return _html_page("Hub", "".join(sections))

    @route("GET", _WEB + r"(?:/(?:tree|commit)/(?P<revision>[^/]+)|/discussions/\d+)?")
    async def repository_page(self, call: Call) -> Response:
        """List the files and references of a repository."""
        repository = call.repository
        commit = repository.commit_at(call.revision)
        files = [
            (f"{repository.web_path}/resolve/{commit.sha}/{quote(path)}", f"{path} ({file.size} bytes)")
            for path, file in sorted(commit.files.items())
        ]
        references = [*repository.branches, *repository.tags, *repository.pull_requests]
        revisions = [(f"{repository.web_path}/tree/{quote(name, safe='')}", name) for name in references]
        note = html.escape(f"Commit {commit.sha}: {commit.title} ({commit.author}, {commit.date})")
        body = f"<p>{note}</p>{_link_list(files)}<h2>Revisions</h2>{_link_list(revisions)}"
        return _html_page(f"{repository.type} {repository.id}", body)


def is_large_file(path: str, size: int, sample: bytes) -> bool:
    """Whether LFS keeps a file: by its suffix, its size, or binary content."""
    return size > REGULAR_MAX_BYTES or bool(_LARGE_FILE.search(path)) or b"\0" in sample


def _link_list(links: list[tuple[str, str]]) -> str:
    items = (f'<li><a href="{html.escape(target)}">{html.escape(text)}</a></li>' for target, text in links)
    return f"<ul>{''.join(items)}</ul>"


def _html_page(title: str, body: str) -> Response:
    title = html.escape(title)
    return HTMLResponse(f'<!doctype html><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>{body}')


def _object_id(repository: Repository) -> str:
    """A stable id that looks like the real Hub's."""
    return hashlib.sha256(f"{repository.type} {repository.created_at}".encode()).hexdigest()[:24]


def _card_tags(card: dict[str, Any]) -> list[str]:
    tags = card.get("tags")
    return [str(tag) for tag in tags] if isinstance(tags, list) else []


def _cut_after(send: Any, limit: int) -> Any:
    """Wrap an ASGI ``send`` so that it breaks the connection after ``limit`` bytes of the body."""
    sent = 0

    async def cutting_send(message: dict[str, Any]) -> None:
        nonlocal sent
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            if sent + len(body) >= limit:
                await send({**message, "body": body[: limit - sent], "more_body": True})
                # uvicorn closes the connection when the application fails in the middle of an answer.
                raise ConnectionAbortedError("injected fault: answer cut")
            sent += len(body)
        await send(message)

    return cutting_send


def change_settings(store: Store, repository: Repository, **changes: Any) -> None:
    """Set ``private``, ``gated`` ("auto", "manual" or False) or ``granted`` (user names) of a repository."""
    with repository.lock:
        for name, value in changes.items():
            if name not in ("private", "gated", "granted"):
                raise HubError(400, f"Unknown setting: {name}")
            setattr(repository, name, value)
        store.save(repository)


class HubServer:
    """The Hub on a port of this machine, in a daemon thread; use it as a context manager.

    Args:
        root: Folder for the state, which a later server can go on with.
        port: Port on 127.0.0.1; 0 picks a free one.
        tokens: Users by token, see :data:`DEFAULT_TOKENS`.
        multipart_over: Size in bytes above which LFS uploads come in parts of this size.

    Attributes:
        url: Base URL, to be used as HF_ENDPOINT.
        port: The port.
        store: The state.
        app: The ASGI application.
    """

    def __init__(
        self,
        root: Path,
        port: int = 0,
        tokens: dict[str, dict[str, Any]] = DEFAULT_TOKENS,
        multipart_over: int = MULTIPART_OVER_BYTES,
    ):
        # Bound here, so that the port is known and taken before the thread starts.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            self.port: int = self._socket.getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}"
            self.store = Store(Path(root), tokens)
            self.app = HubApplication(self.store, self.url)
        except BaseException:
            self._socket.close()
            raise
        self.app.multipart_over = multipart_over
        # Cut connections are failures to uvicorn, which would print their tracebacks below "critical".
        config = uvicorn.Config(self.app, log_level="critical", lifespan="off", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="hub-server", daemon=True
        )

    def __enter__(self) -> HubServer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start serving; returns when requests are answered."""
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the Hub did not start")
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop serving and free the port."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()

    def faults(self, rules: list[dict[str, Any]]) -> None:
        """Replace the injected faults; the module's documentation describes the rules."""
        self.app.faults = [dict(rule) for rule in rules]

    def log(self) -> list[dict[str, Any]]:
        """Requests so far: method, path, query, range, authorized, user_agent, status, fault."""
        return [dict(entry) for entry in self.app.log]

    def clear_log(self) -> None:
        """Forget the requests so far."""
        self.app.log = []

    def requests(self, pattern: str) -> list[dict[str, Any]]:
        """Entries of the log whose "METHOD /path" has a match of the regular expression."""
        return [entry for entry in self.log() if re.search(pattern, f"{entry['method']} {entry['path']}")]

    def repository(self, repository_type: str, repository_id: str) -> Repository:
        """A repository's state, regardless of rights; KeyError if it does not exist."""
        return self.store.repositories[repository_type, repository_id]

    def read_file(self, repository_type: str, repository_id: str, path: str, revision: str = MAIN) -> bytes:
        """Content of a file of a repository, regardless of rights."""
        return self.store.read_file(self.repository(repository_type, repository_id), path, revision)

    def upload(self, repository_type: str, repository_id: str, files: dict[str, bytes], private: bool = False) -> str:
        """Put files into a repository, which is made if missing, regardless of rights.

        Args:
            repository_type: "model", "dataset" or "space".
            repository_id: "namespace/name".
            files: Content per path.
            private: Whether a new repository is private.

        Returns:
            The sha of the commit.
        """
        namespace, name = repository_id.split("/")
        owner = User(namespace)
        repository = self.store.repositories.get((repository_type, repository_id))
        if repository is None:
            repository = self.store.create(owner, repository_type, namespace, name, private=private)
        operations: list[dict[str, Any]] = [{"key": "header", "value": {"summary": "Add files"}}]
        for path, content in files.items():
            if is_large_file(path, len(content), content):
                sha256 = hashlib.sha256(content).hexdigest()
                write_atomically(self.store.blob_path(sha256), content)
                operations.append({"key": "lfsFile", "value": {"path": path, "oid": sha256}})
            else:
                encoded = base64.b64encode(content).decode()
                value = {"path": path, "content": encoded, "encoding": "base64"}
                operations.append({"key": "file", "value": value})
        return self.store.commit(repository, MAIN, operations, owner)[0].sha

    def configure(self, repository_type: str, repository_id: str, **changes: Any) -> None:
        """Change ``private``, ``gated`` or ``granted`` of a repository, regardless of rights."""
        change_settings(self.store, self.repository(repository_type, repository_id), **changes)


def client_environment(
    hub: HubServer | str, home: Path, token: str | None = "hf_alice", xet: bool = False
) -> dict[str, str]:
    """Environment for a subprocess whose Hugging Face clients talk to the test Hub.

    Args:
        hub: The server, or its URL.
        home: HF_HOME. Use a fresh one per server: hf_xet remembers by URL what it uploaded.
        token: Token of the user, or None for nobody.
        xet: Whether large files are uploaded through Xet instead of LFS.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "TRANSFORMERS_"))
    }
    environment |= {
        "HF_ENDPOINT": hub if isinstance(hub, str) else hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    if token is not None:
        environment["HF_TOKEN"] = token
    if not xet:
        environment["HF_HUB_DISABLE_XET"] = "1"
    return environment


def main(arguments: list[str] | None = None) -> int:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="A small Hugging Face Hub for tests and demos.")
    parser.add_argument("--port", type=int, default=8099, help="port on 127.0.0.1; 0 picks a free one")
    parser.add_argument("--root", type=Path, default=Path("hub_data"), help="folder for the state")
    parser.add_argument("--port-file", type=Path, help="write the port to this file when ready")
    parser.add_argument(
        "--multipart-over",
        type=int,
        default=MULTIPART_OVER_BYTES,
        help="size in bytes above which LFS uploads come in parts of this size",
    )
    options = parser.parse_args(arguments)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with HubServer(options.root, options.port, multipart_over=options.multipart_over) as hub:
        if options.port_file:
            write_atomically(options.port_file, f"{hub.port}\n".encode())
        print(f"Hub at {hub.url}, state in {options.root}", flush=True)
        stopped.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
