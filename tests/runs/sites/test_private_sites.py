"""Privacy over real sites: the guarantee of the run in one place, and sums that survive a crash."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from fedkin.engines.flower.certificates import make_certificates
from fedkin.engines.flower.processes import free_port
from fedkin.models import MODELS
from fedkin.runs.sites.plan import Plan
from tests.runs.sites.test_chaos import rounds_done
from tests.runs.sites.test_sums import secured
from tests.runs.sites.world import (
    NAMES,
    Process,
    all_ended,
    embedded,
    fedkin,
    site,
    until,
    write_config,
    write_data,
)


def with_lines(config: Path, *lines: str) -> Path:
    config.write_text("\n".join([*lines, config.read_text()]))
    return config


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, ["127.0.0.1"], list(NAMES))
    return folder


def with_norms(shape: tuple[int, ...], outputs: int) -> nn.Module:
    inputs = shape[0]
    return nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


def test_averaged_norms_are_had_from_secure_sums(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The statistics of batch norms are a mean over sites: sums give what single answers give."""
    files = write_data(tmp_path)
    config = write_config(tmp_path, "fedavg", rounds=2, model="with-norms", lr=0.1)
    monkeypatch.setitem(MODELS, "with-norms", with_norms)
    config.write_text(config.read_text().replace("[model]", '[model]\nnorm = "averaged"'))
    summed, transport = secured(config, files, tmp_path / "sums", certs)
    plain, _ = secured(config, files, tmp_path / "plain", certs, protected=False)
    for one, other in zip(summed.metrics, plain.metrics, strict=True):
        assert one["personal_loss"] == (
            None if other["personal_loss"] is None else pytest.approx(other["personal_loss"], 1e-5)
        )
    x, y = (t.contenders["method"].state.x for t in (summed, plain))
    torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
    # no site told anything but masked numbers
    assert all(set(tensors) <= {"masked"} for _, tensors, _ in transport.heard)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_private_run_over_real_sites_has_the_embedded_runs_epsilon(tmp_path: Path):
    files = write_data(tmp_path)
    lines = ("dp_clip = 0.5", "dp_noise = 1.5", "dp_delta = 1e-5")
    config = with_lines(write_config(tmp_path, "ditto", rounds=3), *lines)
    run, port = tmp_path / "run", free_port()
    begin = ["serve", config, "--clients", 3, "--out", run, "--port", port]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        processes.append(server)
        processes += [site(tmp_path, n, files[n], f"127.0.0.1:{port}") for n in NAMES]
        assert server.ends() == 0, server.text()
    told = json.loads((run / "privacy.json").read_text())
    here = embedded(config, files)
    assert here.guarantee is not None
    assert told["epsilon"] == here.guarantee.epsilon
    assert told["delta"] == 1e-5
    assert pd.read_csv(run / "metrics.csv")["dp_epsilon"].iloc[-1] == pytest.approx(told["epsilon"])
    # the noise is one that nobody can compute again, and each site knew what it agreed to
    assert "os.urandom" in json.dumps(told)
    assert "clipped to length 0.5" in (tmp_path / "clinic-a.log").read_text()
    assert any("evaluation" in word or "scores" in word for word in told["outside"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_server_killed_in_the_middle_of_a_sum_goes_on(certs: Path, tmp_path: Path):
    files = write_data(tmp_path)
    config = write_config(tmp_path, "fedavg", 6, lr=0.05, local_steps=1500)
    run, port = tmp_path / "run", free_port()
    more = ["--port", port, "--certs", certs]
    begin = ["serve", config, "--clients", 3, "--out", run, "--secure-sum", *more]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        processes.append(server)
        sites = [
            site(tmp_path, n, files[n], f"127.0.0.1:{port}", "--certs", certs / "sites" / n)
            for n in NAMES
        ]
        processes += sites
        until(lambda: rounds_done(run) >= 2, server.text)
        time.sleep(0.3)  # into the next round, whose local steps take longer than that
        (link,) = server.children()
        server.kill()
        done = rounds_done(run)
        assert done < 6
        again = Process(fedkin, ["serve", "--resume", run, *more], tmp_path / "again.log")
        processes.append(again)
        assert again.ends() == 0, again.text()
        assert [process.ends() for process in sites] == [0, 0, 0]
    with pytest.raises(ProcessLookupError):
        os.kill(link, signal.SIGCONT)
    table = pd.read_csv(run / "metrics.csv")
    assert table["round"].tolist() == [1, 2, 3, 4, 5, 6]
    assert Plan.read(run).starts == 2
    # at most the round in which it was killed counts for nothing; the model learns all the same
    lost = again.text().count("no secure sum was had")
    assert lost <= 1, again.text()
    calm, _ = secured(config, files, tmp_path / "calm", certs)
    found: Any = table["global_accuracy"].iloc[-1]
    assert found == pytest.approx(calm.metrics[-1]["global_accuracy"], abs=0.1)
