"""A run over sites: gather them, train round by round, and let each keep its own model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flwr.superlink.grid import HttpGrid

from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.engines.flower.engine import Flower
from fedkin.engines.flower.transport import FlowerTransport
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.runs.config import RunConfig
from fedkin.runs.folder import RunFolder
from fedkin.runs.models import named_global
from fedkin.runs.norms import completed
from fedkin.runs.pictures import write_results
from fedkin.runs.provenance import RESUME_SERVED
from fedkin.runs.settings import Settings
from fedkin.runs.sites.plan import Plan
from fedkin.runs.training import Trainer
from fedkin.tensors import write_tensors

HELLO_LIMIT = 10**6
Say = Callable[[str], None]


class ServedTrainer(Trainer):
    """A trainer whose clients are sites; their personal models stay with them."""

    def __init__(
        self,
        problem: Problem,
        method: Method,
        settings: Settings,
        folder: RunFolder,
        engine_for: Callable[[str], Flower],
        say: Say,
    ) -> None:
        super().__init__(problem, method, settings, folder, engine_for)
        self.say = say

    def _finish(self, folder: RunFolder) -> None:
        """Every site writes its own model; the server keeps the tables and the global model."""
        contender = self.contenders["method"]
        engine = contender.fed.engine
        assert isinstance(engine, Flower)
        write_results(folder.path, contender.method.results(contender.state), self.problem.data)
        contender.fed.after_round(self.round)
        missed = []
        for request in parts(contender.method.personal(contender.fed, contender.state)):
            done = engine.finish(completed(contender.fed, request))
            missed += [engine.sites[i] for i in done.at[~done.arrived].tolist()]
        shared = contender.method.global_model(contender.state)
        folder.models.mkdir(exist_ok=True)
        if shared is not None:
            path = folder.models / "global.safetensors"
            write_tensors(path, named_global(contender.fed, shared))
        if missed:
            self.say(
                f"not reached at the end, so their models are not written: {', '.join(missed)}; "
                f"let them join again and continue with: {RESUME_SERVED} {folder.path}"
            )


def make_trainer(
    grid: HttpGrid,
    folder: RunFolder,
    config: RunConfig,
    registered: bool,
    patience: float,
    say: Say,
) -> ServedTrainer:
    """Wait for the sites; return the trainer of this folder's run over them."""
    plan = Plan.read(folder.path)
    plan = replace(plan, starts=plan.starts + 1).write(folder.path)

    def warn(sentence: str) -> None:
        say(sentence)
        folder.log(sentence)

    def admit(facts: dict[str, Any]) -> None:
        plan.admit(facts, {k: c for k, c in transport.known.items() if k != facts.get("name")})

    hello = {"experiment": plan.experiment, "setup": plan.setup(config)}
    transport = FlowerTransport(grid, hello, admit, plan.waiting, HELLO_LIMIT, warn, registered)
    again = bool(plan.cards)
    wanted = plan.waiting.enough(len(plan.names)) if again else plan.clients
    say(f"waiting for {wanted} sites")
    if not transport.gather(lambda known: len(known) >= wanted, patience):
        raise FedkinError(
            f"only {len(transport.known)} of {wanted} sites joined within {patience:g} seconds"
            + (f" ({', '.join(sorted(transport.known))})" if transport.known else "")
            + f": wait for them again with `{RESUME_SERVED} {folder.path}`"
        )
    if not again:
        plan = plan.with_sites(transport.known).write(folder.path)
    say(f"sites: {', '.join(plan.names)}")
    problem = config.make_problem(plan.data(config.data))
    if problem.size != plan.cards[0]["parameters"]:
        raise FedkinError(
            f"the sites' model has {plan.cards[0]['parameters']} parameters, the server's "
            f"{problem.size}; the versions of fedkin differ"
        )
    transport.limit = 64 * 2**20 + 8 * problem.size * problem.initial.element_size()

    def engine_for(contender: str) -> Flower:
        return Flower(
            transport, plan.names, plan.experiment, contender, plan.starts, problem.device, warn
        )

    trainer = ServedTrainer(
        problem, config.make_method(), config.settings(), folder, engine_for, say
    )
    for sentence in trainer.resume() if again else ():
        warn(sentence)
    return trainer
