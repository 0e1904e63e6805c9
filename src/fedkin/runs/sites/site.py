"""A site: its own data, its own memory, and its answers to the server. Independent of Flower."""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.data.clients import ClientData
from fedkin.data.site import load_site
from fedkin.engines.flower.store import RequestPosition, SiteMemory, Store
from fedkin.engines.flower.text import shown
from fedkin.engines.secure.site import SecureSite
from fedkin.engines.wire import Message, Site
from fedkin.errors import FedkinError
from fedkin.runs.config import RunConfig
from fedkin.runs.inputs import Inputs
from fedkin.runs.models import named
from fedkin.runs.reading import read_text
from fedkin.runs.sites.announcement import Announcement, in_words
from fedkin.runs.sites.ledger import Ledger
from fedkin.runs.sites.names import check_name, safe
from fedkin.runs.sites.policy import TABLES, PolicyError, SitePolicy
from fedkin.runs.sites.sums import agree_to_sums, answer_stage, no_rows
from fedkin.runs.sites.terms import Terms
from fedkin.tensors import write_tensors, write_text
from fedkin.version import __version__

MODEL_FILE = "model.safetensors"
LINE_EVERY = 10.0  # seconds between two lines of progress


@dataclass
class Experiment:
    """The site's part of one run: setup, problem, memory, and what computes its answers."""

    setup: dict[str, Any]
    config: RunConfig
    problem: Problem
    memory: SiteMemory
    site: Site
    terms: Terms


