"""A run over sites: gather them, train round by round, and let each keep its own model."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.engines.flower.attendance import Attendance
from fedkin.engines.flower.engine import Flower
from fedkin.engines.flower.logs import debugger, warner
from fedkin.engines.flower.private import HttpGrid
from fedkin.engines.flower.summing import SecureFlower
from fedkin.engines.flower.transport import FlowerTransport
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.runs.config import RunConfig
from fedkin.runs.evaluation import Scores
from fedkin.runs.folder import RunFolder
from fedkin.runs.models import named_global
from fedkin.runs.norms import completed
from fedkin.runs.pictures import write_results
from fedkin.runs.provenance import RESUME_SERVED
from fedkin.runs.settings import Settings
from fedkin.runs.sites.plan import Plan
from fedkin.runs.sites.roster import Roster
from fedkin.runs.sites.status import EVERY, Status
from fedkin.runs.sites.sums import secure_sums
from fedkin.runs.training import Trainer
from fedkin.tensors import write_tensors

HELLO_LIMIT = 10**6
MOST_BUNDLED = 25  # requests in a message to a machine of many sites, if models are small
Say = Callable[[str], None]


class ServedTrainer(Trainer):
    """A trainer whose clients are sites; their personal models stay with them."""

    secret_noise = True
    sees_data = False

    def __init__(
        self,
        problem: Problem,
        method: Method,
        settings: Settings,
        folder: RunFolder,
        engine_for: Callable[[str], Flower],
        say: Say,
        attendance: Attendance | None = None,
        note: Callable[[str, int], None] = lambda state, number: None,
        newcomers: Callable[[], Problem | None] = lambda: None,
    ) -> None:
        super().__init__(problem, method, settings, folder, engine_for)
        self._newcomers = newcomers  # gives the problem with them, if there are any
        self.left: Callable[[], Collection[str]] = tuple  # sites that nobody waits for any more
        self.say, self.attendance, self.note = say, attendance or Attendance(), note
        self.unfinished: list[str] = []  # sites that did not confirm that they have their model

    def step(self) -> None:
        """One round; sites that have come since the last one take part in it."""
        problem = self._newcomers()
        if problem is not None:
            before, self.problem, self._trivial = self.contenders, problem, None
            self.contenders = self.make_contenders()
            for name, contender in self.contenders.items():
                contender.state = before[name].state
                counted = before[name].fed.accounts.table
                contender.fed.accounts.table[: len(counted)] = counted
        super().step()

    def _row(self, number: int, scores: dict[str, Scores]) -> dict[str, Any]:
        """With the requests that no site answered in time, and answers late or left out."""
        totals, sentence = self.attendance.end_round()
        self.note("training", number)
        if sentence and self.folder:
            self.folder.log(f"round {number}: {sentence}")
        return super()._row(number, scores) | totals

    def _finish(self, folder: RunFolder) -> None:
        """Every site writes its own model; the server keeps the tables and the global model."""
        contender = self.contenders["method"]
        engine = contender.fed.engine
        assert isinstance(engine, Flower)
        write_results(folder.path, contender.method.results(contender.state), self.problem.data)
        contender.fed.after_round(self.round)
        missed: list[str] = []
        for request in parts(contender.method.personal(contender.fed, contender.state)):
            done = engine.finish(completed(contender.fed, request))
            names = [engine.sites[i] for i in done.at[~done.arrived].tolist()]
            missed += [name for name in names if name not in self.left()]
        shared = contender.method.global_model(contender.state)
        folder.models.mkdir(exist_ok=True)
        if shared is not None:
            path = folder.models / "global.safetensors"
            write_tensors(path, named_global(contender.fed, shared))
        for sentence in self.attendance.summary():
            self.say(sentence)
            folder.log(sentence)
        self.unfinished = missed
        self.note("finished", self.round)
        if missed:
            folder.log(f"no word at the end, so perhaps without a model: {', '.join(missed)}")


def make_trainer(
    grid: HttpGrid,
    folder: RunFolder,
    config: RunConfig,
    registered: bool,
    patience: float,
    say: Say,
    resume: str = RESUME_SERVED,
    look: Callable[[], None] = lambda: None,
) -> ServedTrainer:
    """Wait for the sites; return the trainer of this folder's run over them.

    `resume` is the command that continues such a run, up to its folder. `look` is called about
    every second while sites are waited for.
    """
    plan = Plan.read(folder.path)
    plan = replace(plan, starts=plan.starts + 1).write(folder.path)
    roster = Roster(folder.path, plan)

    def warn(sentence: str) -> None:
        warner(say)(sentence)
        folder.log(sentence)

    def admit(facts: dict[str, Any]) -> None:
        others = {k: c for k, c in transport.known.items() if k != facts.get("name")}
        roster.plan.admit(facts, others)

    hello: dict[str, Any] = {"experiment": plan.experiment, "setup": plan.setup(config)}
    status = Status(plan.experiment, config.method, config.rounds)

    def note(state: str, number: int) -> None:
        status.state, status.round = state, number
        status.saw(transport.attendance, roster.plan.names, transport.known)
        status.write(folder.path)

    def looked() -> None:
        look()
        if time.time() > status.updated + EVERY:
            note(status.state, status.round)

    transport = FlowerTransport(
        grid, hello, admit, plan.waiting, HELLO_LIMIT, warn, registered, look=looked,
        part=roster.part,
    )  # fmt: skip
    transport.left.update(plan.left)
    transport.debug = debugger(say)
    note("waiting", 0)
    again = bool(plan.cards)
    wanted = len(set(plan.names) - set(plan.left)) if again else plan.clients
    say(f"waiting for {wanted} sites")
    here = transport.gather(
        lambda known: len(known) >= wanted, min(patience, plan.timeout) if again else patience
    )
    if again and not here:  # those who come later get their requests then
        wanted = 1
        here = transport.gather(lambda known: len(known) >= wanted, patience)
    if not here:
        raise FedkinError(
            f"only {len(transport.known)} of {wanted} sites joined within {patience:g} seconds"
            + (f" ({', '.join(sorted(transport.known))})" if transport.known else "")
            + f": wait for them again with `{resume} {folder.path}`"
        )
    if again:
        roster.go_on(folder.checkpoints)
    else:
        roster.begin(transport.known)
    say(f"sites: {', '.join(roster.names)}")
    problem = roster.problem(config)
    model = problem.size * problem.initial.element_size()
    transport.limit = 64 * 2**20 + 8 * model
    transport.bundle = max(1, min(MOST_BUNDLED, 16 * 2**20 // model))

    samples = problem.train.sizes
    secure = secure_sums(plan.secure, hello["setup"], samples) if plan.secure else None

    def engine_for(contender: str) -> Flower:
        sizes = [card["train"] for card in roster.plan.cards[: roster.active]]
        about = (
            transport, roster.names, plan.experiment, contender, plan.starts, problem.device, warn,
            transport.attendance.not_used, sizes,
        )  # fmt: skip
        return SecureFlower(secure, *about) if secure else Flower(*about)

    def newcomers() -> Problem | None:
        names = roster.take_in(transport.known)
        if not names:
            return None
        warn(f"from now on {', '.join(names)} take part")
        return roster.problem(config)

    trainer = ServedTrainer(
        problem, config.make_method(), config.settings(), folder, engine_for, say,
        transport.attendance, note, newcomers,
    )  # fmt: skip
    trainer.left = lambda: transport.left
    note("training", trainer.round)
    transport.stopping = lambda: trainer.stopping
    for contender in trainer.contenders.values():
        if isinstance(contender.fed.engine, SecureFlower):
            contender.fed.engine.stopping = transport.stopping
    for sentence in trainer.resume() if again else ():
        warn(sentence)
    return trainer
