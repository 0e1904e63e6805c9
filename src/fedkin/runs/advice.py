"""Should these sites collaborate, with whom, with what, at what cost, and how sure is that?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.core.federation import Federation
from fedkin.core.metrics import get_metric
from fedkin.core.problem import Problem
from fedkin.data import ClientData, DataConfig, load
from fedkin.data.resplit import resplit
from fedkin.engines import Embedded
from fedkin.errors import FedkinError
from fedkin.models import build
from fedkin.runs.advice_kin import Kin, find_kin
from fedkin.runs.advice_scores import Gain, gain_over_splits, judge_trivial, lend_strength
from fedkin.runs.advice_trials import (
    ALONE,
    ONE,
    SIMPLICITY,
    Choice,
    Course,
    Splits,
    Trial,
    choose_settings,
    run_trials,
    simplest_of_the_best,
)
from fedkin.runs.measures import Measure, choose_metrics

LRS = (0.03, 0.1, 0.3)
STEPS = 10  # local steps in a round
TABLES = ("csv", "parquet")
# how many sites' contributions are measured by leaving them out
MOST_LEFT_OUT = 6


@dataclass(frozen=True)
class Effort:
    """How much is computed: more for few sites, less for many. It depends on sizes alone."""

    splits: int
    rounds: int
    every: int

    @classmethod
    def for_sites(cls, sites: int) -> Effort:
        if sites <= 20:
            return cls(6, 30, 5)
        return cls(5, 30, 5) if sites <= 150 else cls(3, 20, 5)


@dataclass(frozen=True)
class Site:
    """What advice says of one site: its metric alone and together, on test rows.

    `own_gain` is what its own splits say; `gain` borrows strength from the other sites.
    """

    name: str
    rows: int
    trivial: float
    alone: float
    together: float
    gain: Gain | None
    own_gain: Gain | None
    learns_from: tuple[tuple[str, float, float], ...]
    gives: float
    group: int | None

    @property
    def verdict(self) -> str:
        return "unknown" if self.gain is None else self.gain.verdict


@dataclass(frozen=True)
class Way:
    """A way to train: its mean gain over going alone, and in how many splits it was chosen."""

    method: str
    gain: Gain | None
    value: float
    chosen: int


@dataclass(frozen=True)
class Advice:
    """The answer, in numbers; `fedkin.reports.advice_words` puts it into words.

    `decision` is alone, one (one model for all), groups (within groups) or personal.
    """

    decision: str
    measure: Measure
    gain: Gain | None
    sites: tuple[Site, ...]
    ways: tuple[Way, ...]
    kin: Kin | None
    method: str
    options: Mapping[str, Any]
    model: str
    rounds: int
    megabytes: float
    contributions: Mapping[str, Gain]
    effort: Effort
    tried: int
    diverged: int
    notes: tuple[str, ...]
    data: DataConfig | None
    example: ClientData

    @property
    def mean_trivial(self) -> float:
        """The metric of answers that need no model, a mean over sites."""
        return _mean(np.array([site.trivial for site in self.sites]))

    def count(self, verdict: str) -> int:
        return sum(site.verdict == verdict for site in self.sites)


def splits_of(source: DataConfig | ClientData, effort: Effort, first: ClientData) -> Splits:
    """The clients divided anew for every split; of tables everything is learnt anew as well."""
    if isinstance(source, DataConfig) and source.name in TABLES:
        config = source.model_copy(update={"validation_fraction": 0.2})
        data = [load(config, seed) for seed in range(effort.splits)]
    else:
        data = [resplit(first, seed) for seed in range(effort.splits)]
    return Splits(tuple(data), measure_of(first))


def give_advice(
    source: DataConfig | ClientData,
    effort: Effort | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Advice:
    """Try going alone, one model for all and personal methods; find out what is best for whom.

    `on_progress` is called with the rounds done and those to do.
    """
    first = load(source, 0) if isinstance(source, DataConfig) else source
    check(first)
    effort = effort or Effort.for_sites(first.num_clients)
    splits = splits_of(source, effort, first)
    judge = Judge(splits, effort, on_progress)
    courses = judge.everything()
    return judge.conclude(courses, source if isinstance(source, DataConfig) else None)


def measure_of(data: ClientData) -> Measure:
    """What is told: RMSE for numbers, AUC for unbalanced classes, otherwise accuracy."""
    outputs = data.num_classes or max(1, data.train.y[0].numel())
    problem = Problem(build("linear", data.input_shape, outputs), data)
    return Measure.of(get_metric(choose_metrics(problem, ())[0]))


def check(data: ClientData) -> None:
    """Refuse what no advice can be given on."""
    if data.num_clients < 2:
        raise FedkinError("there is one site: whether to collaborate is a question for two or more")
    sizes = data.train.sizes + data.test.sizes
    if data.validation is not None:
        sizes = sizes + data.validation.sizes
    able = int((sizes >= 4).sum())
    if able < 2:
        raise FedkinError(
            f"{able} of {data.num_clients} sites have 4 rows or more: too few to train on some and "
            "judge on others; give sites with more rows"
        )


class Judge:
    """Runs the trials and draws the conclusions."""

    def __init__(
        self, splits: Splits, effort: Effort, on_progress: Callable[[int, int], None]
    ) -> None:
        self.splits, self.effort, self._tell = splits, effort, on_progress
        self.sites = len(splits.names)
        self._done, self._total = 0, 1

    # trials ------------------------------------------------------------------------------

    def everything(self) -> list[Course]:
        """All ways on all splits: models are chosen first, then the personal methods try theirs."""
        first = [*self._grid(ALONE, [{}], self._models()),
                 *self._grid("fedavg-local", [{"tune_steps": STEPS}], self._models())]  # fmt: skip
        more = sum(len(options) for options in self._personal().values())
        later = more * len(LRS) * self.effort.splits
        self._total = (len(first) + later) * self.effort.rounds
        courses = self._run(first)
        second = []
        for split in range(self.effort.splits):
            own = [c for c in courses if c.trial.split == split and c.trial.method != ALONE]
            best = choose_settings(own, self.splits.weights(split))
            model = best.trial.model if best else self._models()[0]
            for method, options in self._personal().items():
                second += self._grid(method, options, [model], [split])
        return courses + self._run(second)

    def _models(self) -> list[str]:
        shape = self.splits.data[0].input_shape
        return ["linear", "mlp:32"] if len(shape) == 1 else ["mlp:64"]

    def _personal(self) -> dict[str, list[dict[str, Any]]]:
        """Personal methods that suit so many sites, each with a few settings."""
        found: dict[str, list[dict[str, Any]]] = {"ditto": [{"lam": 0.1}, {"lam": 1.0}]}
        if self.sites >= 4:
            counts = [k for k in (2, 4) if k <= self.sites // 2]
            found["ifca"] = [{"clusters": k} for k in counts]
        found["perm"] = [{"warm_up": self.effort.rounds // 3}]
        return found

    def _grid(
        self,
        method: str,
        options: Sequence[Mapping[str, Any]],
        models: Sequence[str],
        splits: Sequence[int] | None = None,
    ) -> list[Trial]:
        numbers = range(self.effort.splits) if splits is None else splits
        return [
            Trial(method, {"lr": lr, "local_steps": STEPS, **own}, model, split)
            for model in models for own in options for lr in LRS for split in numbers
        ]  # fmt: skip

    def _run(self, trials: Sequence[Trial], splits: Splits | None = None) -> list[Course]:
        def advance(rounds: int) -> None:
            self._done += rounds
            self._tell(min(self._done, self._total), self._total)

        effort = self.effort
        return run_trials(splits or self.splits, trials, effort.rounds, effort.every, advance)

    # conclusions -------------------------------------------------------------------------

    def conclude(self, courses: Sequence[Course], source: DataConfig | None) -> Advice:
        chosen = [self._choices(courses, split) for split in range(self.effort.splits)]
        alone = [choices[ALONE] for choices in chosen]
        together = []
        for split, choices in enumerate(chosen):
            others = [choice for name, choice in choices.items() if name != ALONE]
            together.append(simplest_of_the_best(others, self.splits.weights(split)))
        kin = find_kin([c["perm"].course.mixing for c in chosen
                        if "perm" in c and c["perm"].course.mixing is not None])  # fmt: skip
        gains = self._gains(together, alone)
        overall = gain_over_splits([_mean(row) for row in gains], self._ratio())
        votes = Counter(choice.trial.method for choice in together)
        method = max(votes, key=lambda name: (votes[name], -SIMPLICITY.index(name)))
        own = [choice for choice in together if choice.trial.method == method]
        final = self._settings(own)
        decision = self._decision(overall, method, kin)
        contributions = {}
        if decision != "alone" and self.sites > 2:
            contributions = self._contributions(final, kin)
        if decision == "alone":
            final = self._settings(alone)
        diverged = sum(bool(course.failed) for course in courses)
        return Advice(
            decision, self.splits.measure, overall, self._sites(alone, together, gains, kin),
            self._ways(chosen, votes), kin, final.trial.method, dict(final.trial.options),
            final.trial.model, final.rounds,
            float(np.mean([c.course.megabytes[c.place] for c in own])), contributions,
            self.effort, len(courses), diverged, self.splits.data[0].notes, source,
            self.splits.data[0],
        )  # fmt: skip

    def _choices(self, courses: Sequence[Course], split: int) -> dict[str, Choice]:
        """Each way with the settings that this split's validation rows choose."""
        weights, found = self.splits.weights(split), {}
        for name in SIMPLICITY:
            own = [c for c in courses if c.trial.split == split and c.trial.method == name]
            choice = choose_settings(own, weights) if own else None
            if choice is not None:
                found[name] = choice
        if ALONE not in found or len(found) < 2:
            raise FedkinError(
                "training diverged with every setting tried: are there values in the table that "
                "are far larger than the others?"
            )
        return found

    def _trivial(self, split: int) -> Any:
        problem = self.splits.problem(split, "linear")
        return judge_trivial(Federation(problem, Embedded(problem)), self.splits.measure.name)

    def _gains(self, together: Sequence[Choice], alone: Sequence[Choice]) -> Any:
        better = self.splits.measure.sign
        return np.stack([better * (t.test - a.test) for t, a in zip(together, alone, strict=True)])

    def _ratio(self, site: int | None = None) -> float:
        """Test rows for each row that is not."""
        data = self.splits.data[0]
        assert data.validation is not None
        test, rest = data.test.sizes, data.train.sizes + data.validation.sizes
        if site is None:
            return float(test.sum() / rest.sum())
        return float(test[site] / rest[site])

    def _decision(self, gain: Gain | None, method: str, kin: Kin | None) -> str:
        if gain is None or gain.verdict != "gains":
            return "alone"
        if method == ONE:
            return "one"
        return "groups" if kin and kin.groups and method in ("ifca", "perm") else "personal"

    def _settings(self, choices: Sequence[Choice]) -> Choice:
        """The settings chosen most often, with the middle of the rounds they were chosen at."""

        def key(choice: Choice) -> str:
            return f"{choice.trial.model} {sorted(choice.trial.options.items())}"

        common = Counter(map(key, choices)).most_common(1)[0][0]
        same = sorted((c for c in choices if key(c) == common), key=lambda c: c.rounds)
        return same[len(same) // 2]

    def _sites(
        self, alone: Sequence[Choice], together: Sequence[Choice], gains: Any, kin: Kin | None
    ) -> tuple[Site, ...]:
        data, found = self.splits.data[0], []
        assert data.validation is not None
        given = kin.given() if kin else np.zeros(self.sites)
        trivial = [self._trivial(split) for split in range(self.effort.splits)]
        group = {i: k + 1 for k, members in enumerate(kin.groups) for i in members} if kin else {}
        own = [gain_over_splits(gains[:, i].tolist(), self._ratio(i)) for i in range(self.sites)]
        tested = [int(size) for size in data.test.sizes]
        overall = gain_over_splits([_mean(row) for row in gains], self._ratio())
        shared = lend_strength(own, tested, overall)
        for i, name in enumerate(data.names):
            parts = (data.train, data.validation, data.test)
            helpers = kin.helpers(i) if kin else []
            found.append(
                Site(
                    name,
                    sum(int(part.sizes[i]) for part in parts),
                    _mean(np.array([row[i] for row in trivial])),
                    _mean(np.array([a.test[i] for a in alone])),
                    _mean(np.array([t.test[i] for t in together])),
                    shared[i],
                    own[i],
                    tuple((data.names[j], w, seen) for j, w, seen in helpers),
                    float(given[i]),
                    group.get(i),
                )
            )
        return tuple(found)

    def _ways(self, chosen: Sequence[Mapping[str, Choice]], votes: Counter[str]) -> tuple[Way, ...]:
        better, found = self.splits.measure.sign, []
        for name in SIMPLICITY:
            pairs = [(c[name], c[ALONE]) for c in chosen if name in c]
            if pairs:
                gains = [_mean(better * (own.test - alone.test)) for own, alone in pairs]
                value = float(np.mean([_mean(own.test) for own, _ in pairs]))
                gain = None if name == ALONE else gain_over_splits(gains, self._ratio())
                found.append(Way(name, gain, value, votes[name]))
        return tuple(found)

    def _contributions(self, final: Choice, kin: Kin | None) -> dict[str, Gain]:
        """What the others lose when a site is left out, for the most important sites."""
        given = kin.given() if kin else self.splits.data[0].train.sizes.double().numpy()
        order = np.argsort(-given, kind="stable")[:MOST_LEFT_OUT]
        trials = [replace(final.trial, split=s) for s in range(self.effort.splits)]
        self._total += (1 + len(order)) * len(trials) * self.effort.rounds
        whole = [c for c in self._run(trials) if c.trial.method == final.trial.method]
        better, found = self.splits.measure.sign, {}
        for site in order.tolist():
            rest = self._run(trials, self.splits.without(site))
            others = [i for i in range(self.sites) if i != site]
            losses = [
                _mean(better * (full.test[final.place][others] - part.test[final.place]))
                for full, part in zip(whole, rest, strict=False)
                if full.rounds and part.rounds
            ]
            gain = gain_over_splits(losses, self._ratio())
            if gain is not None:
                found[self.splits.names[site]] = gain
        return found


def _mean(values: Any) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
