"""Sites' own tables give the numbers that `fedkin run` gives on the table of all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedkin.command.cli import main
from tests.runs.sites.no_network import through_sites

CONFIG = """
method = "scaffold"
rounds = 3
eval_every = 1
[model]
name = "mlp:8"
batch_size = 10
[data]
target_column = "outcome"
standardise = false
validation_fraction = 0.2
train_per_client = 40
[sites]
features = ["age", "bmi"]
classes = ["no", "yes"]
"""


def test_the_same_tables_give_the_same_numbers_in_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rng, tables = np.random.default_rng(0), {}
    for i, name in enumerate(("b-north", "a-south", "c")):
        x = rng.normal(size=(60 + 25 * i, 2)).round(3)
        sick = np.where(x.sum(1) + 0.5 * i > 0, "yes", "no")
        tables[name] = pd.DataFrame({"age": x[:, 0], "bmi": x[:, 1], "outcome": sick})
        tables[name].to_csv(tmp_path / f"{name}.csv", index=False)
    # where a client's rows are in the table of all does not matter, but their order does
    whole = pd.concat([tables[name].assign(site=name) for name in ("c", "b-north", "a-south")])
    whole.to_csv(tmp_path / "all.csv", index=False)
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    files = {name: tmp_path / f"{name}.csv" for name in tables}
    served = pd.DataFrame(through_sites(config, files, tmp_path / "homes").metrics)

    words = [config, "--data", tmp_path / "all.csv", "--client-column", "site", "--quiet"]
    config.write_text(CONFIG[: CONFIG.index("[sites]")])
    monkeypatch.setattr(sys, "argv", ["fedkin", "run", *map(str, words), "--out", "run"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    here = pd.read_csv(tmp_path / "run" / "metrics.csv")
    for column in here.columns:
        np.testing.assert_allclose(
            here[column].astype(float), served[column].astype(float), rtol=1e-5, atol=1e-5,
            err_msg=column,
        )  # fmt: skip
    clients = pd.read_csv(tmp_path / "run" / "clients.csv")
    assert clients["train_samples"].iloc[:3].tolist() == [40, 36, 40]
