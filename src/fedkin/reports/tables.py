"""The report's tables, as rows for csv files and as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedkin.reports.page import LONGEST_CELL, escape
from fedkin.reports.statistics import Estimate, Paired, Score, Summary
from fedkin.reports.words import (
    NOTHING,
    SPACE,
    amount,
    chance,
    points,
    seeds,
    shown,
    with_interval,
)
from fedkin.runs.measures import ACCURACY

Row = Mapping[str, str]


def result_rows(summaries: Sequence[Summary], chosen: Sequence[str], score: Score) -> list[Row]:
    """One row per method: how good its personal models are, in words."""
    rows = []
    for s in summaries:
        best = with_interval(s.best, score)
        row = {
            "method": s.label + (" ✓" if s.label in chosen else ""),
            "seeds": str(s.seeds),
            f"personal {score.title}, last round": with_interval(s.last, score),
            "best round, chosen on validation": (
                f"{best} (round {s.best_round:.0f})" if s.best_round else "last only"
            ),
            "worst tenth of clients": with_interval(s.worst_tenth, score),
            "better off than alone": with_interval(s.better_than_alone, ACCURACY),
            "the same": with_interval(s.same_as_alone, ACCURACY),
            "worse off": with_interval(s.worse_than_alone, ACCURACY),
            "gain over alone": _gain(s.mean_gain, score),
            "global model": with_interval(s.shared_model, score),
            "trivial answer": with_interval(s.trivial, score),
        }
        rows.append(row)
    return _without_empty(rows)


def spread_rows(summaries: Sequence[Summary], score: Score) -> list[Row]:
    """One row per method: how clients differ."""
    rows = []
    for s in summaries:
        row = {"method": s.label, "spread over clients": with_interval(s.spread, score)}
        for p, value in s.percentiles.items():
            row["median" if p == 50 else f"{p}th percentile"] = shown(value, score)
        rows.append(row)
    return _without_empty(rows)


def _gain(gain: Estimate | None, score: Score) -> str:
    if gain is None or gain.high is None:
        return points(None if gain is None else gain.mean, score)
    half = points(gain.high - gain.mean, score).removeprefix("+")
    return f"{points(gain.mean, score)}{SPACE}±{SPACE}{half}"


def cost_rows(summaries: Sequence[Summary]) -> Sequence[Row]:
    """What reaching the target took (medians over seeds), and what all rounds (means)."""
    rows = []
    for s in summaries:
        cost = s.to_target
        if cost is not None:
            row = {"method": s.label, "reached by": f"{cost.reached} of {seeds(cost.count)}"}
            for name in ("rounds", "megabytes", "seconds", "gradients"):
                title = "MB" if name == "megabytes" else name
                row[title] = amount(getattr(cost, name))
            row |= {
                "all rounds: MB": amount(s.megabytes),
                "all rounds: seconds": amount(s.seconds),
                "all rounds: gradients": amount(s.gradients),
            }
            rows.append(row)
    return rows


def paired_rows(pairs: Sequence[Paired], score: Score) -> Sequence[Row]:
    """Each comparison with the better method first."""
    rows = []
    for pair in pairs:
        names, advantage = [pair.first, pair.second], pair.advantage
        if advantage is None:
            nothing = dict.fromkeys(("difference", "95 % interval", "p, corrected"), NOTHING)
            rows.append({"comparison": " and ".join(names), "seeds in common": "0", **nothing,
                         "finding": "no claim without seeds in common"})  # fmt: skip
            continue
        sign = 1 if advantage.mean >= 0 else -1
        ends = (
            sorted((sign * advantage.low, sign * advantage.high))
            if advantage.low is not None and advantage.high is not None
            else None
        )
        if pair.seeds < 2:
            finding = "no claim from one seed"
        elif pair.p is None:
            finding = "no claim: no noise to measure against"
        else:
            finding = f"{names[::sign][0]} is better" if pair.certain else "not distinguishable"
        rows.append(
            {
                "comparison": " over ".join(names[::sign]),
                "seeds in common": str(pair.seeds),
                "difference": points(sign * advantage.mean, score),
                "95 % interval": " to ".join(points(e, score) for e in ends) if ends else NOTHING,
                "p, corrected": chance(pair.p),
                "finding": finding,
            }
        )
    return rows


def numbers(summaries: Sequence[Summary]) -> pd.DataFrame:
    """The results with full precision, one row per method."""
    rows = []
    for s in summaries:
        row: dict[str, Any] = {}
        for name, value in vars(s).items():
            if value is None or isinstance(value, str | int | float):
                row[name] = value
            elif isinstance(value, Estimate):
                row |= {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
            elif isinstance(value, Mapping):
                row |= {f"percentile_{p}": v for p, v in value.items()}
            else:
                row |= {f"to_target_{k}": v for k, v in vars(value).items()}
        rows.append(row)
    return pd.DataFrame(rows)


def paired_numbers(pairs: Sequence[Paired]) -> pd.DataFrame:
    """The comparisons with full precision: how much better `first` is than `second`."""
    rows = []
    for pair in pairs:
        found = pair.advantage
        rows.append(
            {
                "first": pair.first,
                "second": pair.second,
                "seeds": pair.seeds,
                "advantage": found.mean if found else None,
                "low": found.low if found else None,
                "high": found.high if found else None,
                "p": pair.p,
                "certain": pair.certain,
            }
        )
    return pd.DataFrame(rows)


def as_html(rows: Sequence[Row], caption: str) -> str:
    """A table that becomes a list of cards on a narrow screen."""
    head = "".join(
        f'<th role="columnheader" scope="col">{escape(name, LONGEST_CELL)}</th>' for name in rows[0]
    )
    body = []
    for row in rows:
        first, *rest = row.items()
        cells = [f'<th role="rowheader" scope="row">{escape(first[1], LONGEST_CELL)}</th>']
        for name, value in rest:
            label, shown_ = escape(name, LONGEST_CELL), escape(value, LONGEST_CELL)
            cells.append(f'<td role="cell" data-label="{label}"><span>{shown_}</span></td>')
        body.append(f'<tr role="row">{"".join(cells)}</tr>')
    return (
        f'<table role="table"><caption>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(body)}</tbody></table>'
    )


def _without_empty(rows: list[dict[str, str]]) -> list[Row]:
    """Without the columns in which no method has anything to show."""
    empty = [name for name in rows[0] if all(row[name] == NOTHING for row in rows)]
    return [{k: v for k, v in row.items() if k not in empty} for row in rows]
