"""TLS and keys: registered sites train; strangers and plain connections stay outside."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from fedkin.engines.flower.certificates import ServerFiles, make_certificates
from fedkin.engines.flower.link import Link
from fedkin.engines.flower.processes import environment, free_port
from tests.runs.sites.world import (
    all_ended,
    embedded,
    run_over,
    site,
    write_config,
    write_data,
)

SITES = ("north", "south")


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder / "ours", ["127.0.0.1"], [*SITES])
    # a stranger who trusts our authority but whose key nobody registered
    make_certificates(folder / "others", ["127.0.0.1"], ["stranger"])
    stranger = folder / "others" / "sites" / "stranger"
    shutil.copy(folder / "ours" / "authority.pem", stranger / "authority.pem")
    (stranger / "site.pem").unlink()  # its own command would see that the two do not fit
    return folder


@pytest.fixture(scope="module")
def link(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    keys = ServerFiles.of(certs / "ours")
    link = Link(tmp_path_factory.mktemp("link"), "127.0.0.1", free_port(), keys)
    try:
        link.register(keys.sites)
        yield link
    finally:
        link.stop()


def test_registered_sites_train_over_tls(link: Link, certs: Path, tmp_path: Path):
    files = write_data(tmp_path, SITES)
    config = write_config(tmp_path, "fedavg", rounds=2)
    with all_ended() as processes:
        for name in SITES:
            keys = ("--certs", certs / "ours" / "sites" / name)
            processes.append(site(tmp_path, name, files[name], link.place.address, *keys))
        trainer, _ = run_over(link, config, tmp_path / "run", clients=2, registered=True)
        assert [process.ends() for process in processes] == [0, 0]
    here = embedded(config, files)
    torch.testing.assert_close(
        trainer.contenders["method"].state.x,
        here.contenders["method"].state.x,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--certs", "others/sites/stranger"], "does not know this site's key"),
        (["--certs", "elsewhere"], "did not sign"),
        ([], "accepts only TLS connections"),
    ],
    ids=["foreign key", "foreign authority", "plain"],
)
def test_strangers_are_refused(
    link: Link, certs: Path, tmp_path: Path, more: list[str], words: str
):
    if "elsewhere" in more:
        make_certificates(certs / "x", [], ["stranger"])
        shutil.copytree(certs / "x" / "sites" / "stranger", certs / "elsewhere")
    more = more and [more[0], str(certs / more[1])]
    data = write_data(tmp_path, ("stranger",))["stranger"]
    with all_ended() as processes:
        processes.append(site(tmp_path, "stranger", data, link.place.address, *more))
        assert processes[0].ends() == 2
    assert words in processes[0].text()


@pytest.mark.slow
def test_flowers_own_node_with_a_foreign_key_is_refused(link: Link, certs: Path, tmp_path: Path):
    stranger = certs / "others" / "sites" / "stranger"
    command = [
        str(Path(sys.executable).with_name("flower-supernode")),
        "--superlink", link.place.address,
        "--root-certificates", str(stranger / "authority.pem"),
        "--auth-supernode-private-key", str(stranger / "site.key"),
        "--isolation", "process", "--port", str(free_port()),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, timeout=60, text=True
    )
    assert "SuperNode ID" not in done.stdout + done.stderr  # it ended before it had one


def test_a_plain_request_gets_no_answer(link: Link):
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{link.place.address}/health", timeout=10)
