"""PERM with very many clients: weights of the nearest, sparse plans, models in files."""

from __future__ import annotations

import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch

from bench.state import INPUTS, WIDTH, measured
from bench.timing import Row
from bench.workloads import mlp
from fedkin.core.federation import Federation
from fedkin.core.problem import Problem
from fedkin.core.variants import PLAIN
from fedkin.data.clients import ClientData, Examples
from fedkin.engines import Embedded
from fedkin.methods import Perm
from fedkin.methods.shared import neighbours, shuffling

FEATURES = 60
# what a run may take beside the memory it was given: torch, data, rows being worked on
BESIDE_GB = 1.5


def kin(clients: int, groups: int, samples: int, classes: int = 10) -> Federation:
    """Logistic models of 60 features; the clients of a group label by the same true model."""
    torch.manual_seed(0)
    truth = 0.4 * torch.randn(groups + 1, FEATURES, classes)
    x = torch.randn(clients, samples, FEATURES)
    noise = -torch.rand(clients, samples, classes).log_().neg_().log_()
    y = (x @ (truth[0] + truth[1:][torch.arange(clients) % groups]) + noise).argmax(2)
    ends = torch.arange(clients + 1) * samples
    examples = Examples(x.flatten(0, 1), y.flatten(), ends)
    data = ClientData(examples, examples, classes)
    problem = Problem(mlp(FEATURES, classes), data, batch_size=20)
    return Federation(problem, Embedded(problem))


def weights_of_many(clients: int = 100_000, classes: int = 2) -> Row:
    """Everybody's weights, in groups of 200 clients: gradients through the federation, then kin
    and alphas. To make the data is not a part of it; the peak of memory includes them."""
    begin = time.perf_counter()
    fed, method = kin(clients, clients // 200, 50, classes), Perm(lam_rel=1.0)
    s = method.init(fed)
    s.epoch = 1
    ends = [time.perf_counter()]
    method.hear(fed, s, PLAIN)
    ends.append(time.perf_counter())
    method.weigh(fed, s, method.tried, None)
    ends.append(time.perf_counter())
    return {
        "what": f"{clients} clients, {classes} classes, gradients of {s.g.shape[1]}",
        **dict(zip(("gradients_s", "weights_s"), _lengths(ends), strict=True)),
        "total_s": ends[-1] - ends[0], "data_s": ends[0] - begin,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "non_zero": int((s.alpha > 0).sum()),
    }  # fmt: skip


def recall(clients: int = 2_000, samples: int = 200) -> Row:
    """Found neighbours at 10 against those by all distances in double precision."""
    fed = kin(clients, 10, samples)
    method = Perm(lam_rel=1.0)
    s = method.init(fed)
    s.epoch = 1
    method.hear(fed, s, PLAIN)
    start = time.perf_counter()
    found = neighbours.nearest(s.g, 11)[0][:, 1:]
    end = time.perf_counter()
    g = s.g.double()
    true = torch.cdist(g, g).fill_diagonal_(torch.inf).topk(10, largest=False).indices
    same = (found[:, :, None] == true[:, None]).any(2).double().mean()
    return {
        "what": f"recall at 10, {clients} clients of {samples} samples",
        "recall": float(same), "found_s": end - start,
    }  # fmt: skip


def plans(clients: int = 20_000) -> list[Row]:
    """An epoch's visits and the time its plan takes, for more and more non-zero weights."""
    fed, rows = kin(clients, clients // 200, 20), list[Row]()
    for nearest in (8, 16, 32):
        method = Perm(lam_rel=1.0, nearest=nearest)
        s = method.init(fed)
        fed.begin_round(1)
        s.epoch = 1
        method.hear(fed, s, PLAIN)
        method.weigh(fed, s, method.tried, None)
        count, start = int((s.alpha > 0).sum()), time.perf_counter()
        random = fed.random("plan")
        often = shuffling.in_proportion(s.alpha[0], round(count / clients), random)
        made = shuffling.visits(often, s.kin, random)
        rows.append({
            "what": f"plan, {clients} clients, nearest {nearest}", "non_zero": count,
            "visits": len(made), "rounds": int(made[:, 0].max()) + 1,
            "us_per_visit": 1e6 * (time.perf_counter() - start) / len(made),
        })  # fmt: skip
    return rows


def spilled(clients: int = 20_000, width: int = WIDTH, memory_gb: int = 2) -> Row:
    """A run whose models take more than the memory it may use; three such files at most.

    Two rounds: FedAvg, then everybody's weights and a first visit of every model, a step each.
    """
    parameters = width * (INPUTS + 2) + 1
    data = ("--data", "linear", "--num-clients", clients, "--samples", 10, "--dim", INPUTS)
    work = ("--model", f"mlp:{width}", "--local-steps", 1, "--batch-size", 5, "--lr", 0.001)
    plan = ("--rounds", 2, "--eval-every", 2, "--checkpoint-every", 2, "--no-baseline")
    own = ("--warm-up", 1, "--lam-rel", 1, "--tune-steps", 0, "--memory", f"{memory_gb}GB")
    place = Path("runs")  # not where temporary files are, which may be memory
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run = Path(folder).resolve() / "run"
        found = measured("run", "perm", "--out", run, *data, *work, *plan, *own, "-q")
    size = clients * parameters * 4 / 1e9
    what, limit = f"{clients} models of {parameters}", memory_gb + BESIDE_GB
    return {"what": what, "models_gb": size, "limit_gb": limit, **found}


def _lengths(ends: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(ends)]
