"""From what trials showed to the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedkin.core.federation import Federation
from fedkin.data import DataConfig
from fedkin.engines import Embedded
from fedkin.errors import FedkinError
from fedkin.runs.advice_answer import Advice, Effort, Site, Way
from fedkin.runs.advice_kin import Kin, find_kin
from fedkin.runs.advice_scores import (
    Gain,
    gain_over_splits,
    judge_trivial,
    mean_of,
)
from fedkin.runs.advice_search import Search
from fedkin.runs.advice_shrink import Spread, lend_strength
from fedkin.runs.advice_trials import (
    ALONE,
    ONE,
    SIMPLICITY,
    Course,
    Splits,
    choose_settings,
    simplest_of_the_best,
)

GROUPED = ("ifca", "pfedkm")  # methods that put sites into groups

Choices = Mapping[str, Course]


def conclude(search: Search, courses: Sequence[Course], source: DataConfig | None) -> Advice:
    """The answer: what is best for whom, and how sure that is."""
    verdict = Verdict(search.splits, search.effort, courses)
    method, own = verdict.method, verdict.own
    overall, kin, final = verdict.overall, verdict.kin(), verdict.settings(own)
    decision = verdict.decision(kin)
    contributions = {}
    if decision != "alone" and search.sites > 2:
        contributions = search.contributions(final, kin, verdict.ratio())
    if decision == "alone":
        final = verdict.settings(verdict.alone)
    data = search.splits.data[0]
    sites, spread = verdict.sites(kin)
    return Advice(
        decision=decision,
        measure=search.splits.measure,
        gain=overall,
        sites=sites,
        spread=spread,
        ways=verdict.ways(),
        kin=kin,
        method=final.trial.method,
        options=dict(final.trial.options),
        model=final.trial.model,
        rounds=final.best_round,
        together=method,
        megabytes=float(np.mean([course.traffic for course in own])),
        contributions=contributions,
        effort=search.effort,
        tried=search.tried,
        diverged=sum(bool(course.failed) for course in courses),
        notes=data.notes,
        data=source,
        example=data,
    )


class Verdict:
    """Choices on every split, and what follows from them."""

    def __init__(self, splits: Splits, effort: Effort, courses: Sequence[Course]) -> None:
        self.splits, self.effort = splits, effort
        self.chosen = [choices(courses, split) for split in range(effort.splits)]
        self.alone = [own[ALONE] for own in self.chosen]
        self.together = [
            simplest_of_the_best([c for name, c in own.items() if name != ALONE])
            for own in self.chosen
        ]
        better = splits.measure.sign
        pairs = zip(self.together, self.alone, strict=True)
        self.gains = np.stack([better * (tested(course) - tested(own)) for course, own in pairs])
        self.overall = gain_over_splits([mean_of(row) for row in self.gains], self.ratio())
        self.votes = Counter(course.trial.method for course in self.together)
        self.method = max(self.votes, key=lambda name: (self.votes[name], -SIMPLICITY.index(name)))
        self.own = [course for course in self.together if course.trial.method == self.method]

    def ratio(self, site: int | None = None) -> float:
        """Test rows for each row that is not."""
        data = self.splits.data[0]
        assert data.validation is not None
        test, rest = data.test.sizes, data.train.sizes + data.validation.sizes
        if site is None:
            return float(test.sum() / rest.sum())
        return float(test[site] / rest[site])

    def kin(self) -> Kin | None:
        """Weights and groups as PERM finds them; where it finds no groups, those of the method."""

        def mixing(method: str) -> list[Any]:
            found = (own[method].mixing for own in self.chosen if method in own)
            return [rows for rows in found if rows is not None]

        kin = find_kin(mixing("perm"))
        if self.method not in GROUPED or (kin is not None and kin.groups):
            return kin
        groups = find_kin(mixing(self.method))
        if kin is None or groups is None:
            return kin or groups
        return replace(kin, groups=groups.groups, agreement=groups.agreement)

    def decision(self, kin: Kin | None) -> str:
        if self.overall is None or self.overall.verdict != "gains":
            return "alone"
        if self.method == ONE:
            return "one"
        grouped = self.method in GROUPED or (self.method == "perm" and kin and kin.groups)
        return "groups" if grouped else "personal"

    def settings(self, courses: Sequence[Course]) -> Course:
        """The settings chosen most often, with the middle of the rounds they were chosen at."""

        def key(course: Course) -> str:
            return f"{course.trial.model} {sorted(course.trial.options.items())}"

        common = Counter(map(key, courses)).most_common(1)[0][0]
        same = sorted((c for c in courses if key(c) == common), key=lambda c: c.best_round)
        return same[len(same) // 2]

    def sites(self, kin: Kin | None) -> tuple[tuple[Site, ...], Spread | None]:
        data, found, count = self.splits.data[0], [], len(self.splits.names)
        assert data.validation is not None
        given = kin.given() if kin else np.zeros(count)
        group = {i: k + 1 for k, members in enumerate(kin.groups) for i in members} if kin else {}
        own = [gain_over_splits(self.gains[:, i].tolist(), self.ratio(i)) for i in range(count)]
        rows = [int(size) for size in data.test.sizes]
        shared, spread = lend_strength(own, rows, self.overall, self.effort.splits - 1)
        trivial = np.stack([self._trivial(split) for split in range(self.effort.splits)])
        alone = np.stack([tested(course) for course in self.alone])
        together = np.stack([tested(course) for course in self.together])
        for i, name in enumerate(data.names):
            parts = (data.train, data.validation, data.test)
            helpers = kin.helpers(i) if kin else []
            found.append(
                Site(
                    name,
                    sum(int(part.sizes[i]) for part in parts),
                    mean_of(trivial[:, i]),
                    mean_of(alone[:, i]),
                    mean_of(together[:, i]),
                    shared[i],
                    own[i],
                    tuple((data.names[j], w, seen) for j, w, seen in helpers),
                    float(given[i]),
                    group.get(i),
                )
            )
        return tuple(found), spread

    def ways(self) -> tuple[Way, ...]:
        better, found = self.splits.measure.sign, []
        for name in SIMPLICITY:
            pairs = [(tested(c[name]), tested(c[ALONE])) for c in self.chosen if name in c]
            if pairs:
                gains = [mean_of(better * (own - alone)) for own, alone in pairs]
                value = float(np.mean([mean_of(own) for own, _ in pairs]))
                gain: Gain | None = None
                if name != ALONE:
                    gain = gain_over_splits(gains, self.ratio())
                found.append(Way(name, gain, value, self.votes[name]))
        return tuple(found)

    def _trivial(self, split: int) -> Any:
        problem = self.splits.problem(split, "linear")
        return judge_trivial(Federation(problem, Embedded(problem)), self.splits.measure.name)


def tested(course: Course) -> Any:
    """A chosen course's metric of every site, on test rows."""
    assert course.test is not None
    return course.test


def choices(courses: Sequence[Course], split: int) -> Choices:
    """Each way with the settings that this split's validation rows choose."""
    found = {}
    for name in SIMPLICITY:
        own = [c for c in courses if c.trial.split == split and c.trial.method == name]
        best = choose_settings(own)
        if best is not None:
            found[name] = best
    if ALONE not in found or len(found) < 2:
        raise FedkinError(
            "training diverged with every setting tried: are there values in the table that "
            "are far larger than the others?"
        )
    return found
