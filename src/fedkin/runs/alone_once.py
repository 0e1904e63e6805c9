"""Going alone, once for all methods of a comparison: whoever trains it first keeps its scores.

A run that is given them trains no model alone. Its checkpoints have none either: if it goes on
without the scores, in another process, it first trains these models up to where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedkin.core.problem import Problem
from fedkin.methods import Local, Method
from fedkin.runs.config import RunConfig
from fedkin.runs.contender import local_like
from fedkin.runs.evaluation import Scores
from fedkin.runs.settings import Settings

# clients times evaluations whose scores are kept at most: some 100 MB
MOST = 1_000_000
KINDS = {"local": "personal", "local_validation": "validation"}  # beside others; of runs alone


@dataclass
class AloneOnce:
    """Scores of local-only training with one setting, by round."""

    scores: dict[int, dict[str, Scores]] = field(default_factory=dict)

    def note(self, number: int, method: Method, found: Mapping[str, Scores]) -> None:
        """Keep what an evaluation of a run says of going alone."""
        own = {k: v if isinstance(method, Local) else k for k, v in KINDS.items()}
        self.scores[number] = {kind: found[name] for kind, name in own.items() if name in found}

    def known(self, settings: Settings) -> bool:
        """Whether all evaluations of a run are there."""
        due = range(settings.eval_every, settings.rounds, settings.eval_every)
        return all(number in self.scores for number in (*due, settings.rounds))


@dataclass
class Shared:
    """All of a comparison's."""

    found: dict[str, AloneOnce] = field(default_factory=dict)

    def of(self, config: RunConfig, problem: Problem) -> AloneOnce | None:
        """Those of a config; None where runs are not to share them."""
        settings = config.settings()
        count = problem.num_clients * (settings.rounds // settings.eval_every + 1)
        # a run that may end early, or whose state goes to files, keeps its own
        if settings.patience is not None or settings.memory is not None or count > MOST:
            return None
        if not settings.baseline or config.engine != "embedded":
            return None
        # nor does one whose method's sums are changed on the way: going alone has none
        private = any(v is not None for k, v in vars(settings).items() if k.startswith("dp_"))
        if private or settings.aggregate != "mean":
            return None
        # all but the method must be the same, and so must the steps
        rest = config.model_dump_json(exclude={"method", "options"})
        method = config.make_method()
        steps = method if isinstance(method, Local) else local_like(method)
        return self.found.setdefault(f"{steps!r} {rest}", AloneOnce())
