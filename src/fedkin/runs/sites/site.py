"""A site: its own data, its own memory, and its answers to the server. Independent of Flower."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.data.site import Agreement, load_site
from fedkin.engines.flower.store import RequestPosition, SiteMemory, Store
from fedkin.engines.wire import Message, Site
from fedkin.errors import FedkinError
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.inputs import Inputs
from fedkin.runs.models import named
from fedkin.runs.plugins import refuse_files
from fedkin.runs.validation import validated
from fedkin.tensors import write_tensors, write_text
from fedkin.version import __version__

MODEL_FILE = "model.safetensors"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


@dataclass
class Experiment:
    """The site's part of one run: setup, problem, memory, and what computes its answers."""

    setup: dict[str, Any]
    config: RunConfig
    problem: Problem
    memory: SiteMemory
    site: Site


class SiteWorker:
    """Answers the server's requests about one client's data.

    Kinds of requests: describe yourself (`hello`), run a step of an installed method (`work`),
    write your own model to a file (`finish`), and the notice that the site cannot take part
    (`refused`). The data file is chosen at the site only; no code and no path comes from the
    server.
    """

    def __init__(
        self,
        name: str,
        data: Path,
        home: Path,
        device: str = "cpu",
        say: Callable[[str], None] = print,
    ) -> None:
        if not re.match(NAME, name):
            raise FedkinError(f"'{name}' cannot be a site's name: letters, digits, . _ - only")
        self.name, self.data, self.home, self.device = name, data, home, device
        self.say = say
        self.finished = False
        self.refused: str | None = None  # why this site cannot take part in the last run
        self._experiments: dict[str, Experiment] = {}
        home.mkdir(parents=True, exist_ok=True)

    @property
    def model_path(self) -> Path:
        """Where the site's own model is at the end."""
        return self.home / MODEL_FILE

    def answer(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Message:
        """The answer to a request; a FedkinError says why there is none."""
        kind, experiment = facts["kind"], _safe(facts["experiment"])
        if kind == "hello":
            return {}, self._greeted(experiment, facts["setup"])
        if kind == "refused":
            self.refused = self.refused or str(facts["reason"])[:500]
            return {}, {}
        work = self._experiment(experiment)
        if kind == "work":
            return self._work(work, experiment, tensors, facts)
        if kind == "finish":
            return {}, self._finish(work, experiment, tensors, facts)
        raise FedkinError(f"request '{kind}' is not known here (fedkin {__version__})")

    # who are you -----------------------------------------------------------------------

    def _greeted(self, experiment: str, setup: dict[str, Any]) -> dict[str, Any]:
        """The answer to a hello; an error about the data is kept for the screen."""
        try:
            facts = self._hello(experiment, setup)
        except FedkinError as error:
            self.refused = str(error)
            raise
        self.refused = None
        return facts

    def _hello(self, experiment: str, setup: dict[str, Any]) -> dict[str, Any]:
        work = self._experiments.get(experiment)
        if work is None or work.setup != setup:
            work = self._experiments[experiment] = self._begin(setup)
            place = self.home / "memory" / experiment
            place.mkdir(parents=True, exist_ok=True)
            write_text(place / "setup.json", json.dumps(setup))
            self.say(f"asked to take part in '{experiment}'")
        problem = work.problem
        data = problem.data
        return {
            "name": self.name,
            "identity": self._identity(),
            "fedkin": __version__,
            "train": int(data.train.sizes[0]),
            "test": int(data.test.sizes[0]),
            "validation": None if data.validation is None else int(data.validation.sizes[0]),
            "shape": list(data.input_shape),
            "target": list(data.train.y.shape[1:]),
            "num_classes": data.num_classes,
            "parameters": problem.size,
        }

    def _identity(self) -> str:
        """An identifier that differs between sites, even if they have the same name."""
        path = self.home / "identity"
        if not path.exists():
            write_text(path, uuid.uuid4().hex)
        return path.read_text(encoding="utf-8")

    def _experiment(self, experiment: str) -> Experiment:
        if experiment not in self._experiments:
            path = self.home / "memory" / experiment / "setup.json"
            if not path.exists():
                raise FedkinError(f"experiment '{experiment}' was never introduced here")
            self._experiments[experiment] = self._begin(
                json.loads(path.read_text(encoding="utf-8"))
            )
        return self._experiments[experiment]

    def _begin(self, setup: dict[str, Any]) -> Experiment:
        agreement = validated(Agreement, setup["sites"], "[sites]")
        model = {**setup["model"], "device": self.device}
        refuse_files(setup, "a site runs only what is installed there, never a file it is told of")
        config = make_config(
            {"method": setup["method"], "seed": setup["seed"], "model": model},
            "the server's config",
        )
        data = load_site(self.data, self.name, setup["data"], agreement, config.seed)
        problem, memory = config.make_problem(data), SiteMemory()
        return Experiment(setup, config, problem, memory, Site(problem, memory))

    # work ------------------------------------------------------------------------------

    def _work(
        self, work: Experiment, experiment: str, tensors: dict[str, Tensor], facts: dict[str, Any]
    ) -> Message:
        store = self._store(experiment, facts["contender"])
        asked = {**facts, "client": 0}
        if not facts["remember"]:
            work.memory.rows = dict(store.now().rows or {})
            return work.site.answer(tensors, asked)
        place = RequestPosition(*facts["place"])
        return store.answer(place, work.memory, lambda: work.site.answer(tensors, asked))

    @lru_cache(maxsize=8)  # noqa: B019  (a site lives as long as its process)
    def _store(self, experiment: str, contender: str) -> Store:
        return Store(self.home / "memory" / experiment / _safe(contender))

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
        write_tensors(temporary, named(layout, reply["model"][0]), about)
        temporary.replace(self.model_path)
        self.finished = True
        return {"written": True}


def _safe(name: str) -> str:
    """A name from the server, checked to be safe as a file name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise FedkinError(f"'{name[:100]}' cannot be the name of an experiment or a contender")
    return name
