"""What rounds cost, from counts that can be made by hand; and that lines take turns."""

import pytest

from fedkin.papers.costs import costs
from fedkin.runs.training import Trainer

RUN = {"data": {"name": "digits", "num_clients": 4}, "model": {"name": "mlp:8"}, "baseline": False}
WHOLE = {"kind": "static", "rates": (1.0,)}
MIXED = {"kind": "random", "rates": (1.0, 0.5)}


def test_rates_and_bytes_are_those_of_the_models_sent():
    found = costs(0, {"whole": WHOLE, "mixed": MIXED}, 2, **RUN)
    whole, half = 8 * 64 + 8 + 10 * 8 + 10, 4 * 64 + 4 + 10 * 4 + 10
    assert found["whole"]["rate"] == found["whole"]["bytes"] == 1
    assert found["mixed"]["rate"] == 0.75
    assert found["mixed"]["bytes"] == pytest.approx((whole + half) / (2 * whole))


def test_rounds_of_all_lines_are_run_in_turn_and_none_is_evaluated(monkeypatch):
    order, step = [], Trainer.step

    def told(trainer):
        step(trainer)
        order.append((len(trainer.method.rates), trainer.round, len(trainer.clients)))

    monkeypatch.setattr(Trainer, "step", told)
    found = costs(0, {"whole": WHOLE, "mixed": MIXED}, 3, eval_every=100, **RUN)
    assert order == [(1, 1, 0), (2, 1, 0), (1, 2, 0), (2, 2, 0), (1, 3, 0), (2, 3, 0)]
    assert found["whole"]["seconds"] > 0
