"""The [sites] table written from tables is one that serves, and sites read their files by it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pandas as pd
import pytest

from fedkin.data.site import Agreement, load_site
from fedkin.errors import FedkinError
from fedkin.runs.sites.describing import sites_table


def test_a_table_is_described_as_a_site_reads_it(tmp_path: Path):
    for i, name in enumerate("ab"):
        table = {"name": [f"p{i}{j}" for j in range(60)], "age": range(20 + i, 80 + i),
                 "sex": ["f", "m" if i else "x"] * 30, "sick": ["no", "yes"] * 30}  # fmt: skip
        pd.DataFrame(table).to_csv(tmp_path / f"{name}.csv", index=False)
    text, notes = sites_table([tmp_path / "a.csv", tmp_path / "b.csv"], "sick")
    found = tomllib.loads(text)
    assert found["sites"] == {
        "features": ["age", "sex"], "classes": ["no", "yes"],
        "categories": {"sex": ["f", "m", "x"]}, "scale": {"age": [50.0, 17.3]},
    }  # fmt: skip
    assert notes == ["column 'name' is left out: it has 120 different words"]
    agreed = Agreement.model_validate(found["sites"])
    data = load_site(tmp_path / "a.csv", "a", found["data"], agreed, 0)
    assert (data.input_shape, data.num_classes) == ((4,), 2)


def test_numbers_to_predict_are_classes_only_where_they_are_few(tmp_path: Path):
    path = tmp_path / "t.csv"
    pd.DataFrame({"x": [1.5, 2, 3], "y": [0, 2, 1]}).to_csv(path, index=False)
    assert tomllib.loads(sites_table([path], "y")[0])["sites"]["classes"] == ["0", "1", "2"]
    pd.DataFrame({"x": [1.5, 2, 3], "y": [0.5, 2, 1]}).to_csv(path, index=False)
    found = tomllib.loads(sites_table([path], "y", ["x"])[0])["sites"]
    assert "classes" not in found
    assert "y" in found["scale"]
    with pytest.raises(FedkinError, match="unknown column 'z'"):
        sites_table([path], "z")
