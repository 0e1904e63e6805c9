"""A real Ray cluster on two hosts, each a network namespace of its own.

The test makes and removes its namespaces and ends only the processes that it started.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[3]
HEAD, OTHER, PORT = "10.213.7.1", "10.213.7.2", 6401


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Hosts:
    """Two namespaces joined by a cable, a Ray node in each."""

    folder: Path
    names: tuple[str, str]
    token: Path
    sockets: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, token: Path | None = None) -> dict[str, str]:
        return {
            **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token or self.token),
            "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def start(self, host: int, *words: str, token: Path | None = None) -> subprocess.Popen[bytes]:
        """A process on a host, in a session of its own."""
        out = (self.folder / f"out-{len(self.started)}.txt").open("wb")
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *words], stdout=subprocess.PIPE, stderr=out,
            env=self.environment(token), start_new_session=True, cwd=ROOT,
        )  # fmt: skip
        self.started.append(process)
        return process

    def node(self, host: int) -> subprocess.Popen[bytes]:
        ray = str(Path(sys.executable).parent / "ray")
        common = ["--num-gpus=0", "--disable-usage-stats", "--block",
                  "--object-store-memory=100000000"]  # fmt: skip
        if host == 0:
            place = [f"--node-ip-address={HEAD}", f"--port={PORT}", "--head", "--num-cpus=2",
                     "--include-dashboard=false", f"--temp-dir={self.sockets}"]  # fmt: skip
        else:
            place = [f"--node-ip-address={OTHER}", f"--address={HEAD}:{PORT}", "--num-cpus=1"]
        return self.start(host, ray, "start", *place, *common)

    def driver(self, *words: str, token: Path | None = None) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).parent / "driver.py")
        place = [words[0], f"{HEAD}:{PORT}", *words[1:]]
        return self.start(0, sys.executable, script, *place, token=token)

    def cable(self, state: str) -> None:
        ip("netns", "exec", self.names[1], "ip", "link", "set", f"{self.names[1]}v", state)

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in self.names:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in pids.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        shutil.rmtree(self.sockets, ignore_errors=True)


def wait_for(ready, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.5)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    mark = secrets.token_hex(2)
    names = (f"fk{mark}a", f"fk{mark}b")
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    short = Path(tempfile.mkdtemp(prefix="fk"))  # Ray's sockets must have short paths
    found = Hosts(tmp_path, names, token, short)
    try:
        for name in names:
            ip("netns", "add", name)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        found.end()
        pytest.skip(f"network namespaces are not allowed here: {error}")
    try:
        ip("link", "add", f"{names[0]}v", "netns", names[0], "type", "veth", "peer", "name",
           f"{names[1]}v", "netns", names[1])  # fmt: skip
        for name, address in zip(names, (HEAD, OTHER), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", f"{name}v")
            ip("-n", name, "link", "set", f"{name}v", "up")
            ip("-n", name, "link", "set", "lo", "up")
        head = found.node(0)
        wait_for(lambda: listening(names[0]))
        assert head.poll() is None
        found.node(1)
        yield found
    finally:
        found.end()


def listening(name: str) -> bool:
    words = ["ip", "netns", "exec", name, "ss", "-ltn"]
    found = subprocess.run(words, capture_output=True, text=True)
    return f":{PORT} " in found.stdout


def answer(process: subprocess.Popen[bytes]) -> dict[str, object]:
    out, _ = process.communicate(timeout=1200)
    found: dict[str, object] = json.loads(out.decode().splitlines()[-1])
    return found


def rounds_done(folder: Path) -> int:
    path = folder / "metrics.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv")


def test_two_hosts_give_the_embedded_engines_numbers_and_a_wrong_token_is_refused(
    hosts: Hosts,
) -> None:
    found = answer(hosts.driver("equality"))
    assert set(found) == {"fedavg", "scaffold", "pfedme", "perm", "asvrcd", "submodel"}
    assert all(float(str(gap)) < 1e-10 for gap in found.values()), found
    wrong = hosts.folder / "wrong"
    wrong.write_text(secrets.token_hex(32))
    refused = hosts.driver("equality", token=wrong)
    assert "token" in str(answer(refused)["error"])
    assert refused.returncode == 2


def test_no_process_ever_holds_a_million_clients(hosts: Hosts) -> None:
    """10 samples of 60 numbers each are 2.4 GB; a shard holds half, and what PyTorch takes."""
    found = answer(hosts.driver("million"))
    print(found)
    assert found["nodes"] == 2
    whole = 1_000_000 * 10 * 60 * 4 / 1e9
    assert all(float(str(found[name])) < whole for name in ("driver_gb", "shard1_gb", "shard2_gb"))


def test_a_killed_node_a_cut_cable_and_a_killed_driver_change_nothing(hosts: Hosts) -> None:
    """One run undisturbed; the same struck by all three, one after the other."""
    calm, struck = hosts.folder / "calm", hosts.folder / "struck"
    assert answer(hosts.driver("long", str(calm), "400")) == {"rounds": 400}
    driver = hosts.driver("long", str(struck), "400")
    wait_for(lambda: rounds_done(struck) >= 40)
    hosts.cable("down")
    time.sleep(60)  # as long as a cable may be out
    hosts.cable("up")
    wait_for(lambda: rounds_done(struck) >= 120, 600)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    driver = hosts.driver("resume", str(struck), "400")
    wait_for(lambda: rounds_done(struck) >= 200, 600)
    other = [p for p in hosts.started if "--num-cpus=1" in p.args]
    os.killpg(other[-1].pid, signal.SIGKILL)
    for pid in subprocess.run(["ip", "netns", "pids", hosts.names[1]], capture_output=True,
                              text=True).stdout.split():  # fmt: skip
        os.kill(int(pid), signal.SIGKILL)
    assert rounds_done(struck) < 400, "the run was over before its node was killed"
    assert answer(driver) == {"rounds": 400}
    pd.testing.assert_frame_equal(table(struck), table(calm), rtol=1e-9)
    losses = (struck / "log.txt").read_text().count("started again")
    assert losses >= 1, "the killed node was not noticed"
