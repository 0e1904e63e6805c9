"""How a served run is doing: on the screen, as a page, as numbers for Prometheus, as health."""

from __future__ import annotations

import json
import os
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
from fedkin.runs.sites.status import (
    DEAD,
    Status,
    ago,
    headline,
    page,
    prometheus,
    site_rows,
)


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


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"round": "four"}, "round should be a whole number"),
        ({"rounds": -1}, "rounds should be greater than or equal to 0"),
        ({"updated": "NaN"}, "updated should be a finite number"),
        ({"sites": ["a"]}, "sites should be"),
        ({"sites": {"a": {}}}, "does not say what sites.a.connected is"),
        ({"state": None}, "state should be a string"),
    ],
)
def test_a_damaged_file_gets_a_sentence(run: Path, facts: dict[str, object], sentence: str):
    known = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**known, **facts}))
    with pytest.raises(FedkinError, match=rf"status\.json.*{sentence}"):
        Status.read(run)


def test_only_the_end_of_a_log_is_shown_and_a_pipe_is_not_waited_for(run: Path):
    (run / "log.txt").write_text("begun\n" + "line\n" * 10**6 + "x" * 2000 + "\nlast\n")
    text = page(run)
    assert len(text) < 20_000
    assert "begun" not in text
    assert f"{'x' * 300}...\nlast</pre>" in text
    (run / "log.txt").unlink()
    os.mkfifo(run / "log.txt")
    with pytest.raises(FedkinError, match=r"log\.txt is a pipe or device"):
        page(run)


def test_names_cannot_end_a_line_or_a_label_of_prometheus(run: Path):
    status, attendance = Status.read(run), Attendance()
    status.saw(attendance, ['a"} 1\nfedkin_up 0', "b\\"], [])
    (line,) = [
        found for found in prometheus(status, {}).splitlines() if "late{" in found and "up" in found
    ]
    assert line == r'fedkin_site_late{site="a\"} 1\nfedkin_up 0"} 0'
    assert r'fedkin_site_late{site="b\\"} 0' in prometheus(status, {})


def test_a_folder_of_another_run_is_told(tmp_path: Path):
    with pytest.raises(FedkinError, match="is not a run of `fedkin serve`"):
        Status.read(tmp_path)
