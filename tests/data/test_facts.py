"""Facts about clients, from a table of their own."""

from pathlib import Path

import pandas as pd
import pytest

from fedkin.data import DataConfig, from_arrays, load
from fedkin.errors import FedkinError


def digits(table: Path, **keys) -> dict:
    config = DataConfig(name="digits", num_clients=3, client_table=str(table), **keys)
    return load(config, seed=0).columns


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_facts_come_in_the_order_of_clients(tmp_path, kind):
    facts = {"client": [2, 0, 1, 9], "rate": ["1/4", "1", "1/2", "x"], "ram": [1.5, 2.5, None, 0]}
    path = tmp_path / f"devices.{kind}"
    getattr(pd.DataFrame(facts), f"to_{kind}")(path)
    columns = digits(path)
    assert columns["rate"] == ["1", "1/2", "1/4"]
    assert columns["ram"][::2] == [2.5, 1.5]
    assert pd.isna(columns["ram"][1])


def test_clients_are_named_as_in_the_data(tmp_path):
    data, devices = tmp_path / "patients.csv", tmp_path / "devices.csv"
    ages = [20 + i % 17 for i in range(40)]
    rows = {"site": ["b", "a"] * 20, "age": ages, "target": [0, 1, 1, 0] * 10}
    pd.DataFrame(rows).to_csv(data, index=False)
    devices.write_text("site,rate\na,0.5\nb,1\n")
    config = DataConfig(name=str(data), client_column="site", client_table=str(devices))
    found = load(config, seed=0)
    assert dict(zip(found.names, found.columns["rate"], strict=True)) == {"a": 0.5, "b": 1.0}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client,rate\n0,1\n1,1\n", "has 0 rows for client '2'; give one"),
        ("client,rate\n0,1\n1,1\n1,1\n2,1\n", "has 2 rows for client '1'; give one"),
        ("name,rate\n0,1\n", "has no column named client"),
        ("", "cannot be read as CSV"),
    ],
)
def test_tables_that_do_not_tell_of_every_client_once_are_refused(tmp_path, text, sentence):
    path = tmp_path / "devices.csv"
    path.write_text(text)
    with pytest.raises(FedkinError, match=sentence):
        digits(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FedkinError, match=r"'devices\.txt' is not a \.csv or \.parquet file"):
        digits(Path("devices.txt"))
    with pytest.raises(FedkinError, match="there is no file or folder"):
        digits(tmp_path / "devices.csv")


def test_facts_may_be_given_with_arrays():
    parts = [([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])] * 2
    assert from_arrays(parts, columns={"rate": (1, "1/2")}).columns == {"rate": [1, "1/2"]}
    with pytest.raises(FedkinError, match="2 clients but 1 values of 'rate'; give one each"):
        from_arrays(parts, columns={"rate": [1]})
