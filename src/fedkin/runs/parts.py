"""Tables that grow long: the rows of earlier rounds in parquet files beside the csv file.

`clients.csv` is joined by `clients.0001.parquet`, `clients.0002.parquet`, ..., each a tenth of
the rows' size as text. A part is written whole before its rows leave the csv file: rows that a
crash has left in both count once.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from fedkin.runs.reading import parts_of, read_rows
from fedkin.tensors import write_bytes, write_text

# bytes of a csv file from which on its rows go to a part
LARGE = 16_000_000


def shorten(path: Path) -> None:
    """Move the rows of a csv file to a new part, if it is large."""
    if not path.is_file() or path.stat().st_size < LARGE:
        return
    rows = read_rows(path)
    _write(path.with_name(f"{path.stem}.{len(parts_of(path)) + 1:04d}.parquet"), rows)
    _empty(path, rows)


def cut_parts(path: Path, last_round: int) -> None:
    """Drop the rows of rounds after this one from a table's parts, and from the csv file those
    that a crash has left in both."""
    parts = parts_of(path)
    ended = int(read_rows(parts[-1])["round"].iloc[-1]) if parts else 0
    own = read_rows(path) if parts else pd.DataFrame()
    if len(own) and own["round"].iloc[0] <= ended:
        _empty(path, own)
    for part in reversed(parts):
        rows = read_rows(part)
        kept = rows[rows["round"] <= last_round]
        if len(kept) == len(rows):
            break
        _write(part, kept) if len(kept) else part.unlink()


def _empty(path: Path, rows: pd.DataFrame) -> None:
    """Leave a csv file its header alone."""
    write_text(path, rows.iloc[:0].to_csv(index=False, lineterminator="\n"))


def _write(path: Path, rows: pd.DataFrame) -> None:
    content = io.BytesIO()
    rows.to_parquet(content, index=False, compression="zstd")
    write_bytes(path, content.getvalue())
