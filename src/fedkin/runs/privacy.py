"""The guarantee of a run: what was asked for, what was spent, and what it rests on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Any

from fedkin.core.privacy import UNBOUNDED, Privacy
from fedkin.core.problem import Problem
from fedkin.core.robust import Aggregate
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.runs import contents
from fedkin.runs.accounting import Kind, Sampling, epsilon, find_noise, need_accounting
from fedkin.runs.privacy_file import FILE
from fedkin.runs.reading import read_json
from fedkin.runs.settings import Settings
from fedkin.tensors import write_text

BEGUN = "privacy-begun.json"
OUTSIDE = (
    "scores of evaluations (metrics.csv, clients.csv, the report), which are exact",
    "what `fedkin who` shows",
    "counts of bytes, gradients, samples and answers that are not finite, and log.txt",
    "numbers of clients and of their examples, class names, and how columns are scaled",
    "settings chosen by looking at results of earlier runs on the same data",
    "each client's own model from the client itself (joint differential privacy)",
)
NORMS = "statistics of batch norms in the global model that the run folder has: exact means"
FLOATING_POINT = (
    "noise is drawn in double precision and rounded with the sum to the model's precision; the "
    "discrete nature of floating-point numbers is not accounted for"
)


@dataclass
class Guarantee:
    """Differential privacy of a run: its mechanism, budget and account."""

    privacy: Privacy
    sampling: Sampling
    delta: float
    budget: float | None
    outside: tuple[str, ...] = OUTSIDE

    @property
    def epsilon(self) -> float:
        """What was spent so far."""
        return self._cost({})

    def begin(self, folder: Path) -> None:
        """Note that a round begins. Secret noise is new if a round is repeated after a crash, so
        that it is released twice: `catch_up` then counts it twice."""
        if self.privacy.secret:
            begun = sum(self.privacy.rounds.values()) + 1
            write_text(folder / BEGUN, json.dumps({"begun": begun}) + "\n")

    def catch_up(self, folder: Path) -> None:
        """Count rounds that were begun and lost as if they had released all they may."""
        if self.privacy.secret and (folder / BEGUN).is_file():
            begun = read_json(folder / BEGUN, contents.BEGUN)["begun"]
            lost = begun - sum(self.privacy.rounds.values())
            self.privacy.rounds[self.privacy.most] += max(0, lost)

    def lasts(self) -> bool:
        """Whether the budget has room for one more round, however much that releases."""
        if self.budget is None or not any(self.privacy.most):
            return True
        return self._cost({self.privacy.most: 1}) <= self.budget

    def lasts_after_next(self) -> bool:
        """Whether there may be another round after the next one."""
        if self.budget is None or not any(self.privacy.most):
            return True
        return self._cost({self.privacy.most: 2}) <= self.budget

    def _cost(self, more: dict[Kind, int]) -> float:
        rounds = self.privacy.rounds.copy()
        rounds.update(more)
        return epsilon(rounds, self.privacy.noise, self.sampling, self.delta)

    def facts(self) -> dict[str, Any]:
        """All that privacy.json says."""
        p, spent = self.privacy, self.epsilon
        return {
            "epsilon": None if isinf(spent) else spent,
            "delta": self.delta,
            "budget": self.budget,
            "budget_spent": not self.lasts(),
            "adjacency": self.sampling.adjacency,
            "unit": "a client with all its data (user-level)",
            "mechanism": "Gaussian noise on sums of clipped answers"
            + (" and on single clipped answers" if p.most[1] else ""),
            "noise_multiplier": p.noise,
            "clip": dict(p.limits),
            "clip_follows_quantile": p.quantile,
            "clip_now": dict(p.factors) or None,
            "sampling": self.sampling.kind,
            "probability": self.sampling.share,
            "clients": self.sampling.clients,
            "cohort": p.cohort,
            "accountant": self.sampling.accountant,
            "rounds": [{"sums": k[0], "rows": k[1], "rounds": n} for k, n in p.rounds.items()],
            "generator": "os.urandom" if p.secret else "seeded, for simulation: not secret",
            "assumptions": self.assumptions(),
            "outside": list(self.outside),
        }

    def assumptions(self) -> list[str]:
        """What the number rests on, a sentence each."""
        p, kind = self.privacy, self.sampling.kind
        noise = "the server adds the noise and is trusted not to keep sums without it"
        if p.shares is not None:
            noise = (
                f"sites add the noise before they are summed up, each so much that {p.shares} of "
                "them together add it all: at least so many must be honest"
            )
        elif p.most[1]:
            noise = "clients add the noise to answers that travel alone, the server that to sums"
        found = [noise, "clients clip their own answers", FLOATING_POINT]
        if p.noise <= 0:
            found.insert(0, "there is no noise, and so no guarantee")
        if kind != "all":
            found.append("nobody but the server knows who was sampled in a round")
        if p.weight_cap is not None:
            found.append("clients' numbers of examples are public")
        if p.cohort is not None:
            found.append(
                f"epsilon belongs to a cohort of {p.cohort:g} clients in a round, which this run "
                f"with {p.clients:g} imitates by scaling the noise: it is no guarantee for the "
                "clients of this run"
            )
        if not p.secret:
            found.append("noise follows from the seed: whoever knows the seed can remove it")
        return found


def make_guarantee(
    settings: Settings, clients: int, asked: int, method: Method, secret: bool
) -> Guarantee | None:
    """What a run's settings ask for; None without privacy. Refuses what cannot be accounted."""
    s = settings
    wanted = s.dp_noise is not None or s.dp_epsilon is not None
    if not wanted:
        for name in ("dp_clip", "dp_delta", "dp_quantile", "dp_cohort", "dp_most_samples"):
            if getattr(s, name) is not None:
                raise FedkinError(
                    f"{name} has no effect without noise: give dp_noise, or dp_epsilon"
                )
        return None
    need_accounting()
    if method.not_private:
        raise FedkinError(
            f"method '{method.name}' cannot be made differentially private: {method.not_private}; "
            "choose a method that only takes means, such as fedavg, ditto, pfedme or fedper"
        )
    _check(s, method)
    assert s.dp_clip is not None
    expected = s.fraction * clients if s.sampling == "poisson" else float(asked)
    imitated = s.dp_cohort / expected if s.dp_cohort else 1.0
    kind = "all" if s.fraction == 1 or asked == clients else s.sampling
    share = s.fraction if s.sampling == "poisson" else asked / clients
    sampling = Sampling(kind, share, round(asked * imitated), round(clients * imitated))
    delta = s.dp_delta if s.dp_delta is not None else min(1e-5, sampling.clients**-1.1)
    if not 0 < delta < 1:
        raise FedkinError(f"dp_delta must be above 0 and below 1, not {delta:g}")
    most = method.releases
    noise = s.dp_noise
    if noise is None:
        assert s.dp_epsilon is not None
        noise = find_noise(s.dp_epsilon, delta, s.rounds, most, sampling) if any(most) else 0.0
    limits = s.dp_clip if isinstance(s.dp_clip, dict) else {"": float(s.dp_clip)}
    privacy = Privacy(
        limits, noise, expected, s.dp_cohort, s.dp_quantile, most, s.dp_most_samples, secret,
        method.name,
    )  # fmt: skip
    found = Guarantee(privacy, sampling, delta, s.dp_epsilon)
    if not found.lasts():
        raise FedkinError(
            f"dp_epsilon = {s.dp_epsilon:g} does not last for one round with dp_noise = {noise:g}: "
            "add more noise, or allow more epsilon"
        )
    return found


