"""What a SuperLink or SuperNode lets in: which requests, from whom, and how large."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET, HEALTH = "/v1/fleet/", "/health"
KEY_HEADER = b"flwr-public-key"
SECRET_HEADER = "x-fedkin-secret"  # nosec B105: the name of a header


def pass_word(secret: Path) -> str:
    """What a program must say to get past the gate, from the secret file of this start."""
    return hashlib.sha256(b"gate" + secret.read_bytes()).hexdigest()


class KeyList:
    """The keys in a file, read again when it has changed: sites come and go."""

    def __init__(self, path: Path) -> None:
        self.path, self._read_at, self._keys = path, (0, 0), frozenset[bytes]()

    def __contains__(self, key: object) -> bool:
        about = self.path.stat()
        if (about.st_mtime_ns, about.st_ino) != self._read_at:
            self._keys = frozenset(self.path.read_bytes().split())
            self._read_at = (about.st_mtime_ns, about.st_ino)
        return key in self._keys


class Gate:
    """Middleware: which requests are let in, and how large they may be.

    Sites reach the Fleet API, and only with one of the `keys` where there are some. Everything
    else needs the pass word, from this machine too: whoever else has a shell or a tunnel here
    cannot start, stop or read runs. What is refused is refused before its body is read.
    """

    def __init__(
        self, app: App, most: int, keys: KeyList | None, word: str, fleet: bool = True
    ) -> None:
        self.app, self.most, self.keys, self.fleet = app, most, keys, fleet
        self.word = word.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            status = self.refusal(scope)
            if status:
                headers = [(b"connection", b"close")]  # what is still on its way is not read
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
        await self.app(scope, receive, send)

    def refusal(self, scope: Scope) -> int:
        """The HTTP status of a refusal; 0 lets the request in."""
        headers = dict(scope["headers"])
        if self.fleet and scope["path"].startswith(FLEET):
            if self.keys is not None and headers.get(KEY_HEADER) not in self.keys:
                return 401
        elif scope["path"] != HEALTH:
            said = headers.get(SECRET_HEADER.encode(), b"")
            if not from_here(scope) or not hmac.compare_digest(said, self.word):
                return 403
        length = headers.get(b"content-length")
        if scope["method"] in ("POST", "PUT", "PATCH") and length is None:
            return 411
        return 413 if not (length or b"0").isdigit() or int(length or 0) > self.most else 0


def from_here(scope: Scope) -> bool:
    """Whether the peer is this machine: loopback, or the address it speaks to is its own."""
    peer, own = scope.get("client"), scope.get("server")
    if not peer:
        return False
    try:
        return ipaddress.ip_address(peer[0]).is_loopback or bool(own and own[0] == peer[0])
    except ValueError:
        return False
