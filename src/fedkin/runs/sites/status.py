"""How a served run is doing: a small file the server keeps up to date, and ways to show it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedkin.engines.flower.attendance import Attendance
from fedkin.engines.flower.text import shown
from fedkin.errors import FedkinError, checked_size
from fedkin.runs.measures import read_measures
from fedkin.runs.reading import read_json, read_table
from fedkin.tensors import write_text

FILE = "status.json"
EVERY = 2.0  # seconds between two writings while nothing happens
DEAD = 60.0  # seconds without a sign of life of a server that should be at work
LOG_LINES, LOG_BYTES = 30, 2**16
LONGEST_NAME = 64  # letters of a name that are shown

Count = Annotated[int, Field(ge=0, lt=2**63)]
Moment = Annotated[float, Field(allow_inf_nan=False)]


class Facts(TypedDict):
    """A site's part in a run."""

    connected: bool
    asked: Count
    answered: Count
    late: Count
    left_out: Count
    heard: Moment | None


@dataclass
class Status:
    """What the server knows: where the run stands, and every site's part in it."""

    experiment: str
    method: str
    rounds: Count
    round: Count = 0
    state: str = "waiting"  # waiting for sites, training, finished, stopped
    updated: Moment = 0.0
    process: Count = 0
    sites: dict[str, Facts] = field(default_factory=dict)

    def saw(self, attendance: Attendance, names: Iterable[str], connected: Iterable[str]) -> None:
        """Take over what is known of the sites."""
        here = set(connected)
        known: dict[str, Any] = {
            name: {**asdict(attendance.of(name)), "connected": name in here}
            for name in sorted({*names, *here})
        }
        self.sites = known

    def write(self, folder: Path) -> None:
        self.updated, self.process = time.time(), os.getpid()
        write_text(folder / FILE, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Status:
        try:
            return read_json(folder / FILE, TypeAdapter(cls))
        except FileNotFoundError:
            raise FedkinError(f"{folder} is not a run of `fedkin serve`: no {FILE}") from None

    def healthy(self, now: float | None = None) -> bool:
        """Whether the server is at work or done; False once it has been silent for too long."""
        silent = (time.time() if now is None else now) - self.updated
        return self.state == "finished" or (self.state != "stopped" and silent < DEAD)


def site_rows(status: Status, now: float | None = None) -> list[list[str]]:
    """For each site: connected, last heard, answers in time, late, left out."""
    moment = time.time() if now is None else now
    return [
        [
            shown(name, LONGEST_NAME),
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
    method, state = (shown(word, LONGEST_NAME) for word in (status.method, status.state))
    return (
        f"{method}: round {status.round} of {status.rounds}, {state}, "
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
            name = site.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            lines.append(f'fedkin_site_{kind}{{site="{name}"}} {int(facts[kind])}')  # type: ignore[literal-required]
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
    log = escape("\n".join(last_lines(folder / "log.txt")))
    name = escape(shown(folder.resolve().name, LONGEST_NAME))
    state = "" if status.healthy() else " class=bad"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="refresh" content="5"><link rel="icon" href="data:,"><title>{name}'
        f"</title><style>{STYLE}</style><h1>{name}</h1><p id=headline{state}>"
        f"{escape(headline(status))}</p><div class=wide><table id=sites><thead><tr>{head}</tr>"
        f"</thead><tbody>{rows}</tbody></table></div>{drawn}<h2>log</h2><pre>{log}</pre></html>"
    )


def last_lines(path: Path) -> list[str]:
    """The last lines of a log, none of them long."""
    try:
        size = checked_size(path, sys.maxsize)
        with path.open("rb") as file:
            file.seek(max(0, size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [shown(line) for line in text.splitlines()[-LOG_LINES:]]


STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.4 system-ui,sans-serif;margin:1.2em auto;padding:0 1em;max-width:60em}
h1,p,figcaption{overflow-wrap:anywhere}
h1{font-size:1.4em}
.wide,pre{overflow-x:auto}
table{border-collapse:collapse}
td,th{padding:.25em 1em .25em 0;text-align:left;border-bottom:1px solid #8884}
td:first-child{max-width:16em;overflow-wrap:anywhere;min-width:6em}
td:nth-child(n+4),th:nth-child(n+4){text-align:right}
figure{display:inline-block;margin:1em 2em 0 0;max-width:100%}
svg{max-width:100%;height:auto;background:#8881}
text{font-size:11px;fill:currentColor}
polyline{fill:none;stroke:#2a7de1;stroke-width:2}
pre{background:#8881;padding:1em}
.bad{color:#c22;font-weight:bold}
"""


def _curve(points: list[tuple[float, float]], width: int = 360, height: int = 160) -> str:
    """A line over the rounds, with its lowest and highest value and the first and last round."""
    (left, right), (low, high) = ((min(v), max(v)) for v in zip(*points, strict=True))
    across, up = (right - left) or 1.0, (high - low) or 1.0
    places = " ".join(
        f"{48 + (x - left) / across * (width - 56):.1f},"
        f"{height - 24 - (y - low) / up * (height - 36):.1f}"
        for x, y in points
    )
    words = [(2, 16, high), (2, height - 24, low)] if high > low else [(2, height - 24, low)]
    marks = "".join(f'<text x="{x}" y="{y}">{value:.3g}</text>' for x, y, value in words)
    marks += f'<text x="48" y="{height - 6}">round {left:g}</text>'
    marks += f'<text x="{width - 8}" y="{height - 6}" text-anchor="end">{right:g}</text>'
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">{marks}'
        f'<polyline points="{places}"/></svg>'
    )
