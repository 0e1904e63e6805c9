"""Some clients of a table, read without the others: the same bits as in the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin.data import DataConfig, load, own_rows
from fedkin.data.shards import load_elsewhere, load_some
from tests.data.test_shards import same


def table(clients: list[Any]) -> pd.DataFrame:
    """Numbers with gaps, words, dates, truth values; some columns look otherwise in a part."""
    rng = np.random.default_rng(0)
    n, client = 40 * len(clients), np.repeat(clients, 40)
    late = np.arange(n) >= n // 2
    return pd.DataFrame({
        "client": client,
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(50, 10, n).round(3)),
        "grade": np.where(late, rng.choice(["a", "7"], n), rng.choice(["7", "8"], n)),
        "seen": pd.date_range("2024-01-01", periods=n, freq="7h").strftime("%Y-%m-%d"),
        "smokes": rng.random(n) < 0.5,
        "dose": np.where(late, 10**17 + rng.integers(0, 9, n), rng.normal(0, 1, n)),
    })  # fmt: skip


TARGETS = {
    "words": lambda n, rng: rng.choice(["ill", "well"], n),
    "whole": lambda n, rng: rng.integers(3, 6, n),
    "halves": lambda n, rng: np.where(np.arange(n) < n // 2, 1.0, rng.choice([1.0, 2.5], n)),
    "measured": lambda n, rng: rng.normal(3, 2, n),
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("target", TARGETS)
def test_some_clients_of_a_table_have_the_bits_of_the_whole(
    kind: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_rows, "CHUNK", 37)
    frame = table([30, 4, 100, 7, 55, 6] if target == "words" else ["b", "a", "2", "e", "d", "c"])
    frame["target"] = TARGETS[target](len(frame), np.random.default_rng(1))
    frame = frame.sample(frac=1, random_state=2) if target == "measured" else frame
    path = tmp_path / f"table.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, row_group_size=37)
    task = "classification" if target == "halves" else "auto"
    config = DataConfig(name=kind, path=str(path), validation_fraction=0.2, task=task)
    config = config.model_copy(update={"standardise_target": target == "measured"})
    whole, known = load(config, 3), load_elsewhere(config, 3)
    assert known.kinds is not None
    for first, last in ((0, 1), (1, 4), (4, 6)):
        part = load_some(config, 3, first, last, known)
        assert part.num_clients == last - first
        same(part, whole, first)
        assert part.num_classes == whole.num_classes
        assert part.class_names == whole.class_names


def test_of_a_parquet_table_only_row_groups_with_ones_own_clients_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.parquet import ParquetFile

    frame = table(list("abcdef")).assign(target=np.tile([0, 1], 120))
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=40)
    config = DataConfig(name="parquet", path=str(tmp_path / "t.parquet"))
    known, read, usual = load_elsewhere(config, 0), [], ParquetFile.read_row_group

    def watched(self: Any, number: int, columns: Any = None, **options: Any) -> Any:
        read.append((number, columns))
        return usual(self, number, columns=columns, **options)

    monkeypatch.setattr(ParquetFile, "read_row_group", watched)
    load_some(config, 0, 2, 4, known)
    assert [number for number, columns in read if columns is None] == [2, 3]
    assert {tuple(columns) for _, columns in read if columns} == {("client",)}


def test_what_depends_on_other_clients_is_read_whole(tmp_path: Path) -> None:
    frame = table(list("abc")).assign(target=np.tile([0, 1], 60), person=np.arange(120) // 3)
    frame.to_csv(tmp_path / "t.csv", index=False)
    for more in ({"group_column": "person"}, {"unseen": 0.4}, {"partition": "iid"}):
        config = DataConfig(name="csv", path=str(tmp_path / "t.csv"), **more)
        known = load_elsewhere(config, 0)
        assert known.kinds is None
        same(load_some(config, 0, 1, 2, known), load(config, 0), 1)
