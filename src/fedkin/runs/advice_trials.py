"""What advice rests on: every way to train, on several splits of the same clients, in lockstep.

Settings are chosen on each split's own validation rows and judged on its test rows, so that
nothing is tuned on what is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.core.federation import Federation, Requests
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData
from fedkin.engines.lockstep import Lockstep, can_merge
from fedkin.errors import DivergedError, as_user_error
from fedkin.methods import LocalizedFedAvg, Method
from fedkin.methods.base import use
from fedkin.methods.registry import get_method
from fedkin.models import build
from fedkin.runs.advice_scores import judge_models
from fedkin.runs.comparison import MOST_NUMBERS
from fedkin.runs.measures import Measure

Floats = npt.NDArray[np.float64]
ALONE, ONE = "local", "fedavg"
# from the simplest to the most elaborate: of ways that are equally good the first is preferred
SIMPLICITY = (ALONE, ONE, "fedavg-local", "ditto", "ifca", "pfedkm", "perm")


@dataclass(frozen=True)
class Trial:
    """A way to train: a method with its settings and a model, on one split."""

    method: str
    options: Mapping[str, Any]
    model: str
    split: int


@dataclass
class Course:
    """What a trial showed at each evaluation (rows): per site the mean validation loss and the
    metric on test rows, and how many bytes a site had sent and received."""

    trial: Trial
    rounds: list[int] = field(default_factory=list)
    validation: list[Floats] = field(default_factory=list)
    test: list[Floats] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    mixing: Floats | None = None
    failed: str = ""
    # localized FedAvg is FedAvg and some steps at home: its training serves both
    one_model: Course | None = None

    def losses(self, weights: Floats) -> Floats:
        """The mean validation loss over all sites' rows, at each evaluation; infinite if bad."""
        if not self.validation:
            return np.array([np.inf])
        rows = np.stack(self.validation)
        mean = np.where(weights > 0, rows, 0) @ (weights / max(weights.sum(), 1))
        return np.where(np.isfinite(mean), mean, np.inf)

    def best(self, weights: Floats) -> int:
        """The evaluation with the lowest validation loss."""
        return int(self.losses(weights).argmin())


