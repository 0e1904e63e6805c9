"""The run: rounds, evaluation, records, checkpoints, resume."""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from fedkin.core.federation import Engine, Federation
from fedkin.core.memory import Budget, Memory
from fedkin.core.problem import Problem
from fedkin.core.robust import Aggregate
from fedkin.core.tables import Room
from fedkin.engines import Embedded, make_engine
from fedkin.errors import LOWER_LR, DivergedError, FedkinError, FedkinWarning
from fedkin.methods import Method
from fedkin.runs import newcomers
from fedkin.runs.alone_once import AloneOnce
from fedkin.runs.capacity import write_capacities
from fedkin.runs.contender import (
    Contender,
    check_server_memory,
    local_like,
)
from fedkin.runs.early import best_round, check_patience, waited, went_back
from fedkin.runs.evaluation import Scores, score_trivial
from fedkin.runs.fold_scores import keep_scores
from fedkin.runs.folder import RunFolder
from fedkin.runs.inputs import keep_inputs
from fedkin.runs.keeping import Keeper
from fedkin.runs.measures import choose_metrics, keep_measures
from fedkin.runs.models import save_models
from fedkin.runs.noise import keep_resamples, resample_times
from fedkin.runs.own_models import check_models, keep_models
from fedkin.runs.pictures import write_results
from fedkin.runs.privacy import check_aggregate, check_norms, make_guarantee
from fedkin.runs.progress import OnRound, Progress
from fedkin.runs.records import client_table, clocks, metrics_row
from fedkin.runs.run import Run
from fedkin.runs.schedule import check_schedule, scheduled
from fedkin.runs.scoring import not_finite, score_contenders
from fedkin.runs.settings import Settings, parse_size
from fedkin.runs.step_size import step_remarks
from fedkin.runs.trackers import Told, Tracker
from fedkin.runs.validation import check_method
from fedkin.runs.watch import grown_loss

if TYPE_CHECKING:
    from fedkin.runs.cluster import Cluster  # which needs Ray


