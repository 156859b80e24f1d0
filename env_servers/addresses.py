"""Where environment servers are, what they say of themselves over HTTP, and what can go wrong with them."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from env_servers import wire
from env_servers.task import EpisodeError

TOKEN, HUB_TOKEN, SPACES = "LMRL_TOKEN", "HF_TOKEN", ".hf.space"
LONGEST_REPLY = 1 << 24  # bytes
MARGIN = 10.0  # seconds that a reply may take beyond the server's own limits


# What can go wrong ---------------------------------------------------------------------------------------------------


class ServerUnreachable(EpisodeError):
    """Nobody answers at the address, or not as an environment server does."""


class ServerBusy(EpisodeError):
    """The server has no free session.

    Attributes:
        retry_after: Seconds after which it may have one; None if it did not say.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ReplyTimeout(EpisodeError):
    """The server took too long to answer."""


class ConnectionLost(EpisodeError):
    """The connection ended, and the session with it."""


class ServerRefused(EpisodeError):
    """The server will not play: the token is wrong, it plays another version, or its environment failed."""


class WrongReply(EpisodeError):
    """What the server sent is no answer to what it was asked."""


# Where a server is, and what it tells of itself ----------------------------------------------------------------------


class Address(NamedTuple):
    """A server's address over HTTP, and that of its websocket."""

    http: str
    websocket: str
    host: str


def parse_addresses(urls: str | Sequence[str]) -> list[Address]:
    """Addresses from URLs (a text with commas, or several texts): `ws`, `wss`, `http` or `https`, with a path or not.

    Raises:
        ValueError: There is none, or one is no such URL.
    """
    given = urls.split(",") if isinstance(urls, str) else urls
    found = [_parse_address(url.strip()) for url in given if url.strip()]
    if not found:
        raise ValueError("no server is named; give its URL, such as ws://127.0.0.1:8000, or several with commas")
    return list(dict.fromkeys(found))


def _parse_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # which may raise, too
    except ValueError:
        host, parts = None, urlsplit("")
    secure = {"ws": "", "http": "", "wss": "s", "https": "s"}.get(parts.scheme)
    if parts.username is not None or parts.query or parts.fragment:  # it may be a secret: it is not shown
        raise ValueError(
            f"the server's URL (at {host}) has a user, a query or a fragment; give the address alone, and a token in "
            f"the environment variable {TOKEN}"
        )
    if host is None or secure is None:
        raise ValueError(
            f"the server is {'no URL' if '@' in url else wire.short(url)}; give one such as ws://127.0.0.1:8000, "
            "http://127.0.0.1:8000/wordle or https://user-space.hf.space"
        )
    place = parts.netloc + parts.path.rstrip("/").removesuffix("/ws").rstrip("/")
    return Address(f"http{secure}://{place}", f"ws{secure}://{place}/ws", host)


def find_token(address: Address, given: str | None) -> str | None:
    """The token for a server: the one given, or from the environment.

    Raises:
        ValueError: A header cannot hold it.
    """
    token = given or os.environ.get(TOKEN) or (os.environ.get(HUB_TOKEN) if address.host.endswith(SPACES) else None)
    if token and (not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError(f"the token for {address.http} has a character that no token has, such as a space or newline")
    return token or None


class Told(NamedTuple):
    """What a server says of itself.

    Attributes:
        name: Its name and version.
        tasks: Of a server of ours, what it says of each task that it serves; None of another one.
        field: Field of an action that takes the text.
        reset_seconds: Most time for the answer to a reset, the server's waiting for a free session included.
        step_seconds: Most time for the answer to a step.
    """

    name: str
    tasks: Mapping[str, Any] | None
    field: str
    reset_seconds: float
    step_seconds: float


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token elsewhere."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects())


def ask_over_http(address: Address, route: str, token: str | None, seconds: float) -> Mapping[str, Any]:
    """A JSON object that a server has at a route.

    Raises:
        ServerUnreachable: It does not answer, or cannot now.
        ServerRefused: It refuses the token, or is no environment server.
    """
    request = urllib.request.Request(address.http + route, headers={"Accept": "application/json"})
    if token is not None:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with _opener.open(request, timeout=seconds) as response:
            told = json.loads(response.read(LONGEST_REPLY))
    except urllib.error.HTTPError as error:
        with error:
            raise refusal(address, error.code, token, error.headers.get("Location")) from None
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachable(unreachable(address, error)) from None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise ServerRefused(f"{address.http} is no environment server: {route} gives no JSON object")
    return told


def refusal(address: Address, status: int, token: str | None, location: str | None = None) -> EpisodeError:
    """What an HTTP status other than success means."""
    if status in (401, 403):
        if token is None:
            return ServerRefused(f"{address.http} asks for a token; set the environment variable {TOKEN}")
        return ServerRefused(f"{address.http} does not take the token (HTTP {status}); see {TOKEN}")
    if status == 429 or status >= 500:
        return ServerUnreachable(unreachable(address, f"HTTP {status}"))
    if location is not None:
        return ServerRefused(f"{address.http} sends elsewhere, to {clean(location)}; give that address")
    hint = f" (a private Space asks for {HUB_TOKEN})" if address.host.endswith(SPACES) else ""
    return ServerRefused(f"{address.http} is no environment server: HTTP {status}{hint}; check the address")


def unreachable(address: Address, why: object) -> str:
    if isinstance(why, urllib.error.URLError):
        why = why.reason
    return f"{address.http} cannot be reached ({clean(why) or type(why).__name__}); is a server running there?"


def clean(text: object) -> str:
    """What comes from elsewhere as it may stand in a message: one line of limited length."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())
    return line if len(line) <= 400 else line[:397] + "..."


def read_told(address: Address, metadata: Mapping[str, Any], schema: Mapping[str, Any] | None) -> Told:
    name = clean(f"{metadata.get('name') or 'server'} {metadata.get('version') or ''}")
    ours = metadata.get("lmrl")
    if not isinstance(ours, dict):
        return Told(name, None, _text_field(address, schema or {}), 60.0 + MARGIN, 60.0 + MARGIN)
    if ours.get("protocol") != wire.PROTOCOL:
        raise ServerRefused(
            f"{address.http} speaks protocol {clean(ours.get('protocol'))} and this client {wire.PROTOCOL}; install "
            "the same version of lmrl on both sides"
        )
    step, queue = ours.get("step_seconds", 60.0), ours.get("queue_seconds", 30.0)
    tasks = ours.get("tasks")
    if not isinstance(tasks, dict) or not all(isinstance(one, int | float) for one in (step, queue)):
        raise ServerRefused(f"{address.http} tells of itself what this client does not understand")
    return Told(clean(f"lmrl {metadata.get('version')}"), tasks, "text", step + queue + MARGIN, step + MARGIN)


def _text_field(address: Address, schema: Mapping[str, Any]) -> str:
    """The one field of an action that has to be given, a text."""
    action = schema.get("action")
    action = action if isinstance(action, dict) else {}
    fields = action.get("properties")
    fields = fields if isinstance(fields, dict) else {}
    texts = [name for name, what in fields.items() if isinstance(what, dict) and what.get("type") == "string"]
    required = action.get("required") or texts
    if len(required) != 1 or required[0] not in texts:
        raise ServerRefused(
            f"{address.http} takes actions with the fields {', '.join(map(clean, fields)) or 'unknown'}; this client "
            "gives one text, so there must be one field to fill, a string"
        )
    return str(required[0])
