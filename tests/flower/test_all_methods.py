"""Every method gives the embedded engine's numbers through sites, their files and records.

Everything but the network: three residents with a data file and a memory on disk each, and
every letter and answer through Flower's records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedkin.data.site import Agreement
from fedkin.engines.flower import Flower, Letter
from fedkin.engines.wire import Message
from fedkin.flower.plan import Plan, read_serve_config
from fedkin.flower.post import Card, Terms
from fedkin.flower.records import from_records, to_records
from fedkin.flower.site import Resident
from fedkin.registry import methods
from fedkin.training import Trainer
from tests.flower.world import NAMES, embedded, write_config, write_data


class NoNetwork:
    """A post in this process."""

    def __init__(self, sites: dict[str, Resident]) -> None:
        self.sites = sites

    def exchange(self, letters: Sequence[Letter]) -> dict[int, Message | str]:
        answers: dict[int, Message | str] = {}
        for i, letter in enumerate(letters):
            down = to_records(letter.facts, shared=letter.shared, own=letter.own)
            tensors, facts = self.sites[letter.site].answer(*from_records(down))
            answers[i] = from_records(to_records(facts, reply=tensors))
        return answers


def through_sites(config_path: Path, files: dict[str, Path], folder: Path) -> Trainer:
    """A run whose clients are residents; the server sees only what they tell."""
    config, agreement = read_serve_config(config_path)
    plan = Plan.new("run", len(files), Agreement.model_validate(agreement), Terms())
    sites = {n: Resident(n, path, folder / n, say=print) for n, path in files.items()}
    hello = {"kind": "hello", "experiment": "e", "setup": plan.setup(config)}
    plan = plan.settled({n: Card(site.answer({}, hello)[1], 0) for n, site in sites.items()})
    problem = config.make_problem(plan.data())
    post = NoNetwork(sites)

    def port(lane: str) -> Flower:
        return Flower(post, plan.names, "e", lane, 1, problem.device, print)

    trainer = Trainer(problem, config.make_method(), config.settings(), None, port)
    trainer.run()
    return trainer


@pytest.mark.parametrize("method", list(methods()))
def test_every_method_gives_the_embedded_engines_numbers(tmp_path: Path, method: str):
    files = write_data(tmp_path)
    config = write_config(tmp_path, method, rounds=2, model="mlp:4", baseline=True)
    served, here = through_sites(config, files, tmp_path), embedded(config, files)
    for name, value in vars(here.lanes["method"].state).items():
        found = getattr(served.lanes["method"].state, name)
        if isinstance(value, Tensor):
            torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5)
        else:
            assert found == value
    for column, value in here.metrics[-1].items():
        found = served.metrics[-1][column]
        assert found == (value if value is None else pytest.approx(value, abs=1e-5)), column
    assert served.problem.data.names == NAMES
