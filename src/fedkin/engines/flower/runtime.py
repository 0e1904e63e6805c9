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

import httpx
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

HEARTBEAT = 10.0  # seconds


@dataclass(frozen=True)
class Endpoint:
    """The address of a SuperLink or SuperNode, its secret and its certificate."""

    address: str
    secret: Path
    authority: Path | None = None  # the certificate of its CA; None: no TLS

    def client(self, *more: ProtobufClientInterceptor) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            self.address,
            self.authority is None,
            self.authority.read_bytes() if self.authority else None,
            [RuntimeVersionHttpInterceptor(component_name="fedkin"), *more],
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
