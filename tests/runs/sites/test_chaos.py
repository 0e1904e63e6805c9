"""Sites and server killed in the middle of a round: the run ends, and ends the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedkin.engines.flower.certificates import make_certificates
from fedkin.engines.flower.processes import free_port
from fedkin.engines.flower.store import Store
from fedkin.runs.sites.plan import Plan
from fedkin.tensors import read_tensors
from tests.runs.sites.no_network import through_sites
from tests.runs.sites.world import (
    NAMES,
    Process,
    all_ended,
    fedkin,
    site,
    until,
    write_config,
    write_data,
)

ROUNDS = 10


def rounds_done(run: Path) -> int:
    path = run / "metrics.csv"
    return path.read_text().count("\n") - 1 if path.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_site_with_a_key_comes_back_as_itself(tmp_path: Path):
    names = ("north", "south")
    files = write_data(tmp_path, names, more=2000)
    config = write_config(tmp_path, "scaffold", 6, lr=0.02, local_steps=1500)
    certs, run, port = tmp_path / "certs", tmp_path / "run", free_port()
    make_certificates(certs, ["127.0.0.1"], names)

    def join(name: str) -> Process:
        keys = ("--certs", certs / "sites" / name)
        return site(tmp_path, name, files[name], f"127.0.0.1:{port}", *keys)

    begin = ["serve", config, "--clients", 2, "--out", run, "--port", port, "--certs", certs]
    with all_ended() as processes:
        server = Process(fedkin, [*begin, "--wait", 1], tmp_path / "server.log")
        north, south = join("north"), join("south")
        processes += [server, north, south]
        until(lambda: rounds_done(run) >= 2, server.text)
        south.kill()
        again = join("south")
        processes.append(again)
        assert server.ends() == 0, server.text()
        assert [north.ends(), again.ends()] == [0, 0], again.text()
    plan = Plan.read(run)
    for name in names:
        store = Store(tmp_path / name / "memory" / plan.experiment / "method")
        assert store.now().advances == 6
    found = pd.read_csv(run / "metrics.csv")["personal_accuracy"].iloc[-1]
    calm = through_sites(config, files, tmp_path / "calm").metrics[-1]["personal_accuracy"]
    assert found == pytest.approx(calm, abs=0.01)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_site_and_a_killed_server_change_nothing(tmp_path: Path):
    files = write_data(tmp_path)
    config = write_config(tmp_path, "scaffold", ROUNDS, lr=0.02, local_steps=1500)
    run, port = tmp_path / "run", free_port()
    address = f"127.0.0.1:{port}"
    begin = ["serve", config, "--clients", 3, "--out", run, "--port", port, "--timeout", 100]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        processes.append(server)
        sites = {name: site(tmp_path, name, files[name], address) for name in NAMES}
        processes += sites.values()

        until(lambda: rounds_done(run) >= 2, server.text)
        sites["clinic-b"].kill()
        again = site(tmp_path, "clinic-b", files["clinic-b"], address)
        processes.append(again)

        until(lambda: rounds_done(run) >= 5, server.text)
        server.kill()
        done = rounds_done(run)
        assert done < ROUNDS
        resumed = Process(
            fedkin, ["serve", "--resume", run, "--port", port], tmp_path / "resumed.log"
        )
        processes.append(resumed)
        assert resumed.ends() == 0, resumed.text()
        for process in (sites["clinic-a"], again, sites["clinic-c"]):
            assert process.ends() == 0, process.text()

    plan = Plan.read(run)
    assert plan.starts == 2
    for name in NAMES:
        store = Store(tmp_path / name / "memory" / plan.experiment / "method")
        assert store.now().advances == ROUNDS
        assert store.now().place.round == ROUNDS
    calm = through_sites(config, files, tmp_path / "calm")
    metrics = pd.read_csv(run / "metrics.csv")
    assert metrics["round"].tolist() == list(range(1, ROUNDS + 1))
    accuracy = metrics["personal_accuracy"].iloc[-1]
    assert accuracy == pytest.approx(calm.metrics[-1]["personal_accuracy"], abs=0.01)
    # nobody was lost for good, so not only the accuracy but every number is the same
    model = read_tensors(run / "models" / "global.safetensors")
    layout, x = calm.problem.layout, calm.contenders["method"].state.x
    flat = layout.join({name: value[None] for name, value in model.items()})[0]
    torch.testing.assert_close(flat, x, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_whose_superlink_was_killed_says_how_to_go_on(tmp_path: Path):
    files = write_data(tmp_path, ("a", "b"))
    config = write_config(tmp_path, "fedavg", 6, local_steps=1000)
    run, port = tmp_path / "run", free_port()
    begin = ["serve", config, "--clients", 2, "--out", run, "--port", port]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        processes.append(server)
        processes += [site(tmp_path, n, files[n], f"127.0.0.1:{port}") for n in files]
        until(lambda: rounds_done(run) >= 2, server.text)
        (link,) = server.children()
        os.kill(link, signal.SIGKILL)
        assert server.ends() == 2
        assert f"fedkin serve --port {port} --resume {run}" in server.text()
        again = Process(fedkin, ["serve", "--resume", run, "--port", port], tmp_path / "again.log")
        processes.append(again)
        assert again.ends() == 0, again.text()
    assert rounds_done(run) == 6


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_without_a_site_in_reach_can_be_stopped(tmp_path: Path, number: int):
    files = write_data(tmp_path, ("a",))
    config = write_config(tmp_path, "fedavg", 1000, local_steps=100)
    run, port = tmp_path / "run", free_port()
    begin = ["serve", config, "--clients", 1, "--out", run, "--port", port, "--timeout", 3]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        only = site(tmp_path, "a", files["a"], f"127.0.0.1:{port}")
        processes += [server, only]
        until(lambda: rounds_done(run) >= 1, server.text)
        only.kill()
        server.says("no site can be reached")
        server.send(number)
        assert server.ends() == 128 + number, server.text()
    assert f"fedkin serve --port {port} --resume {run}" in server.text()
