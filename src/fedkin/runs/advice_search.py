"""What advice tries: going alone, one model for all, and the personal methods that suit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedkin.runs.advice_answer import Effort
from fedkin.runs.advice_kin import Kin
from fedkin.runs.advice_scores import Gain, gain_over_splits, mean_of
from fedkin.runs.advice_trials import ALONE, Course, Splits, Trial, choose_settings, run_trials

LRS = (0.03, 0.1, 0.3)
STEPS = 10  # local steps in a round
INNER = 5  # steps of pFedKM's own models for each of its local steps
CLUSTERS = (2, 4)
LAMS = (0.1, 1.0)  # how strongly Ditto pulls to the common model
FEWEST_IN_GROUPS = 4  # sites
# how many sites' contributions are measured by leaving them out; of many sites one matters less
MOST_LEFT_OUT, MOST_LEFT_OUT_OF_MANY, MANY = 6, 3, 20


class Search:
    """Runs the trials; `on_progress` is called with the rounds done and those to do."""

    def __init__(
        self, splits: Splits, effort: Effort, on_progress: Callable[[int, int], None]
    ) -> None:
        self.splits, self.effort, self._tell = splits, effort, on_progress
        self.sites = len(splits.names)
        self.tried = 0
        self._done, self._total = 0, 1

    def everything(self) -> list[Course]:
        """All ways on all splits.

        Going alone and (localized) FedAvg try every model and learning rate. Personal methods
        take over what served these two best on the same split's validation rows, pFedKM what
        served IFCA.
        """
        models, splits = self._models(), range(self.effort.splits)
        grid = [{"lr": lr, "local_steps": STEPS} for lr in LRS[: self.effort.choices]]
        first = [
            Trial(method, {**own, **more}, model, split)
            for method, more in ((ALONE, {}), ("fedavg-local", {"tune_steps": STEPS}))
            for model in models for own in grid for split in splits
        ]  # fmt: skip
        each = 2 * (4 + len(self._clusters())) + 1  # at most
        self._total = (len(first) + each * len(splits)) * self.effort.rounds
        courses = self._run(first)
        second = []
        for split in splits:
            settings = self._settings([c for c in courses if c.trial.split == split])
            second += [
                Trial(method, options, model, split)
                for model, lr in settings or [(models[0], LRS[0])]
                for method, options in self._personal(model, lr)
            ]
        courses += self._run(second)
        return courses + self._run(self._around_groups(courses))

    def _settings(self, courses: Sequence[Course]) -> list[tuple[str, float]]:
        """The models and learning rates that served best together and alone.

        Where sites pull apart, what is best for one common model is best for nobody.
        """
        alone = [c for c in courses if c.trial.method == ALONE]
        common = [c for c in courses if c.trial.method != ALONE]
        best = [choose_settings(own) for own in (common, alone)]
        pairs = [(c.trial.model, float(c.trial.options["lr"])) for c in best if c is not None]
        return list(dict.fromkeys(pairs))

    def _models(self) -> list[str]:
        shape = self.splits.data[0].input_shape
        return ["linear", "mlp:32"] if len(shape) == 1 else ["mlp:64"]

    def _clusters(self) -> list[int]:
        possible = [k for k in CLUSTERS if k <= self.sites // 2 and self.sites >= FEWEST_IN_GROUPS]
        return possible[: self.effort.choices]

    def _personal(self, model: str, lr: float) -> list[tuple[str, dict[str, Any]]]:
        """Personal methods that suit the model and so many sites, each with a few settings."""
        work = {"lr": lr, "local_steps": STEPS}
        found: list[tuple[str, dict[str, Any]]] = []
        if model != "linear":  # which is nothing but a head
            found.append(("fedper", work))
        found += [("ditto", {**work, "lam": lam}) for lam in LAMS[: self.effort.choices]]
        found += [("ifca", {**work, "clusters": k}) for k in self._clusters()]
        # no trial within the trials: how widely to share is judged here, among the methods
        found.append(("perm", {**work, "warm_up": self.effort.rounds // 3, "lam_rel": 1.0}))
        return found

    def _around_groups(self, courses: Sequence[Course]) -> list[Trial]:
        """pFedKM with the number of groups that served IFCA best, and as many gradients."""
        found = []
        for split in range(self.effort.splits):
            own = [c for c in courses if c.trial.split == split and c.trial.method == "ifca"]
            best = choose_settings(own)
            if best is not None:
                options = {
                    "lr": 1.0, "lam": 1.0, "local_steps": STEPS // INNER, "inner_steps": INNER,
                    "inner_lr": best.trial.options["lr"],
                    "clusters": best.trial.options["clusters"],
                }  # fmt: skip
                found.append(Trial("pfedkm", options, best.trial.model, split))
        return found

    def contributions(self, final: Course, kin: Kin | None, ratio: float) -> dict[str, Gain]:
        """What the others lose when a site is left out, for the most important sites."""
        given = kin.given() if kin else self.splits.data[0].train.sizes.double().numpy()
        most = MOST_LEFT_OUT if self.sites <= MANY else MOST_LEFT_OUT_OF_MANY
        order = np.argsort(-given, kind="stable")[:most].tolist()
        rounds, trial = final.best_round, final.trial
        trials = [
            Trial(trial.method, trial.options, trial.model, split, without)
            for without in (None, *order) for split in range(self.effort.splits)
        ]  # fmt: skip
        self._total += len(trials) * rounds
        courses = run_trials(self.splits, trials, rounds, rounds, self._advance)
        tests = {(c.trial.without, c.trial.split): c.test for c in courses if c.test is not None}
        better, found = self.splits.measure.sign, {}
        for site in order:
            losses = []
            for split in range(self.effort.splits):
                full, rest = tests.get((None, split)), tests.get((site, split))
                if full is not None and rest is not None:
                    losses.append(mean_of(better * (np.delete(full, site) - rest)))
            gain = gain_over_splits(losses, ratio)
            if gain is not None:
                found[self.splits.names[site]] = gain
        return found

    def _run(self, trials: Sequence[Trial]) -> list[Course]:
        effort = self.effort
        self.tried += len(trials)
        return run_trials(self.splits, trials, effort.rounds, effort.every, self._advance)

    def _advance(self, rounds: int) -> None:
        self._done += rounds
        self._tell(min(self._done, self._total), self._total)
