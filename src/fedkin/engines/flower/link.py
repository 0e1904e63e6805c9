"""The server's SuperLink process: start it, register sites' keys, get a run's grid."""

from __future__ import annotations

import hashlib
import secrets
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from fedkin.engines.flower.certificates import ServerFiles, read_public
from fedkin.engines.flower.private import (
    ControlHttpClient,
    Fab,
    HttpGrid,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RegisterNodeRequest,
    StartRunRequest,
    SubStatus,
    TaskIdentity,
    TaskType,
    build_fab_from_files,
    fab_to_proto,
    run_from_proto,
)
from fedkin.engines.flower.processes import Child, write_private
from fedkin.engines.flower.reach import probe
from fedkin.engines.flower.runtime import Endpoint, acquire, heartbeat
from fedkin.errors import FedkinError
from fedkin.tensors import write_text

MOST_PER_REQUEST = 16 * 2**20  # Flower cuts arrays into pieces of 5 MiB
START_TIME = 60.0

APP = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "fedkin-app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "fedkin"

[tool.flwr.app.components]
serverapp = "fedkin.command.server_app:app"
clientapp = "fedkin.runs.sites.client_app:app"

[tool.flwr.app.config]
folder = ""
"""


class Link:
    """A SuperLink process that we start and that `stop` ends."""

    def __init__(
        self, home: Path, host: str, port: int, keys: ServerFiles | None, least: str = "info"
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home, self._keys = home, dict[str, bytes]()
        secret = home / "secret"
        write_private(secret, secrets.token_bytes(32))
        near = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host  # nosec B104
        authority = keys.authority if keys else None
        self.place = Endpoint(
            f"[{near}]:{port}" if ":" in near else f"{near}:{port}", secret, authority
        )
        words: list[object] = [MOST_PER_REQUEST, _key_list(home, keys), secret]
        words += ["--host", host, "--port", port]
        words.append("--disable-runtime-dependency-installation")
        words += ["--isolation", "process", "--superexec-auth-secret-file", secret]
        if keys is None:
            words.append("--insecure")
        else:
            words += ["--ssl-ca-certfile", keys.authority, "--ssl-certfile", keys.certificate]
            words += ["--ssl-keyfile", keys.key, "--enable-supernode-auth"]
        self._child = Child("superlink.py", words, home, home / "superlink.log", least)
        try:
            self._child.wait_for(
                lambda: probe(self.place.address, authority) is None, START_TIME, "the SuperLink"
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._child.stop()

    def _control(self) -> ControlHttpClient:
        authority = self.place.authority
        return ControlHttpClient.from_server_address(
            self.place.address,
            authority is None,
            authority.read_bytes() if authority else None,
            self.place.interceptors(),
        )

    def admit(self, keys: ServerFiles) -> list[str]:
        """Sites that were signed or revoked since: a sentence for each."""
        now = {name: read_public(path) for name, path in keys.sites.items()}
        new = {name: path for name, path in keys.sites.items() if self._keys.get(name) != now[name]}
        gone = sorted(set(self._keys) - set(now))
        if not new and not gone:
            return []
        _key_list(self._home, keys)
        self.register(new)
        self._keys = now
        return [f"site '{name}' may join" for name in new] + [f"'{n}' is revoked" for n in gone]

    def register(self, sites: Mapping[str, Path]) -> None:
        """Register the sites' public keys, each under the site's name."""
        with self._control() as control:
            for name, path in sites.items():
                key = self._keys[name] = read_public(path)
                control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    @contextmanager
    def run(self) -> Iterator[HttpGrid]:
        """A new Flower run, whose app is this process."""
        content, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        with self._control() as control:
            number = control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
        token = self._token(number)
        grid = HttpGrid(
            self.place.address,
            self.place.authority is None,
            self.place.authority.read_bytes() if self.place.authority else None,
            token=token,
        )
        self.place.let_in(grid)
        grid._retry_invoker.max_time = START_TIME  # a SuperLink that has ended does not come back
        client = self.place.with_token(token)
        begun = client.PullTaskInput(PullTaskInputRequest())
        # Flower reads the sender of messages from here
        TaskIdentity.task_id, TaskIdentity.run_id = begun.task_id, begun.run.run_id
        TaskIdentity.node_id = begun.context.node_id
        grid.set_run(run_from_proto(begun.run))
        status, details = SubStatus.FAILED, "the server stopped"
        try:
            with heartbeat(client):
                yield grid
            status, details = SubStatus.COMPLETED, ""
        finally:
            with suppress(httpx.HTTPError):
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
            client.close()
            grid.close()

    def _token(self, number: int) -> str:
        """The token to act as this run's app."""
        until = time.monotonic() + START_TIME
        with self.place.for_tasks() as tasks:
            while time.monotonic() < until:
                task = acquire(tasks, TaskType.SERVER_APP)
                if task and task[1] == number:
                    return task[0]
                time.sleep(0.05)
        raise FedkinError("the SuperLink did not hand over the run it was asked to start")


def _key_list(home: Path, keys: ServerFiles | None) -> Path | str:
    """The file of sites' keys that the SuperLink's gate checks against."""
    if keys is None:
        return "-"
    path = home / "keys"
    known = [b64encode(read_public(site)).decode() for site in keys.sites.values()]
    write_text(path, "\n".join(known))
    return path
