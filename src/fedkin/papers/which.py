"""Which method when: what the tables of methods side by side say together."""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.papers.results import Result

# what begins so may be the best of its column
BOLD = "**"


def which_when(results: Sequence[Result]) -> list[dict[str, str]]:
    """By method and kind of data: in how many columns it may be the best, and how far below it is.

    Columns are those of tables that mark in bold what may be the best. The distance is the largest
    one of the method's mean below the best mean of a column.
    """
    titles = list(dict.fromkeys(result.title for result in results))
    labels = list(dict.fromkeys(row["line"] for result in results for row in result.rows))
    rows = []
    for label in labels:
        row = {"method": label}
        for title in titles:
            row[title] = _told(label, [r for r in results if r.title == title])
        rows.append(row)
    return rows


def _told(label: str, results: Sequence[Result]) -> str:
    """`5 of 5, .4 below`."""
    best, distances = 0, list[float]()
    for result in results:
        own = next((row for row in result.rows if row["line"] == label), {"line": label})
        for column in (name for name in own if name != "line"):
            means = [number for row in result.rows if (number := _number(row[column])) is not None]
            mean = _number(own[column])
            if mean is not None:
                best += own[column].startswith(BOLD)
                distances.append(max(means) - mean)
    if not distances:
        return "—"
    return f"{best} of {len(distances)}, at most {max(distances):.1f} below"


def _number(cell: str) -> float | None:
    try:
        return float(cell.strip("*"))
    except ValueError:
        return None
