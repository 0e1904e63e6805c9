"""CSV files with semicolons, tabs and decimal commas are read as what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedkin.data import DataConfig, load, own_rows
from fedkin.data.separators import separators
from fedkin.data.shards import load_elsewhere, load_some
from tests.data.test_shards import same
from tests.data.test_tables import patients, read

COLUMNS = {"client_column": "site", "target_column": "ill"}


@pytest.mark.parametrize(("sep", "decimal"), [(";", "."), (";", ","), ("\t", "."), ("\t", ",")])
def test_a_table_means_the_same_however_its_values_are_set_apart(
    sep: str, decimal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_rows, "CHUNK", 37)
    plain = read(patients(), tmp_path)
    path = tmp_path / "other.csv"
    patients().to_csv(path, index=False, sep=sep, decimal=decimal)
    config = DataConfig(name="csv", path=str(path), **COLUMNS)
    whole = load(config, 0)
    assert torch.equal(whole.train.x, plain.train.x)
    assert torch.equal(whole.train.y, plain.train.y)
    assert whole.names == plain.names
    same(load_some(config, 0, 1, 2, load_elsewhere(config, 0)), whole, 1)


def test_commas_in_names_or_words_do_not_mislead(tmp_path: Path) -> None:
    commas = tmp_path / "commas.csv"
    commas.write_text('site,"age; years",ill\nnorth,3,1\n')
    assert separators(commas) == {}
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("site;age;size\nnorth;1,5;2.5\n")  # thousands or decimals: nobody can tell
    assert separators(mixed) == {"sep": ";"}
    one = tmp_path / "one.csv"
    one.write_text("value\n1\n")
    assert separators(one) == {}
