"""`python -m fedkin.papers.gap ITEM`: train-test gaps, bytes and seconds of a submodel item.

Run the item first: `python -m fedkin.papers submodel ITEM`. Here its global models are judged on
all clients' examples together, their batch norms settled to training examples of all clients.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.comparison import Entry
from fedkin.evaluation import score_pooled
from fedkin.papers.submodel import PRINTED_GAPS, PRINTED_RATES, RECIPES
from fedkin.tensors import read_tensors


def gaps(item: str, folder: Path, seeds: int, at_most: int = 10_000) -> pd.DataFrame:
    """One row per line of an item: means over seeds, beside what the paper printed.

    Gaps are test minus train loss, and train minus test accuracy in points; `at_most` examples
    of each are judged.
    """
    recipe = RECIPES[item]
    labels = {line.slug: line.label for line in recipe.lines}
    rows = []
    for entry in recipe.entries(seeds):
        rows.append({"line": labels[entry.label], **judged(entry, folder, at_most)})
    table = pd.DataFrame(rows).groupby("line", sort=False).mean().reset_index()
    level = "high" if "high" in item else "low"
    printed = [PRINTED_GAPS.get((level, line), (None, None)) for line in table["line"]]
    table["printed_loss_gap"] = [loss for loss, _ in printed]
    table["printed_accuracy_gap"] = [accuracy for _, accuracy in printed]
    table["printed_rate"] = [PRINTED_RATES.get(line) for line in table["line"]]
    return table


def judged(entry: Entry, folder: Path, at_most: int) -> dict[str, Any]:
    """One finished run: its global model's scores, and what it sent and took."""
    run = entry.folder(folder)
    problem = entry.config.make_problem(entry.config.make_data())
    named = read_tensors(run / "models" / "global.safetensors")
    model = problem.layout.join({name: value[None] for name, value in named.items()})[0]
    test = score_pooled(problem, model, "test", at_most)
    train = score_pooled(problem, model, "train", at_most)
    metrics, timing = pd.read_csv(run / "metrics.csv"), pd.read_csv(run / "timing.csv")
    sent = metrics[["bytes_down", "bytes_up"]].iloc[-1].sum()
    visits = len(metrics) * max(1, round(entry.config.fraction * problem.num_clients))
    return {
        "test_loss": test.loss,
        "test_accuracy": 100 * test.accuracy,
        "loss_gap": test.loss - train.loss,
        "accuracy_gap": 100 * (train.accuracy - test.accuracy),
        "rate": metrics["rate"].mean(),
        "bytes_share": sent / (2 * visits * problem.size * problem.initial.element_size()),
        "seconds_per_round": timing["seconds"].median(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedkin.papers.gap")
    parser.add_argument("item", choices=sorted(RECIPES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="where the runs are")
    given = parser.parse_args()
    folder = given.out / "submodel" / given.item
    table = gaps(given.item, folder, given.seeds)
    table.to_csv(folder / "gaps.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
