"""Work that Flower has for an app, done in this process instead of a new one per message.

A SuperLink or SuperNode started with `--isolation process` leaves running apps to any process
that has its secret. We take the task and run our own app, whatever app bundle Flower sends
along: code that came over the network is never loaded, and torch is imported once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from fedkin.engines.flower.private import (
    AcquireTaskRequest,
    HttpGrid,
    ProtobufCall,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SendTaskHeartbeatRequest,
    SuperExecAuthHttpInterceptor,
)
from fedkin.engines.flower.scripts.gate import SECRET_HEADER, pass_word

HEARTBEAT = 10.0  # seconds


class PassWord:
    """Says the pass word of the gate with every request."""

    def __init__(self, word: str) -> None:
        self.word = word

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers[SECRET_HEADER] = self.word
        return call_next(context)


@dataclass(frozen=True)
class Endpoint:
    """The address of a SuperLink or SuperNode, its secret and its certificate."""

    address: str
    secret: Path
    authority: Path | None = None  # the certificate of its CA; None: no TLS

    def interceptors(self) -> list[ProtobufClientInterceptor]:
        """What every request to it says: Flower's version, and the pass word of its gate."""
        word = PassWord(pass_word(self.secret))
        return [RuntimeVersionHttpInterceptor(component_name="fedkin"), word]

    def let_in(self, grid: HttpGrid) -> None:
        """Let the requests of a grid through the gate."""
        client: Any = grid._runtime_client
        client._interceptors = (PassWord(pass_word(self.secret)), *client._interceptors)

    def client(self, *more: ProtobufClientInterceptor) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            self.address,
            self.authority is None,
            self.authority.read_bytes() if self.authority else None,
            [*self.interceptors(), *more],
        )

    def with_token(self, token: str) -> RuntimeHttpClient:
        return self.client(RuntimeTokenHttpInterceptor(token))

    def for_tasks(self) -> RuntimeHttpClient:
        """A client that is allowed to request tasks."""
        method = "/flwr.proto.Runtime/AcquireTask"
        return self.client(
            SuperExecAuthHttpInterceptor(
                master_secret=self.secret.read_bytes(), protected_methods=frozenset({method})
            )
        )


def acquire(client: RuntimeHttpClient, kind: str) -> tuple[str, int] | None:
    """The token and run of a waiting task of this kind, if there is one."""
    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return (found.token, found.task.run_id) if found.HasField("task") and found.token else None


@contextmanager
def heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Send heartbeats for a task until the block ends."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT):
            with suppress(httpx.HTTPError):  # if one is lost, the next may arrive
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, daemon=True, name="task-heartbeat")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