def _check(s: Settings, method: Method) -> None:
    """Settings that contradict each other."""
    if s.dp_clip is None:
        raise FedkinError(
            "differential privacy needs dp_clip, the longest that a client's answer may be: "
            "try 1, or half of what the median answer of a run without it measures"
        )
    if Aggregate.parse(s.aggregate) is not None:
        raise FedkinError(
            f"aggregate = {s.aggregate} does not go with differential privacy, whose account is of "
            "noisy means: dp_clip already bounds what a client can do; leave aggregate out"
        )
    if getattr(method, "weighted", False) and s.dp_most_samples is None:
        raise FedkinError(UNBOUNDED)
    if s.dp_cohort is not None and method.releases[1]:
        raise FedkinError(
            f"dp_cohort is for sums, and method '{method.name}' has single answers protected, "
            "whose noise no cohort makes smaller: leave dp_cohort out"
        )
    if s.patience is not None:
        raise FedkinError(
            "patience ends a run by exact scores, which are not protected: with differential "
            "privacy a run ends by its rounds or its dp_epsilon; leave patience out"
        )


def check_norms(guarantee: Guarantee | None, problem: Problem) -> None:
    """Refuse norms whose statistics of clients' data would reach everybody without noise."""
    if guarantee is None:
        return
    if problem.norm == "averaged":
        raise FedkinError(
            "norm = averaged gives every client the exact mean of all clients' statistics, which "
            "noise does not protect: with differential privacy use norm = local, or a model with "
            "group or layer norms"
        )
    if problem.spec.statistics.slots:
        guarantee.outside += (NORMS,)


def check_aggregate(how: Aggregate | None, method: Method) -> None:
    """Refuse a robust mean to methods that do not take means, or not only."""
    if how is not None and how.needs_rows and getattr(method, "weighted", False):
        raise FedkinError(how.no_weights)
    if how is None or (method.releases == (1, 0) and not method.not_private):
        return
    why = method.not_private or "not all that its clients send is averaged"
    raise FedkinError(
        f"method '{method.name}' takes no aggregate: {why}; choose a method that only takes means, "
        "such as fedavg, ditto, pfedme or fedper"
    )


def write_privacy(folder: Path, guarantee: Guarantee) -> None:
    write_text(folder / FILE, json.dumps(guarantee.facts(), indent=1) + "\n")
