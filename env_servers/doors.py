"""Who may come in: tokens, pages of other sites, and how a client is turned away."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket


class Tokens:
    """Bearer tokens, one of which every client has to have; without any, none is needed."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = [token.encode() for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def know(self, token: bytes | None) -> bool:
        """Whether the token is one of them, in a time that does not depend on it."""
        if not self._tokens:
            return True
        found = False
        for own in self._tokens:
            found |= hmac.compare_digest(own, token or b"")
        return found


def bearer(headers: Mapping[str, str]) -> bytes | None:
    """The token of an Authorization header."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" and token.strip() else None


def offered(subprotocols: Sequence[str]) -> bytes | None:
    """The token that a page offers as a subprotocol, `token.<base64url>`, since it cannot set headers."""
    for one in subprotocols:
        if one.startswith("token."):
            text = one.removeprefix("token.")
            with contextlib.suppress(binascii.Error, ValueError):
                return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return None


def named(token: bytes) -> str:
    """A client by its token, in a form that may stand in a log."""
    return "token " + hashlib.sha256(token).hexdigest()[:12]


def is_foreign(socket: WebSocket) -> bool:
    """Whether a browser opened it for a page of another site: websockets know no CORS.

    A proxy may put its own name for this server in place of the host that the browser asked, which it then tells
    apart; a page cannot set that header.
    """
    origin = socket.headers.get("origin")
    if origin is None:
        return False
    told = socket.headers.get("x-forwarded-host", "").partition(",")[0].strip()
    try:
        page = urlsplit(origin).netloc
    except ValueError:
        return True
    return not page or page not in (socket.headers.get("host"), told)


async def deny(socket: WebSocket, status: int, message: str) -> None:
    """Refuse a websocket's handshake by an HTTP status."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    try:
        await socket.send_denial_response(JSONResponse({"detail": message}, status, headers))
    except RuntimeError:  # a server without that extension closes with 403
        await socket.close()
