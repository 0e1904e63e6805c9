"""What advice rests on: every way to train, on several splits of the same clients, in lockstep.

Settings are chosen on each split's own validation rows and judged on its test rows, so that
nothing is tuned on what is reported. Settings that lag behind after a third of the rounds are
given up, trials end when validation losses have ceased to fall, and only a trial's best models
are judged on test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.core.federation import Federation, Request, parts
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData
from fedkin.engines.lockstep import Lockstep, LockstepEngine, can_merge
from fedkin.errors import DivergedError, as_user_error
from fedkin.methods import LocalizedFedAvg
from fedkin.methods.base import use
from fedkin.methods.registry import get_method
from fedkin.models import build
from fedkin.runs.advice_scores import judge_loss, judge_models
from fedkin.runs.measures import Measure
from fedkin.runs.tasks import MOST_NUMBERS

Floats = npt.NDArray[np.float64]
ALONE, ONE = "local", "fedavg"
# from the simplest to the most elaborate: of ways that are equally good the first is preferred
SIMPLICITY = (ALONE, ONE, "fedavg-local", "fedper", "ditto", "ifca", "pfedkm", "perm")
GIVEN_UP = 3  # one of so many settings goes on after a third of the rounds
LATE = "perm"  # becomes personal after a third of the rounds only
PATIENCE = 2  # evaluations without a lower loss after which a trial ends


@dataclass(frozen=True)
class Trial:
    """A way to train: a method with its settings and a model, on one split, with everybody or
    without one site."""

    method: str
    options: Mapping[str, Any]
    model: str
    split: int
    without: int | None = None


@dataclass
class Course:
    """What a trial showed at each evaluation (rows): per site the mean validation loss, and the
    megabytes a site had sent and received. `test` is the metric at the best of them.

    `weights` are sites' validation rows, `mixing` who learnt from whom [N, N].
    """

    trial: Trial
    weights: Floats
    rounds: list[int] = field(default_factory=list)
    validation: list[Floats] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    test: Floats | None = None
    mixing: Floats | None = None
    failed: str = ""
    # localized FedAvg is FedAvg and some steps at home: its training serves both
    one_model: Course | None = None

    @property
    def losses(self) -> Floats:
        """The mean validation loss over all sites' rows, at each evaluation; infinite if bad."""
        if not self.validation:
            return np.array([np.inf])
        rows, weights = np.stack(self.validation), self.weights
        mean = np.where(weights > 0, rows, 0) @ (weights / max(weights.sum(), 1))
        return np.where(np.isfinite(mean), mean, np.inf)

    @property
    def best(self) -> int:
        """The evaluation with the lowest validation loss."""
        return int(self.losses.argmin())

    @property
    def best_round(self) -> int:
        return self.rounds[self.best]

    @property
    def best_validation(self) -> Floats:
        return self.validation[self.best]

    @property
    def stalled(self) -> bool:
        return len(self.rounds) - 1 - self.best >= PATIENCE

    @property
    def traffic(self) -> float:
        """Megabytes until the best evaluation."""
        return self.megabytes[self.best]


@dataclass(frozen=True)
class Splits:
    """The same clients divided in several ways."""

    data: tuple[ClientData, ...]
    measure: Measure

    @property
    def names(self) -> tuple[str, ...]:
        return self.data[0].names

    def problem(self, number: int, model: str, without: int | None = None) -> Problem:
        data = self.data[number]
        if without is not None:
            data = data.only([i for i in range(data.num_clients) if i != without])
        outputs = data.num_classes or max(1, data.train.y[0].numel())
        return Problem(build(model, data.input_shape, outputs, number), data)


def run_trials(
    splits: Splits,
    trials: Sequence[Trial],
    rounds: int,
    every: int,
    advance: Callable[[int], None] = lambda rounds: None,
) -> list[Course]:
    """Run trials, those of a method and model as one; a trial that diverges says so.

    `advance` is called with the number of trial rounds done. Trials that were given up are not
    among the answers.
    """
    problems: dict[tuple[int, str, int | None], Problem] = {}
    groups: dict[tuple[str, str, int], list[Trial]] = {}
    for trial in trials:
        key = (trial.split, trial.model, trial.without)
        if key not in problems:
            problems[key] = splits.problem(*key)
        # splits may differ in the categories they have seen, and so in the size of models
        groups.setdefault((trial.method, trial.model, problems[key].size), []).append(trial)
    found = []
    for same in groups.values():
        at = [problems[t.split, t.model, t.without] for t in same]
        for batch in _batches(list(zip(same, at, strict=True))):
            found += _together(batch, splits.measure.name, rounds, every, advance)
    return found + [c.one_model for c in found if c.one_model is not None and not c.failed]


Batch = Sequence[tuple[Trial, Problem]]