class Trainer(Keeper):
    """Advances a method, and local-only training beside it, round by round.

    With a folder, all results are written there as they are computed, and `resume` continues
    exactly from the last checkpoint. `engine_for` gives each contender its engine when several
    runs, `sharing` of them, are computed as one: each is then charged its part of the time. With
    a `cluster` clients are in its shards. `fold`, from 1, is the place among several folds whose
    scores are pooled. `alone` has what other runs found out about local-only training, or takes it.
    """

    # whether the noise of differential privacy must be one that nobody can compute again
    secret_noise = False
    # whether clients' data are here
    sees_data = True

    def __init__(
        self,
        problem: Problem,
        method: Method,
        settings: Settings | None = None,
        folder: RunFolder | None = None,
        engine_for: Callable[[str], Engine] | None = None,
        sharing: int = 1,
        cluster: Cluster | None = None,
        fold: int = 0,
        alone: AloneOnce | None = None,
    ) -> None:
        check_method(method)
        self.problem, self.method, self.folder = problem, method, folder
        self.cluster, self._sharing, self._fold = cluster, sharing, fold
        self._engine_for = cluster.engine_for if cluster else engine_for
        self.settings = settings or Settings()
        self._alone = alone
        self._told = self._baseline and alone is not None and alone.known(self.settings)
        check_schedule(method, self.settings)
        check_models(problem, method, self.settings, cluster is not None)
        if problem.data.newcomers is not None:
            newcomers.home_lr(method)  # said at once if it is missing
        check_patience(problem, self.settings)
        self._ended = folder is not None and went_back(folder.path)
        # without a folder, the best round's checkpoint is in a temporary one
        self._spare: tempfile.TemporaryDirectory[str] | None = None
        self.round, self.stopping = 0, False
        self.saved_round = 0
        self._score: float | None = None
        self._trivial: Scores | None = None
        self.metric_names = choose_metrics(problem, self.settings.metric)
        self._scores: dict[str, Scores] = {}
        self._planned = folder.strategy() if folder else {}
        self._threads: int = self._planned.get("threads") or torch.get_num_threads()
        self._budget = Budget(parse_size(self.settings.memory))
        self._aggregate = Aggregate.parse(self.settings.aggregate)
        check_aggregate(self._aggregate, method)
        clients = problem.num_clients
        share = Federation.count_asked(self.settings.fraction, clients)
        self.guarantee = make_guarantee(self.settings, clients, share, method, self.secret_noise)
        check_norms(self.guarantee, problem)
        self.contenders = self.make_contenders()
        if folder:
            keep_inputs(folder.path, problem)
            keep_models(folder.path, problem)
            keep_measures(folder.path, self.metric_names)
        remarks = method.remarks(self.contenders["method"].fed)
        if self.sees_data and not cluster and self.guarantee is None:
            remarks += step_remarks(problem, method, self.settings)
        for remark in remarks:
            self._warn(remark.sentence)
        # what is to be said where training diverges: the method's own cause, where it knows one
        self._cause = next((r.sentence for r in remarks if r.unstable), LOWER_LR)
        self._warned = False
        self.metrics: list[dict[str, Any]] = []
        self.timing: list[dict[str, Any]] = []
        # one table per evaluation; with a folder they are kept there and not here
        self.clients: list[dict[str, list[Any]]] = []

    def make_contenders(self) -> dict[str, Contender]:
        """The method and, beside it, local-only training, as they are before the first round."""
        found = {"method": self._contender(self.method, "method")}
        if self._baseline and not self._told:
            found["local"] = self._contender(local_like(self.method), "local")
        return found

    def _contender(self, method: Method, name: str) -> Contender:
        s = self.settings
        spill = self.folder.path if self.folder else None
        memory = Memory(self.problem.num_clients, self._budget, spill)
        threads = s.threads or self._threads
        planned = self._planned.get(name, ())
        engine: Engine = (
            self._engine_for(name)
            if self._engine_for
            else make_engine(
                s.engine, self.problem, s.strategy, s.block_size, threads, memory, planned
            )
        )
        method_itself = name == "method"  # the other one, local-only training, sends nothing
        privacy = self.guarantee.privacy if self.guarantee and method_itself else None
        aggregate = self._aggregate if method_itself else None
        fed = Federation(
            self.problem, engine, s.seed, s.fraction, s.faults, s.sampling, privacy, aggregate,
            Room(self._budget, spill),
        )  # fmt: skip
        contender = Contender(method, fed, method.init(fed))
        check_server_memory(contender, parse_size(s.memory))
        return contender

    @property
    def strategy(self) -> str | None:
        """The strategy that the embedded engine chose; None before."""
        engine = self.contenders["method"].fed.engine
        return str(engine.chosen) if isinstance(engine, Embedded) and engine.chosen else None

    def _warn(self, sentence: str) -> None:
        """Say something that the run goes on with, and keep it in the log."""
        if self.folder:
            self.folder.log(sentence)
        warnings.warn(sentence, FedkinWarning, stacklevel=3)

    # rounds --------------------------------------------------------------------------

    def run(self, on_round: OnRound | None = None, trackers: Sequence[Tracker] = ()) -> Run:
        """Train until the last round or the end of patience, or until `stopping` is set."""
        told, rounds = Told(trackers), self.settings.rounds
        told.begin(self.name, self.settings_by_name(), self.round)
        try:
            while not self.done and not self.stopping:
                self.cluster.step(self) if self.cluster else self.step()
                told.log(self.round, self.metrics[-1])
                if on_round:
                    row = self.metrics[-1]
                    on_round(Progress(self.round, rounds, self._score, self.measure, row))
            if self.done and self.settings.patience is not None:
                self._go_back()
            if self.cluster:
                self.cluster.ready(self)
            if self.folder and self.done:
                self._finish(self.folder)
        finally:
            told.end(self.done)
        return Run(self.problem, self)

    @property
    def name(self) -> str:
        """The run's name for people: its folder's, or its method's."""
        return self.folder.path.name if self.folder else self.method.name

    def settings_by_name(self) -> dict[str, Any]:
        """The method, its options and the run's settings by name."""
        options = {f"options.{key}": value for key, value in asdict(self.method).items()}
        return {"method": self.method.name, **asdict(self.settings), **options}

    @property
    def done(self) -> bool:
        """Whether there is nothing more to train."""
        last = self.round >= self.settings.rounds or self._spent
        return self._ended or last or waited(self.metrics, self.measure, self.settings.patience)

    @property
    def _spent(self) -> bool:
        """Whether the privacy budget has no room for another round."""
        return self.guarantee is not None and not self.guarantee.lasts()

    def step(self) -> None:
        """One round of every contender, evaluated and saved when due."""
        number, seconds = self.round + 1, {}
        last = number == self.settings.rounds
        if self.guarantee is not None:
            last = last or not self.guarantee.lasts_after_next()
            if self.folder:
                self.guarantee.begin(self.folder.path)
        for name, contender in self.contenders.items():
            # requests set this as needed; a round must not depend on the one before
            torch.set_num_threads(self._threads)
            start = time.perf_counter()
            now = scheduled(contender.method, self.settings, number)
            try:
                contender.step(number, last, now)
            except DivergedError as error:
                raise self._diverged(str(error).removesuffix(f"; {LOWER_LR}")) from None
            if now is not contender.method:
                contender.fed.record(lr=now.lr)  # type: ignore[attr-defined]
            seconds[name] = (time.perf_counter() - start) / self._sharing
        if self.guarantee is not None:
            self.contenders["method"].fed.record(dp_epsilon=self.guarantee.epsilon)
        due = last or number % self.settings.eval_every == 0
        scores = self._evaluate(number, last) if due else {}
        fed = self.contenders["method"].fed
        self.metrics.append(self._row(number, scores))
        # the time of the baseline is not part of the method's cost
        self.timing.append({"round": number, "seconds": seconds["method"], **clocks(fed)})
        self.round = number
        if scores:
            self._score = self.metrics[-1][f"personal_{self.metric_names[0]}"]
            self._scores = scores
            grown = None if self._warned else grown_loss(self.metrics, self.problem)
            if grown:
                self._warned = True
                self._warn(f"{grown}; {self._cause}")
        if scores and self.settings.patience and best_round(self.metrics, self.measure) == number:
            self._save_in(self._best_place())
        clients = client_table(number, fed, scores, self.metric_names) if scores else {}
        if not self.folder:
            self.clients += [clients] if scores else []
            return
        shutil.rmtree(self.folder.models, ignore_errors=True)  # when a finished run is extended
        self._write(self.folder, clients)
        if last or number % self.settings.checkpoint_every == 0:
            self.save()

    def _row(self, number: int, scores: dict[str, Scores]) -> dict[str, Any]:
        """The round's row of metrics.csv."""
        return metrics_row(number, self.contenders["method"].fed, scores, self.metric_names)

    def _evaluate(self, number: int, last: bool) -> dict[str, Scores]:
        torch.set_num_threads(self._threads)
        metrics, data = self.metric_names, self.problem.data
        # of folds all rows, so that it is the same number in each
        rows = (data.train, data.test) if self._fold else (data.test,)
        times = resample_times(sum(int(part.sizes.sum()) for part in rows)) if last else 0
        noise = (times, self._fold)
        found = score_contenders(self.contenders, number, metrics, noise, self.settings)
        if self._alone is not None and self._told:
            found |= self._alone.scores[number]
        elif self._alone is not None:
            self._alone.note(number, self.method, found)
        if self._trivial is None:  # it is the same in every round
            self._trivial = score_trivial(self.contenders["method"].fed, metrics)
        found["trivial"] = self._trivial
        if self.folder and self._fold:
            keep_scores(self.folder.path, number, found)
        if last and self.folder:
            keep_resamples(self.folder.path, found, metrics[0])
        diverged = not_finite(found["personal"], number, data.names)
        if diverged:
            raise self._diverged(diverged)
        return found

    # the end --------------------------------------------------------------------------

    def newcomers(self) -> pd.DataFrame:
        """How good models of the clients that were kept out are, after some steps at home."""
        data, contender = self.problem.data.newcomers, self.contenders["method"]
        if data is None:
            raise FedkinError("no clients were kept out: set unseen, as in unseen = 0.2")
        found = newcomers.Newcomers(contender, data, self.round, True, self.metric_names)
        rate = newcomers.home_lr(contender.method)
        return found.judge(newcomers.STEPS, rate, self.round)

    def _finish(self, folder: RunFolder) -> None:
        if folder.models.exists():  # it appears last, complete
            return
        torch.set_num_threads(self._threads)
        contender = self.contenders["method"]
        results = contender.method.results(contender.state)
        write_results(folder.path, results, self.problem.data)
        contender.fed.after_round(self.round)
        if "rates" in results:
            write_capacities(
                folder.path, contender.fed, contender.method, contender.state,
                self._scores.get("personal"), self._scores.get("local"),
            )  # fmt: skip
        if self.problem.data.newcomers is not None:
            self.newcomers().to_csv(folder.path / newcomers.TABLE, index=False)
        contender.fed.after_round(self.round)  # with the same draws as when they were evaluated
        save_models(folder.models, contender.fed, contender.method, contender.state)
