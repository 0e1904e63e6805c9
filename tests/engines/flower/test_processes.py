"""Flower's processes end with ours, whatever state they are in."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from fedkin.engines.flower.processes import check_free, free_port, write_private
from fedkin.engines.flower.runtime import Endpoint
from fedkin.errors import FedkinError
from fedkin.runs.sites.joining import JoinOptions, start_node
from fedkin.runs.sites.site import SiteWorker
from tests.runs.sites.world import Process, all_ended, until


def start_a_node(words: list[str]) -> None:
    """A SuperNode that seeks a server in vain, and its parent that does nothing else."""
    home = Path(words[0])
    site = SiteWorker("a", home / "none.csv", home)
    place = Endpoint(f"127.0.0.1:{free_port()}", home / "secret")
    write_private(place.secret, b"secret")
    start_node(JoinOptions(f"127.0.0.1:{free_port()}", site, None), place, home)
    time.sleep(600)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_node_whose_parent_died_ends_although_it_seeks_a_server(tmp_path: Path, number: int):
    with all_ended() as processes:
        parent = Process(start_a_node, [tmp_path], tmp_path / "log")
        processes.append(parent)
        seeks = tmp_path / "supernode.log"
        until(lambda: seeks.exists() and "retrying" in seeks.read_text(), parent.text)
        (node,) = parent.children()
        parent.send(number)
        until(lambda: not Path(f"/proc/{node}").exists(), seeks.read_text)


def test_where_one_cannot_listen_is_told_why():
    port = free_port()
    check_free("127.0.0.1", port)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(FedkinError, match=f"port {port} is in use"),
    ):
        check_free("127.0.0.1", port)
    for elsewhere in ("192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(FedkinError, match=f"cannot listen on {elsewhere}"):
            check_free(elsewhere, port)
