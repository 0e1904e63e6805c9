"""What runs show about methods: averages over seeds with their uncertainty, and fair tests.

The unit of every average and test is the seed: a seed draws the clients' data, the
initial model and all sampling anew. From a single seed nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from fedkin.errors import FedkinError
from fedkin.runs.alone import Alone, common_alone, gains, last_clients, same_clients, task
from fedkin.runs.groups import Group, Records
from fedkin.runs.measures import LOSS, Measure

Score = Measure
Floats = npt.NDArray[np.float64]
PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95 % confidence interval, which one seed does not have."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate(values: Sequence[float | None], confidence: float = 0.95) -> Estimate | None:
    """mean +- t*s/sqrt(n) with Student's t for n - 1 degrees; None without any value."""
    known = np.array([v for v in values if v is not None and np.isfinite(v)])
    if not len(known):
        return None
    mean = float(known.mean())
    if len(known) == 1:
        return Estimate(mean, None, None, 1)
    half = float(_quantile(confidence, len(known)) * known.std(ddof=1) / np.sqrt(len(known)))
    return Estimate(mean, mean - half, mean + half, len(known))


@lru_cache(maxsize=1000)
def _quantile(confidence: float, count: int) -> float:
    """Student's t; kept, since it takes longer than everything else about an interval."""
    return float(stats.t.ppf((1 + confidence) / 2, count - 1))


# one run ------------------------------------------------------------------------------


def score_of(groups: Sequence[Group]) -> Score:
    """The measure that decides: the first one of the first run that all runs have."""
    runs = [run for group in groups for run in group.runs]
    for measure in (*runs[0].measures, LOSS):
        column = f"personal_{measure}"
        if all(column in run.metrics and run.metrics[column].notna().any() for run in runs):
            return measure
    return LOSS


def evaluations(run: Records, score: Score) -> pd.DataFrame:
    """The rounds of a run that were evaluated, with what they had cost until then."""
    for name in (f"personal_{score}", "bytes_up", "bytes_down", "gradients"):
        if name not in run.metrics:
            raise FedkinError(f"{run.path / 'metrics.csv'} is damaged: it has no column '{name}'")
    rows = run.metrics[run.metrics[f"personal_{score}"].notna()]
    seconds = run.timing.set_index("round")["seconds"].cumsum() if len(run.timing) else None
    return rows.assign(
        megabytes=(rows["bytes_up"] + rows["bytes_down"]) / 1e6,
        seconds=np.nan if seconds is None else seconds.reindex(rows["round"]).to_numpy(),
    ).reset_index(drop=True)


def chosen_on_validation(run: Records, score: Score) -> pd.Series | None:
    """The evaluation with the best validation score, the earliest of equals."""
    rows = evaluations(run, score)
    column = f"validation_{score}"
    if column not in rows or rows[column].isna().all():
        return None
    return rows.loc[(score.sign * rows[column]).idxmax()]


def at_the_end(run: Records, score: Score, kind: str = "personal") -> pd.Series:
    """Every client's score at the last evaluation, by the client's name."""
    last, column = last_clients(run), f"{kind}_{score}"
    known = last[column].replace([np.inf, -np.inf], np.nan).dropna() if column in last else ()
    if not len(known):
        raise FedkinError(f"{run.path / 'clients.csv'} has no {column} in its last evaluation")
    return known


# one method -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What it took until a target was first reached: medians over seeds, infinite if unreached."""

    target: float
    rounds: float
    megabytes: float
    seconds: float
    gradients: float
    reached: int
    count: int


@dataclass(frozen=True)
class Summary:
    """A method over its seeds. All scores are of personal models on clients' own test data."""

    label: str
    seeds: int
    last: Estimate
    best: Estimate | None
    best_round: float | None
    worst_tenth: Estimate
    percentiles: Mapping[int, float]
    spread: Estimate
    better_than_alone: Estimate | None
    same_as_alone: Estimate | None
    worse_than_alone: Estimate | None
    mean_gain: Estimate | None
    trivial: Estimate | None
    shared_model: Estimate | None
    megabytes: float
    seconds: float
    gradients: float
    to_target: Cost | None


def summarise(
    groups: Sequence[Group], score: Score | None = None, target: float | None = None
) -> list[Summary]:
    """One summary per group of repeats."""
    score = score or score_of(groups)
    alone = common_alone(groups, score)
    return [_summary(group, score, target, alone.get(task(group))) for group in groups]


