"""Cross-validation: the results of a run that is made of one run for each fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedkin.core.accounts import COLUMNS
from fedkin.core.problem import Problem
from fedkin.runs.evaluation import Scores
from fedkin.runs.fold_scores import add_up, read_scores
from fedkin.runs.inputs import keep_inputs
from fedkin.runs.measures import keep_measures
from fedkin.runs.noise import keep_resamples
from fedkin.runs.reading import read_table
from fedkin.runs.records import scores_row, scores_table
from fedkin.tensors import write_text


def pool_folds(
    folder: Path, folds: Sequence[Path], problems: Sequence[Problem], metrics: Sequence[str]
) -> None:
    """Write the tables of a run as if its folds' test rows had been one test set.

    Scores are of all folds' rows; messages, diagnostics and training rows are means over the
    folds; seconds are added up.
    """
    tables = [read_table(path / "metrics.csv").set_index("round") for path in folds]
    means = [(problem.data.preparation.target or (0.0, 1.0))[0] for problem in problems]
    names, rows, clients = problems[0].data.names, [], []
    last: Mapping[str, Scores] = {}
    for number in tables[0].index:
        kept = [read_scores(path, number) for path in folds]
        scores = {kind: add_up([own[kind] for own in kept], means) for kind in kept[0]}
        row = scores_row(scores, metrics)
        others = pd.concat([table.loc[[number]] for table in tables]).mean(numeric_only=True)
        rows.append({"round": number, **row, **others.drop(list(row), errors="ignore")})
        if scores:
            clients.append(pd.DataFrame(scores_table(number, names, scores, metrics)))
            last = scores
    counted = pd.concat([_last(path) for path in folds]).groupby("client", sort=False)
    table = pd.concat(clients).join(
        counted[["train_samples", *COLUMNS]].mean().round().astype(int), on="client"
    )
    table["test_samples"] = table["client"].map(counted["test_samples"].sum())
    seconds = sum(read_table(path / "timing.csv").set_index("round")["seconds"] for path in folds)
    keep_inputs(folder, problems[0])
    keep_measures(folder, metrics)
    keep_resamples(folder, last, metrics[0])
    write_text(folder / "clients.csv", table.to_csv(index=False))
    write_text(folder / "timing.csv", pd.DataFrame(seconds).to_csv())
    write_text(folder / "metrics.csv", pd.DataFrame(rows).to_csv(index=False))


def _last(fold: Path) -> pd.DataFrame:
    table = read_table(fold / "clients.csv")
    return table[table["round"] == table["round"].max()]