class SiteWorker:
    """Answers the server's requests about one client's data.

    Kinds of requests: describe yourself (`hello`), run a step of an installed method (`work`), a
    stage of a secure sum (`secure`), write your own model to a file (`finish`), and the notice
    that the site cannot take part (`refused`). The data file is chosen at the site only; no code
    and no path comes from the server. A run must be within the `policy` and is shown to `agree`
    before the data are read; a request that is not part of what was agreed to is refused and ends
    the run here.
    """

    def __init__(
        self,
        name: str,
        data: Path,
        home: Path,
        device: str = "cpu",
        say: Callable[[str], None] = print,
        secure: SecureSite | None = None,
        policy: SitePolicy | None = None,
        agree: Callable[[list[str]], bool] = lambda words: True,
        server: str = "the server",
    ) -> None:
        check_name(name)
        self.name, self.data, self.home, self.device = name, data, home, device
        self.say, self.secure, self.server = say, secure, server
        self.policy, self.agree = policy or SitePolicy(), agree
        self.finished, self._result = False, ""
        self.leaving = False  # whether this site only tells that it leaves for good
        self.lines, self._told = False, 0.0  # whether to tell of rounds in plain lines, and when
        self.refused: str | None = None  # why this site cannot take part in the last run
        self._experiments: dict[str, Experiment] = {}
        home.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(home)

    @classmethod
    def try_out(
        cls, name: str, data: Path, setup: dict[str, Any], policy: SitePolicy
    ) -> dict[str, Any]:
        """What this site would tell of itself, without a server and without a trace."""
        with tempfile.TemporaryDirectory() as home:
            site = cls(name, data, Path(home), policy=policy)
            card = site._hello("check", setup)
        return {key: card[key] for key in ("train", "test", "shape", "num_classes", "parameters")}

    # as the process sees it that connects it

    @property
    def title(self) -> str:
        return f"site '{self.name}'"

    def begin_anew(self) -> None:
        self.finished = False

    @property
    def result(self) -> str:
        return self._result or f"the model of '{self.name}' is {self.model_path}"

    def forget_older(self, days: float) -> list[str]:
        """Remove what is remembered of runs that are over for so long; gives their names."""
        return self.ledger.forget_older(days)

    @property
    def model_path(self) -> Path:
        """Where the site's own model is at the end."""
        return self.home / MODEL_FILE

    def answer(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Message:
        """The answer to a request; a FedkinError says why there is none."""
        kind, experiment = facts["kind"], safe(facts["experiment"])
        if kind == "hello":
            return {}, self._greeted(experiment, facts["setup"])
        if kind == "refused":
            if self.leaving:
                self.finished, self._result = True, f"'{self.name}': {shown(facts['reason'], 500)}"
            else:
                self.refused = self.refused or shown(facts["reason"], 500)
            return {}, {}
        if kind not in ("work", "secure", "finish"):
            raise FedkinError(
                f"request '{shown(kind, 40)}' is not known here (fedkin {__version__})"
            )
        work = self._experiment(experiment)
        try:
            self._within(work, experiment, tensors, facts)
        except PolicyError as error:
            self._end(experiment, f"the server asked for {error}")
            raise
        if kind == "work":
            return no_rows(work.setup, self._work(work, experiment, tensors, facts))
        if kind == "secure":
            return answer_stage(
                self.secure, work.setup, int(work.problem.train.sizes[0]),
                self._store(experiment, facts["contender"]).folder, tensors, facts,
                lambda: self._work(work, experiment, tensors, facts),
            )  # fmt: skip
        return {}, self._finish(work, experiment, tensors, facts)

    def _within(
        self, work: Experiment, experiment: str, tensors: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Refuse what is not part of the run agreed to."""
        most = self.policy.requests(work.terms.rounds)
        if self.ledger.asked(experiment) > most:
            raise PolicyError(f"more than the {most} requests allowed")
        if facts["kind"] != "secure" or facts["stage"] == "keys":  # later stages ask for no step
            work.terms.check(tensors, facts)

    def _end(self, experiment: str, reason: str) -> None:
        """No more answers in this run: said on the screen, kept, and told to the server."""
        self.ledger.end(experiment, reason)
        self._experiments.pop(experiment, None)
        self.refused = f"{reason}, which is outside what was agreed to; the run is ended here"

    # who are you -----------------------------------------------------------------------

    def _greeted(self, experiment: str, setup: dict[str, Any]) -> dict[str, Any]:
        """The answer to a hello; an error about the data is kept for the screen."""
        if self.leaving:
            return {"name": self.name, "identity": self._identity(), "leaving": True}
        try:
            facts = self._hello(experiment, setup)
        except FedkinError as error:
            self.refused = str(error)
            raise
        self.refused = None
        return facts

    def _hello(self, experiment: str, setup: dict[str, Any]) -> dict[str, Any]:
        ended = self.ledger.ended(experiment)
        if ended is not None:
            raise PolicyError(f"this run was ended here: {ended}")
        work = self._experiments.get(experiment)
        if work is None or work.setup != setup:
            self._settle(experiment, setup)
            work = self._experiments[experiment] = self._begin(setup)
        problem = work.problem
        data = problem.data
        return {
            "name": self.name,
            "identity": self._identity(),
            "fedkin": __version__,
            **_sizes(data),
            "shape": list(data.input_shape),
            "target": list(data.train.y.shape[1:]),
            "num_classes": data.num_classes,
            "parameters": problem.size,
        }

    def _settle(self, experiment: str, setup: dict[str, Any]) -> None:
        """Ask this site's people whether it takes part, unless they have said so already."""
        announced = Announcement.read(setup)
        self.policy.check_setup(announced.checked(), self.data)
        agree_to_sums(self.secure, setup)
        before = self.ledger.agreed(experiment)
        if before is not None and before["setup"] == setup:
            return
        if before is not None and {**before["setup"], "rounds": 0} != {**setup, "rounds": 0}:
            self._end(experiment, "the server announced another run under the name of this one")
            raise PolicyError("it is not the run that this site agreed to")
        if self.ledger.runs >= self.policy.most_runs:
            raise PolicyError(f"this site has taken part in {self.ledger.runs} runs: its limit")
        method = announced.config("cpu").make_method()
        table = self.data.suffix.lower() in TABLES
        words = in_words(self.name, self.server, experiment, announced, method, self.policy, table)
        if not self.agree(words):
            raise PolicyError("this site's people do not agree")
        limits = self.policy.model_dump()
        self.ledger.agree(experiment, self.server, words, setup=setup, limits=limits)

    def _identity(self) -> str:
        """An identifier that differs between sites, even if they have the same name."""
        path = self.home / "identity"
        if not path.exists():
            write_text(path, uuid.uuid4().hex)
        return read_text(path)[:64]

    def _experiment(self, experiment: str) -> Experiment:
        ended = self.ledger.ended(experiment)
        if ended is not None:
            raise PolicyError(f"this run was ended here: {ended}")
        if experiment not in self._experiments:
            agreed = self.ledger.agreed(experiment)
            if agreed is None:
                raise FedkinError(f"experiment '{experiment}' was never introduced here")
            self.policy.check_setup(Announcement.read(agreed["setup"]).checked(), self.data)
            self._experiments[experiment] = self._begin(agreed["setup"])
        return self._experiments[experiment]

    def _begin(self, setup: dict[str, Any]) -> Experiment:
        agree_to_sums(self.secure, setup)
        announced = Announcement.read(setup)
        config = announced.config(self.device)
        data = load_site(self.data, self.name, announced.data, announced.sites, config.seed)
        self.policy.check_parts(_sizes(data))
        outputs = data.num_classes or max(1, data.train.y[0].numel())
        self.policy.check_model(config.model.name, data.input_shape, outputs)
        problem, memory = config.make_problem(data), SiteMemory()
        self.policy.check_size(problem.size)
        method, rounds = config.make_method(), announced.rounds
        terms = Terms.of(method, announced.baseline, rounds, config.seed, self.policy, problem.size)
        terms.privacy = announced.privacy
        terms.shares = int(announced.secure["at_least"]) if announced.secure else None
        return Experiment(setup, config, problem, memory, Site(problem, memory), terms)

    # work ------------------------------------------------------------------------------

    def _work(
        self, work: Experiment, experiment: str, tensors: dict[str, Tensor], facts: dict[str, Any]
    ) -> Message:
        store = self._store(experiment, facts["contender"])
        if self.lines and time.monotonic() > self._told + LINE_EVERY:
            self._told = time.monotonic()
            self.say(f"'{experiment}': round {facts['place'][1]} of {work.terms.rounds}")
        asked = {**facts, "client": 0}

        def answer() -> Message:
            reply, counted = work.site.answer(tensors, asked)
            if 0 < counted["samples"] < self.policy.least_rows:
                self._end(experiment, f"the server asked about {counted['samples']} rows")
                raise PolicyError(f"an answer would rest on {counted['samples']} rows")
            return reply, counted

        if not facts["remember"]:
            work.memory.rows = dict(store.now().rows or {})
            return answer()
        return store.answer(RequestPosition(*facts["place"]), work.memory, answer)

    def _store(self, experiment: str, contender: str) -> Store:
        return Store(self.home / "memory" / experiment / safe(contender))

    def _finish(
        self, work: Experiment, experiment: str, tensors: dict[str, Tensor], facts: dict[str, Any]
    ) -> dict[str, Any]:
        """Write the personal model here; the server learns only that it was done."""
        reply, _ = self._work(work, experiment, tensors, {**facts, "remember": False})
        variant, data = Variant(**facts["variant"]), work.problem.data
        about = {
            "client": self.name,
            "experiment": experiment,
            "model": work.config.model.name,
            "rate": str(variant.rate),
            "classes": json.dumps(data.class_names),
            "preparation": json.dumps(data.preparation.facts()),
            "inputs": Inputs.of(work.problem).to_json(),
        }
        temporary = self.model_path.with_name(f".{MODEL_FILE}")
        layout = work.problem.variant(variant).complete
        # under the run's own name as well, so that the next run does not replace it
        for path in (self.home / f"model-{experiment}.safetensors", self.model_path):
            write_tensors(temporary, named(layout, reply["model"][0]), about)
            temporary.replace(path)
        self.finished = True
        return {"written": True}


def _sizes(data: ClientData) -> dict[str, int | None]:
    """How many rows each part has; None for a part that there is not."""
    parts = {"train": data.train, "test": data.test, "validation": data.validation}
    return {name: None if part is None else int(part.sizes[0]) for name, part in parts.items()}
