"""Notes on a table's columns, in as few lines as say it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

COLUMN = re.compile(r"column '(.*)': (.*)", re.DOTALL)
COUNT = re.compile(r"(\d+) (.*)", re.DOTALL)
BETWEEN = "; "  # between what is said of a column
INDICATED = "are marked by a column of their own: clients differ in how many they miss"
MISSING = "missing values"
MOST_NAMED = 4


def by_column(notes: Sequence[str]) -> dict[str, str]:
    """What the notes say of each column."""
    found = (COLUMN.fullmatch(note) for note in notes)
    return {match[1]: match[2] for match in found if match}


def in_few_lines(notes: Sequence[str]) -> list[str]:
    """The same notes, with what is said of several columns said once."""
    said = by_column(notes)
    missing: dict[str, int] = {}
    marked = 0
    others: dict[str, dict[str, int | None]] = {}
    for column, remarks in said.items():
        for remark in remarks.split(BETWEEN):
            counted = COUNT.fullmatch(remark)
            count, what = (int(counted[1]), counted[2]) if counted else (None, remark)
            if count is not None and what.startswith(MISSING):
                missing[column] = count
                marked += INDICATED in what
            else:
                others.setdefault(what, {})[column] = count
    lines = [note for note in notes if not COLUMN.fullmatch(note)]
    if len(missing) == 1:
        column = next(iter(missing))
        what = next(r for r in said[column].split(BETWEEN) if MISSING in r)
        lines.append(f"column '{column}': {what}")
    elif missing:
        lines.append(_missing(missing, marked))
    for what, columns in others.items():
        lines.append(_of_columns(what, columns))
    return lines


def _missing(columns: Mapping[str, int], marked: int) -> str:
    line = (
        f"{sum(columns.values()):,} values are missing in {len(columns)} columns "
        f"({_named(columns, '{} {}')}) and became the training median or commonest value"
    )
    if not marked:
        return line
    whose = "all" if marked == len(columns) else str(marked)
    return f"{line}; those of {whose} {INDICATED}"


def _of_columns(what: str, columns: Mapping[str, int | None]) -> str:
    if len(columns) > 1:
        return f"columns {_named(columns, '{} ({})')}: {what}"
    column, count = next(iter(columns.items()))
    return f"column '{column}': {what if count is None else f'{count} {what}'}"


def _named(columns: Mapping[str, int | None], form: str) -> str:
    """Columns with the largest counts first, and how many more there are."""
    order = sorted(columns.items(), key=lambda item: -(item[1] or 0))
    shown = [(f"'{name}'", count) for name, count in order[:MOST_NAMED]]
    words = [form.format(name, count) if count else name for name, count in shown]
    more = len(order) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")
