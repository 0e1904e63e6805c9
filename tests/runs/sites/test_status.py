"""How a served run is doing: on the screen, as a page, as numbers for Prometheus, as health."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from fedkin.command.status import page_server
from fedkin.engines.flower.attendance import Attendance
from fedkin.errors import FedkinError
from fedkin.runs.measures import keep_measures
from fedkin.runs.sites.status import DEAD, Status, ago, headline, site_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    attendance = Attendance()
    for answered in (True, True, False):
        attendance.request("a", answered)
    attendance.came_late("a")
    attendance.heard("a")
    status = Status("e", "scaffold", 10, 4, "training")
    status.saw(attendance, ("a", "b"), ("a",))
    status.write(tmp_path)
    table = "round,personal_accuracy,personal_loss\n1,,\n2,0.5,0.9\n4,0.75,0.4\n"
    (tmp_path / "metrics.csv").write_text(table)
    keep_measures(tmp_path, ["accuracy"])
    (tmp_path / "log.txt").write_text("<script>alert(1)</script>\n")
    return tmp_path


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """The address of a run's page."""
    server = page_server(run, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with serving(run) as found:
        yield found


def test_the_screen_says_who_answered(run: Path):
    status = Status.read(run)
    assert headline(status).startswith("scaffold: round 4 of 10, training, 0 s ago")
    a, b = site_rows(status)
    assert a[:2] + a[3:] == ["a", "yes", "2/3", "1", "0"]
    assert b == ["b", "no", "never", "0/0", "0", "0"]
    assert [ago(5), ago(200), ago(8000), ago(200_000)] == ["5 s ago", "3 min ago", "2 h ago",
                                                          "2 d ago"]  # fmt: skip


def test_the_page_is_whole_and_shows_text_as_text(address: str):
    text = httpx.get(address).text
    assert "round 4 of 10" in text
    assert "<polyline" in text
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "http://" not in text


def test_prometheus_and_health(address: str, run: Path):
    numbers = httpx.get(f"{address}/metrics").text
    assert "fedkin_round 4\n" in numbers
    assert "fedkin_personal_accuracy 0.75\n" in numbers
    assert 'fedkin_site_late{site="a"} 1' in numbers
    assert httpx.get(f"{address}/health").status_code == 200
    status = Status.read(run)
    assert not status.healthy(now=status.updated + DEAD + 1)
    status.state = "stopped"
    status.write(run)
    assert httpx.get(f"{address}/health").status_code == 503
    (run / "status.json").unlink()
    assert httpx.get(f"{address}/health").status_code == 503


def test_other_names_and_paths_are_refused(address: str):
    assert httpx.get(address, headers={"Host": "evil.example"}).status_code == 403
    assert httpx.get(f"{address}/../etc/passwd").status_code == 404


def test_a_folder_of_another_run_is_told(tmp_path: Path):
    with pytest.raises(FedkinError, match="is not a run of `fedkin serve`"):
        Status.read(tmp_path)
