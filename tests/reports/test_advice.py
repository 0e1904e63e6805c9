"""Advice as words, files and a page, for any names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.core.metrics import get_metric
from fedkin.errors import FedkinError
from fedkin.reports.advice_words import answer, certainty, interval
from fedkin.reports.advice_write import Advised, write_advice
from fedkin.runs.advice import give_advice, splits_of
from fedkin.runs.advice_answer import Effort
from fedkin.runs.advice_scores import Gain
from fedkin.runs.advice_shrink import Spread
from fedkin.runs.config import read_config
from fedkin.runs.measures import ACCURACY, Measure
from fedkin.runs.sites.plan import read_serve_config

NAMES = (
    "<script>alert(1)</script>", "$x_{1", "clinic " + "long " * 2000, "\u202e'd\"\u2066",
)  # fmt: skip


def write_table(folder: Path) -> Path:
    """Four sites with odd names; one is another's twin."""
    rng, rows = np.random.default_rng(0), []
    for place, name in enumerate(NAMES):
        x = rng.normal(size=(24, 3))
        y = x @ ([1, -1, 0] if place % 2 else [-1, 1, 0]) > 0
        frame = pd.DataFrame(x, columns=["a", "b", "c"])
        frame["colour"] = rng.choice(["red", "blue"], 24)
        frame["site"], frame["ill"] = name, np.where(y, "yes", "no")
        rows.append(frame)
    pd.concat(rows).to_csv(path := folder / "table.csv", index=False)
    return path


def quick_advice(table: Path) -> Advised:
    config = fedkin.DataConfig(name=str(table), client_column="site", target_column="ill")
    return Advised(give_advice(config, Effort(3, 4, 2)))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("advice"))


@pytest.fixture(scope="module")
def advised(table: Path) -> Advised:
    return quick_advice(table)


def test_the_page_has_the_answer_first_and_escapes_names(advised: Advised, tmp_path: Path) -> None:
    page = advised.save(tmp_path / "out").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert not set("\u202e\u2066") & set(page)
    assert len(page) < 10**6
    assert "long " * 20 not in page.replace("\n", " ")[: page.index("Do it")]
    assert page.index("collaborat") < page.index("Site by site") < page.index("In pictures")
    assert "http://" not in page.replace("http://www.w3.org", "")
    with pytest.raises(FedkinError, match="already holds advice"):
        write_advice(advised.advice, tmp_path / "out")


def test_the_files_agree_with_each_other(advised: Advised, tmp_path: Path) -> None:
    folder = advised.save(tmp_path / "out").parent
    numbers = json.loads((folder / "advice.json").read_text(encoding="utf-8"))
    sites = pd.read_csv(folder / "sites.csv")
    assert numbers["decision"] == advised.decision
    assert list(sites["site"]) == [site["name"] for site in numbers["sites"]] == sorted(NAMES)
    assert sites["gain"].tolist() == pytest.approx([s["gain"]["mean"] for s in numbers["sites"]])
    assert sum(numbers["counts"].values()) == 4


def test_run_and_serve_take_the_config_as_it_is(advised: Advised, tmp_path: Path) -> None:
    path = advised.save(tmp_path / "out").parent / "config.toml"
    config = read_config(path)
    assert config.method == advised.advice.method
    assert config.rounds == advised.advice.rounds
    config.make_problem(config.make_data())
    served, agreement = read_serve_config(path)
    assert served.method == config.method
    assert agreement.features == ["a", "b", "c", "colour"]
    assert agreement.categories == {"colour": ["blue", "red"]}
    assert agreement.class_names == ("no", "yes")


def test_sites_judged_by_the_mean_of_all_are_said_to_be(advised: Advised) -> None:
    own = [Gain(mean, mean - 1, mean + 1) for mean in (0.3, -0.1, 0.2)] * 4
    sites = [replace(advised.advice.sites[0], gain=Gain(0.1, 0.05, 0.15), own_gain=g) for g in own]
    alike = replace(advised.advice, sites=tuple(sites), spread=Spread(0.01, 0.001, 0.03, 0.6))
    assert "no proof for any single one. By their own rows 8 are better" in " ".join(answer(alike))
    said = " ".join(certainty(alike))
    assert "about 1.0 (95 % interval 0.1 to 3.0; Cochran's Q: p = 0.6)" in said
    differ = replace(alike, spread=Spread(0.1, 0.05, 0.2, 0.001))
    assert "does not differ beyond noise" not in " ".join(answer(differ))
    assert "does not differ beyond noise" not in " ".join(advised.words["Should you collaborate?"])


def test_it_shows_itself(advised: Advised) -> None:
    assert "Should you collaborate?" in repr(advised)
    assert "<script>" not in advised._repr_html_()
    assert len(advised.table) == 4
    assert advised.plot()._repr_png_()[:4] == b"\x89PNG"


def test_what_is_wrong_is_said_plainly(table: Path) -> None:
    with pytest.raises(FedkinError, match="did you mean 'site'"):
        fedkin.advise(table, client_column="sites", target_column="ill")
    with pytest.raises(FedkinError, match="cannot be read"):
        fedkin.advise("table.xlsx")


def test_rows_are_divided_by_advise_alone(table: Path) -> None:
    columns = {"client_column": "site", "target_column": "ill"}
    with pytest.raises(FedkinError, match="test = folds:5 does not go with advise"):
        fedkin.advise(table, test="folds:5", **columns)
    with pytest.raises(FedkinError, match=r"unseen = 0.2 does not go with advise"):
        fedkin.advise(table, unseen=0.2, **columns)


def test_splits_by_time_begin_at_different_times(table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    frame["day"] = frame.groupby("site").cumcount()
    frame["late"] = frame["day"]
    frame.to_csv(path := tmp_path / "days.csv", index=False)
    keys = {"client_column": "site", "target_column": "ill", "time_column": "day"}
    config = fedkin.DataConfig(name=str(path), features=("late",), standardise=False, **keys)
    splits = splits_of(config, Effort(3, 1, 1), fedkin.load(config, 0))
    begins = [float(data.test.x.min()) for data in splits.data]
    assert sorted(begins, reverse=True) == begins
    assert len(set(begins)) == 3
    assert all(data.train.x.max() < data.test.x.min() for data in splits.data)


def test_digits_beyond_the_noise_are_not_shown() -> None:
    rmse = Measure.of(get_metric("rmse"))
    assert interval(Gain(1.4, 0.0151, 2.62), rmse) == "+1.40 (+0.02 to +2.62)"
    assert interval(Gain(140.0, -12.3456, 292.3), rmse) == "+140 (-12 to +292)"
    assert interval(Gain(3e-9, 1e-9, 5e-9), rmse) == "+3e-09 (+1e-09 to +5e-09)"
    assert interval(Gain(0.0, 0.0, 0.0), rmse) == "0 (0 to 0)"
    assert interval(Gain(0.0512, None, None), ACCURACY) == "+5.1"
