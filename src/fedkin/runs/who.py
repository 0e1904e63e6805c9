"""Who learns from whom: the table, the file and the picture of a run's mixing weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.errors import FedkinError, visible
from fedkin.runs.names import cut
from fedkin.runs.reading import read_table

TABLE, PICTURE, RATES = "mixing.csv", "who_helps_whom.png", "rates.csv"
# in place of the first two where weights are sparse: a line for every pair of clients
PAIRS = "helpers.csv"
# columns of sharing.csv: how widely a client shares, and how sure that is (see Perm.results)
SHARING = ("lam_rel", "home_steps", "sure")

# more names than this are not readable; ordering more clients well takes long
MOST_NAMES, MOST_ARRANGED = 60, 300


def who_helps(alpha: Tensor, names: Sequence[str], client: int) -> pd.DataFrame:
    """The clients that the one at a place learns from, and their weights, largest first."""
    own = alpha[client].to_dense() if alpha.is_sparse else alpha[client]
    order = own.argsort(descending=True, stable=True)
    order = order[own[order] > 0]
    weights = own[order].numpy(force=True)
    return pd.DataFrame({"client": [names[i] for i in order.tolist()], "weight": weights})


def write_mixing(folder: Path, alpha: Tensor, names: Sequence[str]) -> None:
    """Write mixing.csv (rows: clients, columns: whom they learn from) and the picture.

    Sparse weights, of very many clients, are written pair by pair (client, helper, weight), and
    no picture is drawn.
    """
    if alpha.is_sparse:
        (row, column), known = alpha.coalesce().indices().numpy(), np.array(names, dtype=object)
        weights = alpha.coalesce().values().numpy()
        pairs = {"client": known[row], "helper": known[column], "weight": weights}
        pd.DataFrame(pairs).to_csv(folder / PAIRS, index=False)
        return
    table = pd.DataFrame(alpha.numpy(force=True), columns=list(names))
    table.insert(0, "client", list(names), allow_duplicates=True)
    table.to_csv(folder / TABLE, index=False)
    draw_mixing(folder / PICTURE, alpha, names)


def read_mixing(folder: Path) -> tuple[Tensor, tuple[str, ...]]:
    """The weights [N, N] and the clients' names from a run folder; sparse where they are pairs."""
    if (folder / PAIRS).is_file():
        return _read_pairs(folder)
    if not (folder / TABLE).is_file():
        raise FedkinError(
            f"{folder} has no {TABLE}: only finished runs of methods that learn who to learn "
            "with (perm and its forms) have one"
        )
    table = read_table(folder / TABLE, ("client",))
    names = tuple(table.get("client", ()))
    alpha = table.drop(columns="client", errors="ignore").to_numpy(np.float64)
    if not names or alpha.shape != (len(names), len(names)):
        raise FedkinError(f"{folder / TABLE} is damaged: it needs a row and a column per client")
    if not (np.isfinite(alpha) & (alpha >= 0)).all():
        raise FedkinError(f"{folder / TABLE} is damaged: weights are finite and not below zero")
    return torch.from_numpy(alpha), names


def has_mixing(folder: Path) -> bool:
    """Whether a run folder has weights."""
    return (folder / TABLE).is_file() or (folder / PAIRS).is_file()


def _read_pairs(folder: Path) -> tuple[Tensor, tuple[str, ...]]:
    """Weights from a line for every pair; the names are those of sharing.csv, in its order."""
    path = folder / PAIRS
    table = read_table(path, ("client", "helper", "weight"), words=("client", "helper"))
    names = tuple(read_sharing(folder))
    place = {name: i for i, name in enumerate(names)}
    pairs = [table[column].map(place) for column in ("client", "helper")]
    weights = table["weight"].to_numpy(np.float64)
    if any(column.isna().any() for column in pairs):
        raise FedkinError(f"{path} is damaged: it names clients that sharing.csv does not")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise FedkinError(f"{path} is damaged: weights are finite and not below zero")
    places = torch.from_numpy(np.stack([column.to_numpy(np.int64) for column in pairs]))
    known, shape = torch.tensor(weights), (len(names), len(names))
    alpha = torch.sparse_coo_tensor(places, known, shape, check_invariants=True)
    return alpha.coalesce(), names