@dataclass(frozen=True)
class Splits:
    """The same clients divided in several ways; `weights` are validation rows per site."""

    data: tuple[ClientData, ...]
    measure: Measure

    @property
    def names(self) -> tuple[str, ...]:
        return self.data[0].names

    def weights(self, number: int) -> Floats:
        validation = self.data[number].validation
        assert validation is not None
        return validation.sizes.double().numpy()

    def without(self, site: int) -> Splits:
        keep = [i for i in range(len(self.names)) if i != site]
        return Splits(tuple(data.only(keep) for data in self.data), self.measure)

    def problem(self, number: int, model: str) -> Problem:
        data = self.data[number]
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

    `advance` is called with the number of trial rounds done.
    """
    problems: dict[tuple[int, str], Problem] = {}
    groups: dict[tuple[str, str, int], list[Trial]] = {}
    for trial in trials:
        key = (trial.split, trial.model)
        if key not in problems:
            problems[key] = splits.problem(*key)
        # splits may differ in the categories they have seen, and so in the size of models
        groups.setdefault((trial.method, trial.model, problems[key].size), []).append(trial)
    found: dict[int, Course] = {}
    for same in groups.values():
        at = [problems[t.split, t.model] for t in same]
        for batch in _batches(same, at):
            at = [problems[t.split, t.model] for t in batch]
            courses = _together(batch, at, splits.measure.name, rounds, every, advance)
            found |= {id(course.trial): course for course in courses}
    courses = [found[id(trial)] for trial in trials]
    return courses + [c.one_model for c in courses if c.one_model is not None and not c.failed]


def _batches(trials: Sequence[Trial], problems: Sequence[Problem]) -> list[list[Trial]]:
    """As many at once as memory allows."""
    assert can_merge(problems)
    numbers = problems[0].num_clients * problems[0].size
    count = max(1, MOST_NUMBERS // (4 * max(1, numbers)))
    return [list(trials[i : i + count]) for i in range(0, len(trials), count)]


def _together(
    trials: Sequence[Trial],
    problems: Sequence[Problem],
    metric: str,
    rounds: int,
    every: int,
    advance: Callable[[int], None],
) -> list[Course]:
    lockstep = Lockstep(problems)
    courses = [Course(trial) for trial in trials]

    def live(number: int) -> None:
        trial, course = trials[number], courses[number]
        method = get_method(trial.method)(**trial.options)
        engine = lockstep.engine_of(number, "method")
        fed = Federation(problems[number], engine, trial.split)
        state = method.init(fed)
        for at in range(1, rounds + 1):
            fed.begin_round(at)
            method.round(fed, state)
            if at % every == 0 or at == rounds:
                fed.after_round(at)
                _evaluate(course, fed, method, state, metric, at)
            advance(1)
        if course.one_model is not None:
            course.one_model.megabytes = course.megabytes
        mixing = method.results(state).get("mixing")
        course.mixing = None if mixing is None else mixing.double().numpy(force=True)

    errors = lockstep.together([lambda n=n: live(n) for n in range(len(trials))])  # type: ignore[misc]
    for course, error in zip(courses, errors, strict=True):
        if error is None:
            continue
        if not isinstance(error, DivergedError):
            raise as_user_error(error) or error if isinstance(error, Exception) else error
        course.failed = str(error)
        course.rounds.clear()
        course.validation.clear()
    return courses


def _evaluate(
    course: Course, fed: Federation, method: Method, state: Any, metric: str, at: int
) -> None:
    """Judge everybody's model on validation and on test rows."""
    _judge(course, fed, method.personal(fed, state), metric, at)
    traffic = fed.accounts.column("bytes_up") + fed.accounts.column("bytes_down")
    course.megabytes.append(float(traffic.double().mean()) / 1e6)
    if isinstance(method, LocalizedFedAvg):
        if course.one_model is None:
            trial = course.trial
            options = {k: v for k, v in trial.options.items() if not k.startswith("tune")}
            course.one_model = Course(Trial(ONE, options, trial.model, trial.split))
        asked = fed.request(use, shared={"model": state.x})
        _judge(course.one_model, fed, asked, metric, at)


def _judge(course: Course, fed: Federation, asked: Requests, metric: str, at: int) -> None:
    loss, _ = judge_models(fed, asked, "validation", metric)
    _, value = judge_models(fed, asked, "test", metric)
    course.rounds.append(at)
    course.validation.append(loss)
    course.test.append(value)


# choosing ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A course at one of its evaluations."""

    course: Course
    place: int

    @property
    def trial(self) -> Trial:
        return self.course.trial

    @property
    def rounds(self) -> int:
        return self.course.rounds[self.place]

    @property
    def validation(self) -> Floats:
        return self.course.validation[self.place]

    @property
    def test(self) -> Floats:
        return self.course.test[self.place]


def choose_settings(courses: Sequence[Course], weights: Floats) -> Choice | None:
    """Settings and round with the lowest validation loss; None if all trials diverged."""
    alive = [course for course in courses if course.validation]
    if not alive:
        return None
    best = min(alive, key=lambda course: course.losses(weights).min())
    return Choice(best, best.best(weights))


def simplest_of_the_best(choices: Sequence[Choice], weights: Floats) -> Choice:
    """The simplest way whose validation loss is within one standard error of the lowest.

    The error is that of the paired difference over sites, weighed by their rows.
    """
    total = max(weights.sum(), 1)
    share = weights / total

    def mean(values: Floats) -> float:
        return float(np.where(weights > 0, values, 0) @ share)

    best = min(choices, key=lambda choice: mean(choice.validation))
    for choice in sorted(choices, key=lambda choice: SIMPLICITY.index(choice.trial.method)):
        difference = np.where(weights > 0, choice.validation - best.validation, 0)
        centre = mean(difference)
        error = float(np.sqrt((share**2 * (difference - centre) ** 2).sum()))
        if centre <= error:
            return choice
    return best
