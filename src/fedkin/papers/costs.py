"""What a round costs: the share of the model that is sent, and seconds.

The lines' rounds are run in turn. A machine that grows slower or faster meanwhile does so for all
of them, where runs one after the other differed by more than what was to be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkin.papers.measures import Measure
from fedkin.runs.config import make_config
from fedkin.runs.training import Trainer

RATE = Measure("rate", "mean rate of the models sent", lambda run: None, ".4f")
BYTES_SHARE = Measure("bytes", "bytes sent, as a share of whole models", lambda run: None, ".4f")
ROUND_SECONDS = Measure("seconds", "seconds per round", lambda run: None, ".3g")
# the share of rounds, at the beginning, in which an engine still chooses how to compute
FIRST = 0.2


def costs(
    seed: int, lines: Mapping[str, Mapping[str, Any]], rounds: int, **run: Any
) -> dict[str, dict[str, float]]:
    """By line, from its options of method `submodel`, the three measures above."""
    trainers, data = dict[str, Trainer](), None
    for label, options in lines.items():
        # of one round more, which is not run: the last is followed by an evaluation
        own = {"method": "submodel", "options": dict(options), "seed": seed, "rounds": rounds + 1}
        config = make_config({**run, **own})
        data = data or config.make_data()
        problem = config.make_problem(data)
        trainers[label] = Trainer(problem, config.make_method(), config.settings())
    for _ in range(rounds):
        for trainer in trainers.values():
            trainer.step()
    return {label: _of_rounds(trainer) for label, trainer in trainers.items()}


def _of_rounds(trainer: Trainer) -> dict[str, float]:
    fed = trainer.contenders["method"].fed
    settled = trainer.timing[int(FIRST * len(trainer.timing)) :]
    visits = len(trainer.timing) * fed.count_asked(fed.fraction, fed.size)
    whole = trainer.problem.initial[0].nbytes
    sent = fed.accounts.total("bytes_down") + fed.accounts.total("bytes_up")
    return {
        "rate": sum(row["rate"] for row in trainer.metrics) / len(trainer.metrics),
        "bytes": sent / (2 * visits * whole),
        "seconds": sum(row["seconds"] for row in settled) / len(settled),
    }
