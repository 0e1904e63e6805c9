"""`flower-superlink` that exposes only the Fleet API to other machines.

Flower serves three APIs on one port: Fleet (for sites, protected by their keys), Control
(start and stop runs, register keys: open to anybody) and Runtime (for apps). Only requests
from this machine get through to the last two; to the first, where a file of keys is given,
only those of a site whose key is in it. No request may bring more than `most` bytes.

Run as `python superlink.py PARENT MOST KEYS ...` with flower-superlink's own arguments (KEYS
is the file, or `-`); it ends with the process PARENT.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET, HEALTH = "/v1/fleet/", "/health"
KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.encode()


class Gate:
    """Middleware: which requests are let in, and how large they may be."""

    def __init__(self, app: App, most: int, keys: frozenset[bytes] | None) -> None:
        self.app, self.most, self.keys = app, most, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            status = self.refusal(scope)
            if status:
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self.app(scope, receive, send)

    def refusal(self, scope: Scope) -> int:
        """The HTTP status of a refusal; 0 lets the request in."""
        headers = dict(scope["headers"])
        if scope["path"].startswith(FLEET):
            if self.keys is not None and headers.get(KEY_HEADER) not in self.keys:
                return 401
        elif scope["path"] != HEALTH and not from_here(scope):
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


def main() -> None:
    from parent import end_with  # type: ignore[import-not-found]  # beside this script

    _, parent, most, file, *arguments = sys.argv
    end_with(int(parent))
    keys = None if file == "-" else frozenset(Path(file).read_bytes().split())
    extensions.get_middleware = lambda: (Middleware(Gate, most=int(most), keys=keys),)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


if __name__ == "__main__":
    main()
