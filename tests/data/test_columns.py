"""Real tables: identifiers, dates, rare values, missing values, people and times."""

from datetime import date, timedelta

import numpy as np
import pandas as pd
import pytest

from fedkin.data import DataConfig, load
from fedkin.data.describe import describe_columns, target_words
from fedkin.data.preparation import Preparation
from fedkin.errors import FedkinError

ROWS = 240


def table() -> pd.DataFrame:
    """Four visits of each of 60 people at four sites, with columns as tables have them."""
    g = np.random.default_rng(0)
    person = np.arange(ROWS) // 4
    day = [(date(2020, 1, 1) + timedelta(days=int(d))).isoformat() for d in g.permutation(ROWS)]
    town = np.where(g.random(ROWS) < 0.1, [f"rare{i}" for i in range(ROWS)], "big")
    dose = g.normal(size=ROWS)
    frame = pd.DataFrame({
        "site": [f"s{p % 4}" for p in person], "person": person + 100, "row": range(ROWS),
        "name": [f"visit of {i}" for i in range(ROWS)], "day": day, "town": town,
        "age": g.integers(20, 80, ROWS), "dose": dose, "target": g.integers(0, 2, ROWS),
    })  # fmt: skip
    frame.loc[(frame["site"] == "s1") & (g.random(ROWS) < 0.5), "dose"] = np.nan
    return frame


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    place = tmp_path_factory.mktemp("data") / "visits.csv"
    table().to_csv(place, index=False)
    return place


def read(path, **keys):
    return load(DataConfig(name=str(path), client_column="site", **keys), 0)


def columns_of(data):
    return {column.name: column for column in data.preparation.columns}


def test_identifiers_are_left_out_and_said_so_unless_they_are_named(path):
    data = read(path)
    assert set(columns_of(data)) == {"day", "town", "age", "dose"}
    for name in ("person", "row", "name"):
        assert any(n.startswith(f"column '{name}': left out, looks like") for n in data.notes)
    assert set(columns_of(read(path, features="row,age"))) == {"row", "age"}
    assert set(columns_of(read(path, drop_columns=["day", "town"]))) == {"age", "dose"}
    with pytest.raises(FedkinError, match="did you mean 'age'"):
        read(path, features="aeg")
    with pytest.raises(FedkinError, match="is the client or the target"):
        read(path, features="age,target")


def test_dates_become_their_parts(path):
    column = columns_of(read(path))["day"]
    block = column.block(pd.Series(["2020-01-06", "2020-07-06", None]), "the data")
    assert block.shape == (3, 5)
    # both are Mondays, half a year apart
    np.testing.assert_allclose(block[0, 3:], block[1, 3:], atol=1e-6)
    np.testing.assert_allclose(block[0, 1:3], -block[1, 1:3], atol=0.05)
    assert np.isfinite(block).all()


def test_rare_values_share_a_column_with_those_never_seen(path):
    column = columns_of(read(path))["town"]
    assert column.values == ["big"]
    block = column.block(pd.Series(["big", "rare3", "never seen"]), "the data")
    assert block.tolist() == [[1, 0], [0, 1], [0, 1]]


def test_missing_values_are_marked_where_sites_differ_in_them(path):
    columns = columns_of(read(path))
    assert columns["dose"].indicator
    assert not columns["age"].indicator
    assert columns["dose"].block(pd.Series([np.nan, 0.0]), "")[:, 1].tolist() == [1, 0]


def test_what_is_kept_in_a_file_encodes_the_same(path):
    data = read(path)
    again = Preparation.from_facts(data.preparation.facts())
    np.testing.assert_array_equal(again.encode(table(), ""), data.preparation.encode(table(), ""))


def test_rows_of_a_person_are_never_on_both_sides(path):
    for seed in range(3):
        config = DataConfig(
            name=str(path), client_column="site", group_column="person",
            features="person", standardise=False, validation_fraction=0.2,
        )  # fmt: skip
        data = load(config, seed)
        parts = [
            {int(x) for x in part.x.flatten().tolist()}
            for part in (data.train, data.validation, data.test)
        ]
        assert len(parts[0] | parts[1] | parts[2]) == sum(map(len, parts))
        assert (data.test.sizes > 0).all()
        assert int(data.test.sizes.sum()) == pytest.approx(ROWS / 4, abs=8)


def test_later_rows_are_held_out(path):
    data = read(path, time_column="row", features="row", standardise=False)
    for i in range(data.num_clients):
        assert data.train[i][0].max() < data.test[i][0].min()
    with pytest.raises(FedkinError, match="is not a number or date"):
        read(path, time_column="town")


def test_nothing_is_learnt_from_rows_held_out(path, tmp_path):
    """Changing the test rows beyond recognition changes nothing that was learnt."""
    first = read(path, time_column="row")
    frame = table()
    late = frame["row"] >= 200
    frame.loc[late, "age"] = 10_000 + frame.loc[late, "age"]
    frame.loc[late, "town"] = "elsewhere"
    frame.to_csv(tmp_path / "changed.csv", index=False)
    second = read(tmp_path / "changed.csv", time_column="row")
    assert first.preparation.facts() == second.preparation.facts()


def test_each_column_is_described(path, fedkin):
    data = read(path)
    rows = describe_columns(data).set_index("column")
    assert rows.loc["day", "what it is"] == "date: time, season, day of the week"
    assert rows.loc["person", "what it is"] == "not used"
    assert target_words(data).startswith("target: 2 classes, 0 ")
    said = fedkin("partition", path, "--client-column", "site", "--describe")
    assert said.code == 0
    assert "category of 1: big" in " ".join(said.out.split())