def read_sharing(folder: Path) -> dict[str, tuple[float, int, float]]:
    """What was chosen for every client by name, as in SHARING; empty where nothing was."""
    path = folder / "sharing.csv"
    table = read_table(path, ("client", *SHARING))
    if table.empty:
        return {}
    known = table[list(SHARING)].notna().all(axis=None)
    if not known or not table["home_steps"].between(0, 10**6).all():
        raise FedkinError(f"{path} is damaged: it needs a choice for every client")
    rows = zip(table["client"].astype(str), *(table[name] for name in SHARING), strict=True)
    return {client: (float(lam), int(steps), float(sure)) for client, lam, steps, sure in rows}


def sharing_words(lam: float, steps: int, sure: float) -> str:
    """A sentence about how widely a client shares."""
    if lam == 0:
        return f"It trains alone: better than learning with others, {sure:.0%} sure."
    tuned = f", then {steps} steps at home" if steps else ""
    way = "It uses the one model for all" if lam == np.inf else f"It shares with lam_rel {lam:g}"
    return f"{way}{tuned}: better than alone, {sure:.0%} sure."


def sharing_summary(chosen: dict[str, tuple[float, int, float]]) -> str:
    """A sentence about what all clients chose."""
    counts: dict[str, int] = {}
    for lam, _, _ in chosen.values():
        way = {0.0: "alone", np.inf: "the one model for all"}.get(lam, f"lam_rel {lam:g}")
        counts[way] = counts.get(way, 0) + 1
    listed = ", ".join(f"{way}: {n}" for way, n in sorted(counts.items(), key=lambda c: -c[1]))
    mean = float(np.mean([sure for _, _, sure in chosen.values()]))
    return f"How widely clients share, by held-out data ({listed}; {mean:.0%} sure on average)."


def read_rates(folder: Path) -> dict[str, float]:
    """Clients' rates by name, if the models of the run differ in size; else empty."""
    path = folder / RATES
    table = read_table(path, ("client",))
    if table.empty:
        return {}
    others = [name for name in table if name != "client"]
    if not others or not table[others[0]].between(0, 1, inclusive="right").all():
        raise FedkinError(f"{path} is damaged: clients have rates above 0 and up to 1")
    return dict(zip(table["client"], table[others[0]].astype(float), strict=True))


def like_beside_like(alpha: Tensor) -> NDArray[np.int64]:
    """An order of the clients in which those that learn from each other are neighbours.

    Clients are merged by how much of their weight they share: the distance between two of
    them is 1 - sum_k min(alpha_ik, alpha_jk), from 0 (same weights) to 1 (nothing shared).
    """
    from scipy.cluster.hierarchy import leaves_list, linkage  # imported here: not every run draws

    rows = alpha.double().numpy(force=True)
    if len(rows) < 3:
        return np.arange(len(rows))
    # for weights that sum to 1 this is half the distance |a - b|_1
    tree: Any = linkage(
        rows, "average", metric="cityblock", optimal_ordering=len(rows) <= MOST_ARRANGED
    )
    order: NDArray[np.int64] = leaves_list(tree).astype(np.int64)
    return order


def draw_mixing(path: Path, alpha: Tensor, names: Sequence[str]) -> None:
    """The heat map: a row per client; darker means it learns more from the column's client."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import (
        Figure,
    )  # not pyplot, which has global state and needs a window system

    order = like_beside_like(alpha)
    weights = alpha.numpy(force=True)[np.ix_(order, order)]
    figure = Figure(figsize=(7.5, 6.5), layout="constrained")
    axes = figure.subplots()
    # square root: otherwise a client's weight on itself hides all the others
    norm = PowerNorm(0.5, 0, max(float(weights.max()), 1e-12))
    image = axes.imshow(weights, cmap="Blues", norm=norm, interpolation="nearest")
    axes.set(xlabel="learns from", ylabel="client", title="Who helps whom")
    if len(names) <= MOST_NAMES:
        labels = [cut(visible(names[i])) for i in order]
        axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(len(names)), labels, fontsize=7, parse_math=False)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    figure.colorbar(image, ax=axes, label="weight")
    figure.savefig(path, dpi=120)
