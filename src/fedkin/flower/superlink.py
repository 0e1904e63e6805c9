"""`flower-superlink` that lets strangers reach nothing but the Fleet API.

Flower serves three APIs on one port: Fleet (for sites, protected by their keys), Control
(start and stop runs, register keys: open to anybody) and Runtime (for apps). Only requests
from this machine get through to the last two, and no request may bring more than `most` bytes.

Run as `python -P superlink.py PARENT MOST ...` with flower-superlink's own
arguments; it ends with the process PARENT.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FOR_ALL = ("/v1/fleet/", "/health")


class Gate:
    """Middleware: who may come in, and with how much."""

    def __init__(self, app: App, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            status = self.refusal(scope)
            if status:
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self.app(scope, receive, send)

    def refusal(self, scope: Scope) -> int:
        """The HTTP status of a refusal; 0: come in."""
        if not scope["path"].startswith(FOR_ALL) and not from_here(scope):
            return 403
        length = dict(scope["headers"]).get(b"content-length")
        if scope["method"] in ("POST", "PUT", "PATCH") and length is None:
            return 411
        return 413 if int(length or 0) > self.most else 0


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
    _, parent, most, *arguments = sys.argv
    start_parent_process_monitor(int(parent))
    extensions.get_middleware = lambda: (Middleware(Gate, most=int(most)),)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


if __name__ == "__main__":
    main()
