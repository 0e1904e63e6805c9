"""Flower's own commands, without ours around them: slow, but the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from fedkin.engines.flower.exchange import WaitPolicy
from fedkin.engines.flower.processes import environment, free_port
from fedkin.runs.sites.serving import Wanted, prepare
from tests.runs.sites.world import embedded, write_config, write_data

BIN = Path(sys.executable).parent
CONNECTION = '[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "{}"\ninsecure = true\n'


@contextmanager
def running(command: list[object], home: Path, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BIN / str(command[0])), *map(str, command[1:])],
            stdout=output,
            stderr=output,
            env=plain_environment(home),
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)


def plain_environment(home: Path) -> dict[str, str]:
    paths = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**environment(home), "PATH": paths, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_superlink_and_supernodes_of_ones_own(tmp_path: Path):
    names = ("a", "b")
    files = write_data(tmp_path, names)
    config = write_config(tmp_path, "scaffold", rounds=2)
    folder = prepare(Wanted(config, 2, WaitPolicy(1.0, 300), tmp_path / "run"))
    folder.close()
    address, home = f"127.0.0.1:{free_port()}", tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(CONNECTION.format(address))
    host, _, port = address.partition(":")
    link = ["flower-superlink", "--insecure", "--host", host, "--port", port,
            "--disable-runtime-dependency-installation"]  # fmt: skip

    def node(name: str) -> list[object]:
        about = f'name="{name}" data="{files[name]}" home="{tmp_path / name}"'
        return ["flower-supernode", "--insecure", "--superlink", address,
                "--port", free_port(), "--node-config", about]  # fmt: skip

    with (
        running([*link], home, tmp_path / "link.log"),
        running(node("a"), home, tmp_path / "a.log"),
        running(node("b"), home, tmp_path / "b.log"),
    ):
        run = [str(BIN / "flwr"), "run", str(folder.path / "app"), "mine", "--stream",
               "--run-config", f'folder="{folder.path}"']  # fmt: skip
        done = subprocess.run(
            run, env=plain_environment(home), capture_output=True, text=True, timeout=800
        )
    here = embedded(config, files)
    metrics = pd.read_csv(folder.path / "metrics.csv")
    found = metrics["personal_loss"].iloc[-1]
    assert found == pytest.approx(here.metrics[-1]["personal_loss"], abs=1e-5), done.stdout
    assert (tmp_path / "a" / "model.safetensors").exists()
