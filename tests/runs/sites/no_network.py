"""Runs through sites with everything but the network.

Site workers with a data file and a memory on disk each, and every request and answer through
Flower's records: what the same run over the network does when nothing goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fedkin.data.site import Agreement
from fedkin.engines.flower.engine import Flower, SiteRequest
from fedkin.engines.flower.exchange import KnownSite, WaitPolicy
from fedkin.engines.flower.records import from_records, to_records
from fedkin.engines.wire import Message
from fedkin.runs.sites.plan import Plan, read_serve_config
from fedkin.runs.sites.roster import Roster
from fedkin.runs.sites.site import SiteWorker
from fedkin.runs.training import Trainer


class NoNetwork:
    """A transport in this process."""

    def __init__(self, sites: dict[str, SiteWorker]) -> None:
        self.sites = sites

    def exchange(
        self, requests: Sequence[SiteRequest], everyone: bool = False
    ) -> dict[int, Message | str]:
        answers: dict[int, Message | str] = {}
        for i, request in enumerate(requests):
            down = to_records(request.facts, shared=request.shared, own=request.own)
            tensors, facts = self.sites[request.site].answer(*from_records(down))
            answers[i] = from_records(to_records(facts, reply=tensors))
        return answers


def engine_over(transport: NoNetwork, roster: Roster) -> Callable[[str], Flower]:
    """Engines for the sites that a roster has when they are made."""
    cpu = torch.device("cpu")
    return lambda name: Flower(transport, roster.names, "e", name, 1, cpu, print)


def through_sites(config_path: Path, files: dict[str, Path], folder: Path) -> Trainer:
    """A run whose clients are residents; the server sees only what they tell."""
    config, agreement = read_serve_config(config_path)
    plan = Plan.new("run", len(files), Agreement.model_validate(agreement), WaitPolicy())
    sites = {n: SiteWorker(n, path, folder / n, say=print) for n, path in files.items()}
    hello = {"kind": "hello", "experiment": "e", "setup": plan.setup(config)}
    plan = plan.with_sites(
        {n: KnownSite(site.answer({}, hello)[1], 0) for n, site in sites.items()}
    )
    problem = config.make_problem(plan.data(config.data))
    transport = NoNetwork(sites)

    def port(contender: str) -> Flower:
        return Flower(transport, plan.names, "e", contender, 1, problem.device, print)

    trainer = Trainer(problem, config.make_method(), config.settings(), None, port)
    trainer.run()
    return trainer
