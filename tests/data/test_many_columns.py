"""Tables with very many columns: the same numbers as column by column, and in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedkin.data import preparation, tables
from fedkin.data.many_columns import encode_plain, learn_plain
from fedkin.data.preparation import Preparation, learn_columns
from fedkin.errors import FedkinError


def table(rows: int = 57) -> pd.DataFrame:
    g = np.random.default_rng(0)
    found = {f"float {i}": g.normal(i, 10.0 ** (i % 5 - 2), rows) for i in range(40)}
    found |= {f"whole {i}": g.integers(0, 3 + i, rows) for i in range(12)}
    found["holes"] = np.where(g.random(rows) < 0.2, np.nan, g.normal(size=rows))
    found["constant"] = np.full(rows, 3.25)
    found["running"] = np.arange(rows)
    found["patient_id"] = g.integers(0, 10**6, rows)
    found["truth"] = g.random(rows) < 0.5
    found["words"] = g.choice(["a", "b"], rows)
    return pd.DataFrame(found)


@pytest.mark.parametrize("standardise", [True, False])
def test_columns_together_are_learnt_and_encoded_to_the_bit_as_one_by_one(
    standardise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, train = table(), np.random.default_rng(1).permutation(57)[:41]
    assert len(learn_plain(frame, train, standardise, 20)) > 40
    together, notes = learn_columns(frame, train, standardise)
    encoded = Preparation(together).encode(frame, "table")
    assert encode_plain([c for c in together if c.name == "float 1"], frame)
    monkeypatch.setattr(preparation, "learn_plain", lambda *_: {})
    monkeypatch.setattr(preparation, "encode_plain", lambda *_: {})
    single, single_notes = learn_columns(frame, train, standardise)
    assert (together, notes) == (single, single_notes)
    assert {"running", "patient_id"}.isdisjoint(column.name for column in single)
    np.testing.assert_array_equal(encoded, Preparation(single).encode(frame, "table"))


def test_thousands_of_columns_of_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "MOST_CLOSE_LOOKS", 3)
    frame = pd.DataFrame({f"word {i}": list("abcd") * 5 for i in range(4)})
    with pytest.raises(FedkinError, match=r"4 columns of words, dates, .* at most 3 can be used"):
        learn_columns(frame, np.arange(20), True)


NAMES = ("01", "1", "1.0", "01")


@pytest.mark.parametrize("columns", [5, tables.WIDE + 5])
def test_clients_are_read_as_written_in_narrow_and_in_wide_tables(
    tmp_path: Path, columns: int
) -> None:
    header = ",".join(["row", "client", *(f"x{i}" for i in range(columns))])
    rows = [",".join([str(row), name, *["0.5"] * columns]) for row, name in enumerate(NAMES)]
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    frame = tables.read_file(str(tmp_path / "t.csv"), "csv", dtype=tables.as_written("client"))
    assert list(frame["client"]) == list(NAMES)
    assert list(frame["row"]) == [0, 1, 2, 3]
    assert (frame["x0"] == 0.5).all()
    assert len(frame.columns) == columns + 2


def test_a_wide_table_whose_rows_end_in_a_comma_is_read_as_pandas_reads_it(tmp_path: Path) -> None:
    names = ["client", *(f"x{i}" for i in range(tables.WIDE + 5))]
    rows = [",".join([name, *map(str, range(len(names) - 1))]) + "," for name in NAMES]
    (tmp_path / "t.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
    typed = tables.as_written("client")
    frame = tables.read_file(str(tmp_path / "t.csv"), "csv", dtype=typed)
    pd.testing.assert_frame_equal(frame, pd.read_csv(tmp_path / "t.csv", dtype=typed))
