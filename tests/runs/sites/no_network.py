"""Runs through sites with everything but the network.

Residents with a data file and a memory on disk each, and every letter and answer through
Flower's records: what the same run over the network does when nothing goes wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedkin.data.site import Agreement
from fedkin.engines.flower.engine import Flower, Letter
from fedkin.engines.flower.post import Card, Terms
from fedkin.engines.flower.records import from_records, to_records
from fedkin.engines.wire import Message
from fedkin.runs.sites.plan import Plan, read_serve_config
from fedkin.runs.sites.site import Resident
from fedkin.runs.training import Trainer


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
    problem = config.make_problem(plan.data(config.data))
    post = NoNetwork(sites)

    def port(contender: str) -> Flower:
        return Flower(post, plan.names, "e", contender, 1, problem.device, print)

    trainer = Trainer(problem, config.make_method(), config.settings(), None, port)
    trainer.run()
    return trainer
