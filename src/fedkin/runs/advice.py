"""Should these sites collaborate, with whom, with what, at what cost, and how sure is that?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedkin.core.metrics import get_metric
from fedkin.core.problem import Problem
from fedkin.data import ClientData, DataConfig, load
from fedkin.data.resplit import resplit
from fedkin.errors import FedkinError
from fedkin.models import build
from fedkin.runs.advice_answer import Advice, Effort
from fedkin.runs.advice_search import Search
from fedkin.runs.advice_trials import Splits
from fedkin.runs.advice_verdict import conclude
from fedkin.runs.measures import Measure, choose_metrics

TABLES = ("csv", "parquet")
BY_TIME = (0.15, 0.35)  # share of test rows where rows are divided by time


def splits_of(source: DataConfig | ClientData, effort: Effort, first: ClientData) -> Splits:
    """The clients divided anew for every split; of tables everything is learnt anew as well.

    Rows in the order of time are divided at several times: later ones are always test rows.
    """
    count = effort.splits
    if isinstance(source, DataConfig) and source.name in TABLES:
        config = source.model_copy(update={"validation_fraction": 0.2})
        shares = [config.test_fraction] * count
        if config.time_column:
            shares = np.linspace(*BY_TIME, count).tolist()
        data = [
            load(config.model_copy(update={"test_fraction": share}), seed)
            for seed, share in enumerate(shares)
        ]
    else:
        data = [resplit(first, seed) for seed in range(count)]
    return Splits(tuple(data), measure_of(first))


def give_advice(
    source: DataConfig | ClientData,
    effort: Effort | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Advice:
    """Try going alone, one model for all and personal methods; find out what is best for whom.

    `on_progress` is called with the rounds done and those to do.
    """
    if isinstance(source, DataConfig):
        refuse_splits(source)
    first = load(source, 0) if isinstance(source, DataConfig) else source
    check(first)
    effort = effort or Effort.for_sites(first.num_clients)
    splits = splits_of(source, effort, first)
    search = Search(splits, effort, on_progress)
    return conclude(search, search.everything(), source if isinstance(source, DataConfig) else None)


def measure_of(data: ClientData) -> Measure:
    """What is told: RMSE for numbers, AUC for unbalanced classes, otherwise accuracy."""
    outputs = data.num_classes or max(1, data.train.y[0].numel())
    problem = Problem(build("linear", data.input_shape, outputs), data)
    return Measure.of(get_metric(choose_metrics(problem, ())[0]))


def refuse_splits(config: DataConfig) -> None:
    """Refuse keys that say how rows or clients are held out: advice divides them itself."""
    for key in ("test", "fold", "unseen", "common_test"):
        if getattr(config, key):
            raise FedkinError(
                f"{key} = {getattr(config, key)} does not go with advise, which divides every "
                "site's rows itself, several times: leave it out"
            )


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
