"""Work that Flower has for an app, done in this process instead of a new one per message.

A SuperLink or SuperNode started with `--isolation process` leaves the running of apps to
whoever has its secret. We take the task and run our own app, whatever the app bundle says
that Flower sends along: no code that travelled is ever loaded, and torch is imported once.
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
class Place:
    """Where a SuperLink or SuperNode listens, and how to know that it is the right one."""

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
        """A client that may ask for tasks."""
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
    """Tell Flower that the task is alive for as long as it is."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT):
            with suppress(httpx.HTTPError):  # if one does not get through, the next may
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, daemon=True, name="task-heartbeat")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