def _summary(group: Group, score: Score, target: float | None, alone: Alone | None) -> Summary:
    rows = [evaluations(run, score).iloc[-1] for run in group.runs]
    clients = [at_the_end(run, score).to_numpy() for run in group.runs]
    if not all(map(len, clients)):
        raise FedkinError(
            f"a report is of single clients' scores, and {group.label} has none (sites' scores may "
            "have been added up securely): its metrics.csv has their means"
        )
    gained = [g for run in group.runs if (g := gains(run, score, alone)) is not None]
    best = [chosen_on_validation(run, score) for run in group.runs]
    known = [row for row in best if row is not None]
    known = known if len(known) == len(best) else []
    last = estimate([row[f"personal_{score}"] for row in rows])
    tenth = estimate([worst_tenth(values, score) for values in clients])
    spread = estimate([float(values.std()) for values in clients])
    assert last
    assert tenth
    assert spread
    return Summary(
        label=group.label,
        seeds=len(group.runs),
        last=last,
        best=estimate([row[f"personal_{score}"] for row in known]),
        best_round=float(np.mean([row["round"] for row in known])) if known else None,
        worst_tenth=tenth,
        percentiles={
            p: float(np.mean([np.percentile(values, p) for values in clients])) for p in PERCENTILES
        },
        spread=spread,
        better_than_alone=estimate([float((g.gain > g.noise).mean()) for g in gained]),
        same_as_alone=estimate([float((g.gain.abs() <= g.noise).mean()) for g in gained]),
        worse_than_alone=estimate([float((g.gain < -g.noise).mean()) for g in gained]),
        mean_gain=estimate([float(np.average(g.gain, weights=g.examples)) for g in gained]),
        trivial=estimate([row.get(f"trivial_{score}") for row in rows]),
        shared_model=estimate([row.get(f"global_{score}") for row in rows]),
        megabytes=float(np.mean([row["megabytes"] for row in rows])),
        seconds=float(np.mean([row["seconds"] for row in rows])),
        gradients=float(np.mean([row["gradients"] for row in rows])),
        to_target=None if target is None else cost_to(group, score, target),
    )


def worst_tenth(values: Floats, score: Score) -> float:
    """Mean score of the worst tenth of clients (at least one)."""
    ordered = np.sort(score.sign * values)
    return float(score.sign * ordered[: max(1, len(ordered) // 10)].mean())


def cost_to(group: Group, score: Score, target: float) -> Cost:
    """What the first evaluation at or beyond the target had cost."""
    columns = ("round", "megabytes", "seconds", "gradients")
    costs = []
    for run in group.runs:
        rows = evaluations(run, score)
        there = rows[score.sign * (rows[f"personal_{score}"] - target) >= 0]
        costs.append([float(there.iloc[0][c]) if len(there) else np.inf for c in columns])
    rounds, megabytes, seconds, gradients = np.median(np.array(costs), axis=0).tolist()
    reached = sum(bool(np.isfinite(cost[0])) for cost in costs)
    return Cost(target, rounds, megabytes, seconds, gradients, reached, len(costs))


# between methods ------------------------------------------------------------------------


@dataclass(frozen=True)
class Paired:
    """How much better `first` is than `second`, seed by seed, and whether that may be chance.

    `p` is of Student's paired t-test, two-sided, corrected by Holm for the number of
    comparisons made; None when there is nothing to test: fewer than two seeds in common.
    """

    first: str
    second: str
    seeds: int
    advantage: Estimate | None
    p: float | None

    @property
    def certain(self) -> bool:
        return self.p is not None and self.p < 0.05


def paired(groups: Sequence[Group], score: Score | None = None) -> list[Paired]:
    """All pairs of methods, compared over the seeds that both ran on the same clients."""
    score = score or score_of(groups)
    found, tests = [], []
    for first, second in combinations(groups, 2):
        twins = [(a, b) for a in first.runs for b in second.runs if same_clients(a, b)]
        column = f"personal_{score}"
        ends = [[evaluations(run, score).iloc[-1][column] for run in pair] for pair in twins]
        advantages = [score.sign * float(a - b) for a, b in ends]
        found.append((first.label, second.label, len(twins), estimate(advantages)))
        tests.append(paired_p(advantages))
    return [Paired(*pair, p) for pair, p in zip(found, holm(tests), strict=True)]


def paired_p(differences: Sequence[float]) -> float | None:
    """Chance of a mean difference this far from zero if there were none; None if not testable."""
    if len(differences) < 2:
        return None
    if np.ptp(differences) < 1e-12:  # 0/0, or a claim without any measured noise
        return 1.0 if abs(differences[0]) < 1e-12 else None
    return float(stats.ttest_1samp(differences, 0).pvalue)


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Holm's correction: the k-th smallest of m is multiplied by m - k + 1, never falling."""
    order = sorted((p, i) for i, p in enumerate(chances) if p is not None)
    corrected, floor = list(chances), 0.0
    for rank, (p, i) in enumerate(order):
        floor = min(1.0, max(floor, p * (len(order) - rank)))
        corrected[i] = floor
    return corrected


def choose(groups: Sequence[Group], score: Score | None = None) -> list[Group]:
    """Of every method's settings those with the best mean validation score at the end.

    Test data have no part in it. Settings that made some runs diverge come last. Different
    data are not a setting: a method's settings are chosen for each anew.
    """
    score = score or score_of(groups)
    rivals: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        rivals.setdefault((group.method, group.problem), []).append(group)
    return [
        max(same, key=lambda group: _merit(group, score)) if len(same) > 1 else same[0]
        for same in rivals.values()
    ]


def _merit(group: Group, score: Score) -> tuple[bool, float]:
    column = f"validation_{score}"
    ends = [evaluations(run, score).iloc[-1].get(column, np.nan) for run in group.runs]
    value = score.sign * float(np.mean(ends))
    if np.isnan(value):
        raise FedkinError(
            "hyper-parameters are chosen on validation data, and these runs have none: "
            "run with --validation-fraction 0.2"
        )
    return not group.unfinished, value
