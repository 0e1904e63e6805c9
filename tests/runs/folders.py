"""Run folders with numbers chosen by a test, in place of a training's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkin.toml import to_toml

EVERY = 10


def write_run(
    path: Path,
    method: str,
    seed: int,
    scores: Sequence[Sequence[float]],
    alone: Sequence[float] | None = None,
    validation: Sequence[float] | None = None,
    shared: Sequence[float] | None = None,
    done: int | None = None,
    data: str | None = None,
    score: str = "accuracy",
    **options: Any,
) -> Path:
    """A run whose clients have `scores[evaluation][client]`, evaluated every ten rounds.

    `alone` are the clients' scores without help, at every evaluation; `validation` and
    `shared` (the global model's) one number per evaluation. It stopped after `done` of them.
    """
    path.mkdir(parents=True)
    rounds = EVERY * len(scores)
    other = "loss" if score == "accuracy" else "accuracy"
    config = {
        "method": method, "rounds": rounds, "seed": seed, "options": options,
        "data": {"name": "made-up"}, "made_with": {"data_sha256": data or f"data of {seed}"},
    }  # fmt: skip
    (path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    metrics, clients = [], []
    rounds = EVERY * (len(scores) if done is None else done)
    for number in range(1, rounds + 1):
        row = {"round": number, f"personal_{score}": None, f"validation_{score}": None,
               f"local_{score}": None, f"global_{score}": None,
               "bytes_up": 1_000_000 * number, "bytes_down": 2_000_000 * number,
               "gradients": 5 * number}  # fmt: skip
        row |= {f"{kind}_{other}": None for kind in ("personal", "validation", "local", "global")}
        if number % EVERY == 0:
            k = number // EVERY - 1
            row[f"personal_{score}"] = float(np.mean(scores[k]))
            row["personal_loss"] = row.get("personal_loss") or 1 - float(np.mean(scores[k]))
            row[f"local_{score}"] = None if alone is None else float(np.mean(alone))
            row[f"validation_{score}"] = validation and validation[k]
            row[f"global_{score}"] = shared and shared[k]
            clients += [
                {"round": number, "client": str(i), f"personal_{score}": value,
                 f"personal_{other}": None, f"local_{score}": None if alone is None else alone[i],
                 "bytes_up": 1000 * number * (i + 1), "bytes_down": 0}
                for i, value in enumerate(scores[k])
            ]  # fmt: skip
        metrics.append(row)
    timing = [{"round": row["round"], "seconds": 0.5} for row in metrics]
    for name, rows in (("metrics", metrics), ("clients", clients), ("timing", timing)):
        if rows:  # a run that was stopped at once has no tables
            pd.DataFrame(rows).to_csv(path / f"{name}.csv", index=False)
    return path
