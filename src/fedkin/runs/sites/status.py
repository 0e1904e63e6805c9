"""How a served run is doing: a small file the server keeps up to date, and ways to show it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.engines.flower.attendance import Attendance
from fedkin.errors import FedkinError
from fedkin.runs.measures import read_measures
from fedkin.runs.reading import read_table
from fedkin.tensors import write_text

FILE = "status.json"
EVERY = 2.0  # seconds between two writings while nothing happens
DEAD = 60.0  # seconds without a sign of life of a server that should be at work
LOG_LINES = 30


@dataclass
class Status:
    """What the server knows: where the run stands, and every site's part in it."""

    experiment: str
    method: str
    rounds: int
    round: int = 0
    state: str = "waiting"  # waiting for sites, training, finished, stopped
    updated: float = 0.0
    process: int = 0
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)

    def saw(self, attendance: Attendance, names: Iterable[str], connected: Iterable[str]) -> None:
        """Take over what is known of the sites."""
        here = set(connected)
        self.sites = {
            name: {**asdict(attendance.of(name)), "connected": name in here}
            for name in sorted({*names, *here})
        }

    def write(self, folder: Path) -> None:
        self.updated, self.process = time.time(), os.getpid()
        write_text(folder / FILE, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Status:
        try:
            found = cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise FedkinError(f"{folder} is not a run of `fedkin serve`: no {FILE}") from None
        except (ValueError, TypeError) as error:
            raise FedkinError(f"{folder / FILE} is damaged: {error}") from None
        return found

    def healthy(self, now: float | None = None) -> bool:
        """Whether the server is at work or done; False once it has been silent for too long."""
        silent = (time.time() if now is None else now) - self.updated
        return self.state == "finished" or (self.state != "stopped" and silent < DEAD)


def site_rows(status: Status, now: float | None = None) -> list[list[str]]:
    """For each site: connected, last heard, answers in time, late, left out."""
    moment = time.time() if now is None else now
    return [
        [
            name,
            "yes" if site["connected"] else "no",
            "never" if site["heard"] is None else ago(moment - site["heard"]),
            f"{site['answered']}/{site['asked']}",
            str(site["late"]),
            str(site["left_out"]),
        ]
        for name, site in status.sites.items()
    ]


TITLES = ("site", "connected", "last heard", "answers in time", "late", "left out")


def ago(seconds: float) -> str:
    """A time that has passed, in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def headline(status: Status, now: float | None = None) -> str:
    health = "" if status.healthy(now) else "; the server gives no sign of life"
    return (
        f"{status.method}: round {status.round} of {status.rounds}, {status.state}, "
        f"{ago((time.time() if now is None else now) - status.updated)}{health}"
    )


def curves(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """The deciding metric and the loss of personal models over the rounds."""
    table = read_table(folder / "metrics.csv")
    names = [f"personal_{measure}" for measure in read_measures(folder)[:1]] + ["personal_loss"]
    found = {}
    for name in names:
        if name in table.columns:
            values = pd.to_numeric(table[name], errors="coerce")
            points = zip(table["round"], values, strict=True)
            found[name] = [(float(x), float(y)) for x, y in points if y == y]
    return found


def prometheus(status: Status, last: Mapping[str, float]) -> str:
    """Numbers in the text format that Prometheus reads."""
    lines = [
        *_metric("fedkin_up", "1 while the server is at work or done", int(status.healthy())),
        *_metric("fedkin_round", "rounds that are done", status.round),
        *_metric("fedkin_rounds", "rounds of the run", status.rounds),
    ]
    for name, value in last.items():
        lines += _metric(f"fedkin_{name}", f"{name} at the last evaluation", value)
    kinds = {
        "connected": "1 while a site is connected", "asked": "requests to a site",
        "answered": "its answers in time", "late": "its answers that came late",
        "left_out": "its answers that could not be used",
    }  # fmt: skip
    for kind, meaning in kinds.items():
        lines += [f"# HELP fedkin_site_{kind} {meaning}", f"# TYPE fedkin_site_{kind} gauge"]
        for site, facts in status.sites.items():
            lines.append(f'fedkin_site_{kind}{{site="{site}"}} {int(facts[kind])}')
    return "\n".join(lines) + "\n"


def _metric(name: str, meaning: str, value: float) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"{name} {value:g}"]


def page(folder: Path) -> str:
    """All of it as one page without scripts, which loads itself again every few seconds."""
    status = Status.read(folder)
    head = "".join(f"<th>{escape(title)}</th>" for title in TITLES)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in site_rows(status)
    )
    drawn = "".join(
        f"<figure><figcaption>{escape(name)}: {points[-1][1]:.4g}</figcaption>{_curve(points)}"
        "</figure>"
        for name, points in curves(folder).items()
        if points
    )
    try:
        text = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    log = escape("\n".join(text.splitlines()[-LOG_LINES:]))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta http-equiv="refresh" content="5"><title>fedkin</title><style>'
        "body{font:15px system-ui,sans-serif;margin:2em;max-width:60em}"
        "td,th{padding:.2em 1em .2em 0;text-align:left}"
        "figure{display:inline-block;margin:0 2em 0 0}"
        "pre{background:#f4f4f4;padding:1em;overflow:auto}polyline{fill:none;stroke:#06c;"
        "stroke-width:2}svg{background:#f8f8f8}</style>"
        f"<h1>{escape(folder.resolve().name)}</h1><p id=headline>{escape(headline(status))}</p>"
        f"<table id=sites><tr>{head}</tr>{rows}</table>{drawn}<h2>log</h2><pre>{log}</pre></html>"
    )


def _curve(points: list[tuple[float, float]], width: int = 360, height: int = 140) -> str:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across, up = (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0
    places = " ".join(
        f"{8 + (x - min(xs)) / across * (width - 16):.1f},"
        f"{height - 8 - (y - min(ys)) / up * (height - 16):.1f}"
        for x, y in points
    )
    return f'<svg width="{width}" height="{height}"><polyline points="{places}"/></svg>'
