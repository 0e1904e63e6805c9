"""Three sites that stay, connected to a SuperLink of this process; one through a recorder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedkin.engines.flower.link import Link
from fedkin.engines.flower.processes import free_port
from tests.runs.sites.world import NAMES, Recorder, all_ended, site, write_data


@dataclass
class World:
    folder: Path
    files: dict[str, Path]
    link: Link
    recorder: Recorder


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    files = write_data(folder)
    link = Link(folder / "link", "127.0.0.1", free_port(), None)
    recorder = Recorder(link.place.address)
    try:
        with all_ended() as processes:
            for name in NAMES:
                server = recorder.address if name == NAMES[0] else link.place.address
                processes.append(site(folder, name, files[name], server, "--stay"))
            yield World(folder, files, link, recorder)
    finally:
        recorder.close()
        link.stop()
