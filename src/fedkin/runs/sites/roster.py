"""Who takes part in a run while it goes on: sites come, where it is open, and leave for good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.core.blocks import Block
from fedkin.core.federation import Federation, Request
from fedkin.core.memory import Memory
from fedkin.core.problem import Problem
from fedkin.engines.flower.exchange import KnownSite
from fedkin.errors import FedkinError
from fedkin.methods import Method, State
from fedkin.runs import checkpoint
from fedkin.runs.checks import problem, usual
from fedkin.runs.config import RunConfig
from fedkin.runs.sites.plan import Plan
from fedkin.runs.sites.schedule import warm_start


class Roster:
    """The plan of a run folder, changed as sites come and go.

    `active` sites, the first of the plan, are clients of the trainer now: those that came since
    are taken in before the next round, and so are those that the last checkpoint lacks.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.active = len(plan.cards)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites that are clients of the trainer, in order."""
        return self.plan.names[: self.active]

    def begin(self, known: Mapping[str, KnownSite]) -> None:
        """The run begins with these sites."""
        self.plan = self.plan.with_sites(known).write(self.folder)
        self.active = len(self.plan.cards)

    def go_on(self, checkpoints: Path) -> None:
        """The run goes on with the sites of its last checkpoint."""
        found, _ = checkpoint.latest(checkpoints)
        if found is not None:
            self.active = int(found.stated().about["clients"])

    def take_in(self, known: Mapping[str, KnownSite]) -> list[str]:
        """The sites that are to be clients from the next round on and were not yet."""
        new = [name for name in known if name not in self.plan.names]
        if new and self.plan.open:
            cards = (*self.plan.cards, *(known[name].facts for name in new))
            self.plan = replace(self.plan, cards=cards).write(self.folder)
        coming = self.plan.names[self.active :]
        self.active = len(self.plan.cards)
        return list(coming)

    def problem(self, config: RunConfig) -> Problem:
        """The run's problem for the trainer's clients, as far as a server knows it."""
        cards = self.plan.cards[: self.active]
        found = config.make_problem(replace(self.plan, cards=cards).data(config.data))
        if found.size != cards[0]["parameters"]:
            raise FedkinError(
                f"the sites' model has {cards[0]['parameters']} parameters, the server's "
                f"{found.size}; the versions of fedkin differ"
            )
        warm_start(self.folder, found)
        return found

    def part(self, facts: Mapping[str, Any]) -> None:
        """A site leaves for good."""
        name = facts.get("name")
        card = next((card for card in self.plan.cards if card["name"] == name), None)
        if card is None or card["identity"] != facts.get("identity"):
            raise FedkinError("it does not take part in this run, so it cannot leave it")
        if name not in self.plan.left:
            self.plan = replace(self.plan, left=(*self.plan.left, card["name"]))
            self.plan.write(self.folder)


class _Nobody:
    """Clients that must not be asked."""

    def __init__(self, clients: int) -> None:
        self.memory = Memory(clients)

    def run(self, request: Request) -> Iterator[Block]:
        raise FedkinError("it asks all clients before the first round")


def why_fixed(config: RunConfig) -> str | None:
    """Why sites cannot join a run of this config once it has begun; None if they can.

    Found by beginning it with five clients and with six: what the server remembers must be the
    same in form.
    """
    if config.dp_clip is not None:
        return "its privacy is accounted for a fixed number of clients"
    if config.data.client_table:
        return "its client_table names the sites"
    method = config.make_method()
    try:
        forms = [_form(_begun(method, clients)) for clients in (5, 6)]
    except FedkinError as error:
        return str(error)
    if forms[0] != forms[1]:
        return f"the server of {method.name} remembers something of every client"
    return None


def _begun(method: Method, clients: int) -> State:
    small = problem(usual(type(method)), clients=clients)
    return method.init(Federation(small, _Nobody(clients)))


def _form(state: State) -> dict[str, Any]:
    return {k: v.shape if isinstance(v, Tensor) else v for k, v in vars(state).items()}