def _batches(trials: Batch) -> list[Batch]:
    """As many at once as memory allows."""
    problems = [problem for _, problem in trials]
    assert can_merge(problems)
    numbers = problems[0].num_clients * problems[0].size
    count = max(1, MOST_NUMBERS // (4 * max(1, numbers)))
    return [trials[i : i + count] for i in range(0, len(trials), count)]


class Live:
    """A trial while it trains. Its best models are kept until they are judged on test rows."""

    def __init__(self, trial: Trial, problem: Problem, engine: LockstepEngine, metric: str) -> None:
        assert problem.data.validation is not None
        weights = problem.data.validation.sizes.double().numpy()
        self.trial, self.course, self.metric = trial, Course(trial, weights), metric
        self.method = get_method(trial.method)(**trial.options)
        self.fed = Federation(problem, engine, trial.split)
        self.state: Any = None
        self.round = 0
        self.kept: dict[str, Request] = {}  # by method

    def train(self, until: int, every: int, advance: Callable[[int], None]) -> None:
        if self.state is None:
            self.state = self.method.init(self.fed)
        for at in range(self.round + 1, until + 1):
            self.fed.begin_round(at)
            self.method.round(self.fed, self.state)
            advance(1)
            if at % every == 0 or at == until:
                self.fed.after_round(at)
                self._evaluate(at)
                # who learns from whom goes on becoming clearer
                if self.trial.method != LATE and all(c.stalled for c in self.courses):
                    advance(until - at)
                    break
        self.round = until

    def _evaluate(self, at: int) -> None:
        fed, course, trial = self.fed, self.course, self.trial
        (asked,) = parts(self.method.personal(fed, self.state))  # all models have one form
        self._judge(course, fed.request(use, each={"model": fed.look(asked)["model"]}), at)
        if isinstance(self.method, LocalizedFedAvg):
            if course.one_model is None:
                options = {k: v for k, v in trial.options.items() if not k.startswith("tune")}
                one = Trial(ONE, options, trial.model, trial.split, trial.without)
                course.one_model = Course(one, course.weights)
            model = self.state.x.clone()
            self._judge(course.one_model, fed.request(use, shared={"model": model}), at)

    def _judge(self, course: Course, models: Request, at: int) -> None:
        course.validation.append(judge_loss(self.fed, models, "validation"))
        course.rounds.append(at)
        traffic = self.fed.accounts.column("bytes_up") + self.fed.accounts.column("bytes_down")
        course.megabytes.append(float(traffic.double().mean()) / 1e6)
        if course.best == len(course.rounds) - 1:
            self.kept[course.trial.method] = models

    def finish(self) -> None:
        """Judge the best models on test rows."""
        for course in self.courses:
            if course.trial.method in self.kept:
                models = self.kept[course.trial.method]
                course.test = judge_models(self.fed, models, "test", self.metric)
        self.kept.clear()
        found = self.method.results(self.state)
        if "mixing" in found and not found["mixing"].is_sparse:
            self.course.mixing = found["mixing"].double().numpy(force=True)
        elif "cluster" in found:
            same = (found["cluster"][:, None] == found["cluster"]).double()
            self.course.mixing = (same / same.sum(1, keepdim=True)).numpy(force=True)

    @property
    def courses(self) -> list[Course]:
        return [c for c in (self.course, self.course.one_model) if c is not None]


def _together(
    trials: Batch, metric: str, rounds: int, every: int, advance: Callable[[int], None]
) -> list[Course]:
    lockstep = Lockstep([problem for _, problem in trials])
    lives = [
        Live(trial, problem, lockstep.engine_of(number, "method"), metric)
        for number, (trial, problem) in enumerate(trials)
    ]

    def go(members: Sequence[Live], until: int) -> list[Live]:
        """Train some to a round; those that did not diverge."""

        def work(one: Live) -> None:
            if one in members:
                one.train(until, every, advance)
                if until == rounds:
                    one.finish()

        errors = lockstep.together([lambda one=one: work(one) for one in lives])  # type: ignore[misc]
        for one, error in zip(lives, errors, strict=True):
            if error is None:
                continue
            if not isinstance(error, DivergedError):
                raise as_user_error(error) or error if isinstance(error, Exception) else error
            one.course.failed, one.course.test = str(error), None
            one.course.rounds.clear()
            one.course.validation.clear()
        return [one for one in members if not one.course.failed]

    first = rounds // 3 // every * every
    alive = go(lives, first) if first else lives
    kept = promising(alive) if first else lives
    advance((rounds - first) * (len(lives) - len(kept)))
    go(kept, rounds)
    return [one.course for one in lives if one.course.failed or one in kept]


def promising(lives: Sequence[Live]) -> list[Live]:
    """Of every split's settings those with the lowest validation loss, personal or shared.

    PERM is no more than FedAvg by then: nothing of it is given up.
    """
    groups: dict[tuple[int, int | None, str], list[tuple[float, Live]]] = {}
    for one in lives:
        for course in one.courses:
            key = (one.trial.split, one.trial.without, course.trial.method)
            groups.setdefault(key, []).append((float(course.losses.min()), one))
    kept = {id(one) for one in lives if one.trial.method == LATE}
    for members in groups.values():
        order = sorted(members, key=lambda member: member[0])
        kept |= {id(one) for _, one in order[: -(-len(order) // GIVEN_UP)]}
    return [one for one in lives if id(one) in kept]


# choosing ----------------------------------------------------------------------------------


def choose_settings(courses: Sequence[Course]) -> Course | None:
    """Settings with the lowest validation loss; None if all trials diverged."""
    alive = [course for course in courses if course.test is not None]
    return min(alive, key=lambda course: course.losses.min()) if alive else None


def simplest_of_the_best(courses: Sequence[Course]) -> Course:
    """The simplest way whose validation loss is within one standard error of the lowest.

    The error is that of the paired difference over sites, weighed by their rows.
    """
    weights = courses[0].weights
    share = weights / max(weights.sum(), 1)
    best = min(courses, key=lambda course: course.losses.min())
    for course in sorted(courses, key=lambda course: SIMPLICITY.index(course.trial.method)):
        difference = np.where(weights > 0, course.best_validation - best.best_validation, 0)
        centre = float(difference @ share)
        error = float(np.sqrt((share**2 * (difference - centre) ** 2).sum()))
        if centre <= error:
            return course
    return best
