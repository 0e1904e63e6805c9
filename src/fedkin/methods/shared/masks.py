"""Which part of a model a client works on: coordinates, or channels of its hidden layers."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor
from typing_extensions import Doc

from fedkin.core import rng
from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.errors import FedkinError
from fedkin.models.widths import Widths

# coordinates ---------------------------------------------------------------------------


def random_coordinates(client: Client, size: int, share: Any) -> Tensor:
    """m_i: every coordinate is held with probability p_i, drawn afresh; [B, size] of 0 and 1."""
    # in single precision a number just below 1 may round to 1: that one is held at p = 1 too
    held: Tensor = client.uniform("mask", size) <= share
    return held.to(client.problem.dtype)


def coordinate_window(like: Tensor, share: Any, start: int, windows: int) -> Tensor:
    """m_i: a window of consecutive coordinates, wrapping around.

    The coordinates are divided into `windows` cells of one size (give or take one); the
    window begins with cell `start` and has ceil(p_i*windows) cells. Over all starts
    every coordinate is held equally often.
    """
    size = like.shape[-1]
    cells = torch.arange(size, device=like.device)[None] * windows // size
    # the small slack keeps 0.1*30 at 3 whatever the rounding of the product
    held: Tensor = (cells - start) % windows < share * windows - 1e-6
    return held.to(like.dtype)


def shuffled(seed: int, windows: int, turn: int, *of: int) -> int:
    """Which of the windows has its turn: all once per epoch, in a fresh random order each."""
    epoch, place = divmod(turn, windows)
    words = rng.bits(rng.key(seed, "windows", windows, *of, epoch), rng.positions(0, windows))
    return int(np.argsort(words[0], kind="stable")[place])


# channels ------------------------------------------------------------------------------

Kind = Literal["static", "random", "rolling", "shuffled"]
Windows = Literal["shared", "per-layer"]
KINDS: tuple[Kind, ...] = ("static", "random", "rolling", "shuffled")


def choose(
    kind: str, widths: Widths, rate: float, seed: int, turn: int, who: Tensor,
    windows: str = "shared",
) -> list[Tensor]:  # fmt: skip
    """For every group the channels that clients `who` hold: [len(who), count], or one row for all.

    Within a row channels are in rising order, so that a whole model is the model itself.
    """
    pairs = list(zip(widths.sizes, widths.kept(rate), strict=True))
    if kind == "random":
        return [_random(*pair, group, seed, turn, who) for group, pair in enumerate(pairs)]
    starts = window_starts(kind, widths.sizes, seed, turn, windows)
    return [
        ((start + torch.arange(count)) % size).sort().values[None]
        for start, (size, count) in zip(starts, pairs, strict=True)
    ]


def _random(size: int, count: int, group: int, seed: int, turn: int, who: Tensor) -> Tensor:
    """A fresh random set for every client and turn."""
    if count == size:
        return torch.arange(size)[None]
    keys = rng.key(seed, "channels", turn, group, who.numpy())
    order = np.argsort(rng.bits(keys, rng.positions(0, size)), axis=1, kind="stable")
    return torch.from_numpy(np.sort(order[:, :count], axis=1))


def window_starts(
    kind: str, sizes: tuple[int, ...], seed: int, turn: int, windows: str = "shared"
) -> list[int]:
    """In which channel of each group the clients' window begins.

    "static": in the first (HeteroFL). "rolling": one channel further every turn (FedRolex).
    "shuffled": of the R sub-models that rolling has, R the largest width, all once in an epoch
    of R turns, in a fresh random order. A position is one for all groups, modulo their widths.
    With windows "per-layer" each group has its own: rolling starts an epoch at a channel drawn
    for the group, and shuffled has an order of its own for each, so that in time every two
    channels of neighbouring layers are held together.
    """
    if kind == "static" or not sizes:
        return [0] * len(sizes)
    if windows == "shared":
        place = turn if kind == "rolling" else shuffled(seed, max(sizes), turn)
        return [place % size for size in sizes]
    if kind == "shuffled":
        return [shuffled(seed, size, turn, group) for group, size in enumerate(sizes)]
    epoch = turn // max(sizes)
    drawn = rng.bits(rng.key(seed, "starts", epoch), rng.positions(0, len(sizes)))[0]
    return [(turn + int(first)) % size for first, size in zip(drawn, sizes, strict=True)]


# capacities ----------------------------------------------------------------------------


def assign_rates(rates: tuple[float, ...], count: int, random: np.random.Generator) -> Tensor:
    """Equally many clients of each rate (give or take one), in random order."""
    places = random.permutation(np.arange(count) % len(rates))
    return torch.tensor(rates, dtype=torch.float64)[torch.from_numpy(places)]


def first_rates(fed: Federation, rates: tuple[float, ...], capacity: str) -> Tensor:
    """Every client's rate: assigned evenly, or read from the client column `capacity` names."""
    if capacity not in ("uniform", "redrawn"):
        return parse_rates(fed.column(capacity), f"client column '{capacity}'")
    parse_rates(list(rates), "rates")
    return assign_rates(rates, fed.size, fed.random("rates"))


def rates_now(fed: Federation, first: Tensor, rates: tuple[float, ...], capacity: str) -> Tensor:
    """Every client's rate in this round: as at first, unless rates are redrawn."""
    return assign_rates(rates, fed.size, fed.random("rates")) if capacity == "redrawn" else first


def levels(rates: Tensor, who: Tensor) -> Iterator[tuple[float, Tensor]]:
    """Clients of each rate, the largest first: each group's models have one shape."""
    for rate in sorted(set(rates[who].tolist()), reverse=True):
        yield rate, who[rates[who] == rate]


def written_rates(value: Any) -> Any:
    """`1,1/2,1/4` as the list of its words, and a single number as a list of one."""
    if isinstance(value, str):
        return value.split(",")
    return [value] if isinstance(value, int | float) else value


def written_rate(value: Any) -> Any:
    """`1/4` as the number it is."""
    try:
        return float(Fraction(value.strip())) if isinstance(value, str) else value
    except (ValueError, ZeroDivisionError):
        return value


def as_numbers(rates: Any) -> Any:
    """Rates as Python code may write them, `(1, "1/2")` or `"1,1/2"`; what is none stays."""
    written = written_rates(rates)
    return tuple(map(written_rate, written)) if isinstance(written, list | tuple) else rates


Rate = Annotated[float, BeforeValidator(written_rate), Field(gt=0, le=1)]
Aggregation = Literal["fill", "holders"]
Capacity = Annotated[str, Doc("who has which rate: uniform, redrawn or a client column")]
RATES = (1.0, 0.5, 0.25, 0.125, 0.0625)
Rates = Annotated[tuple[Rate, ...], BeforeValidator(written_rates), Field(min_length=1)]


def parse_rates(values: list[Any], where: str) -> Tensor:
    """Rates as people write them (0.25, '1/4'), checked."""
    found = []
    for value in values:
        rate = written_rate(str(value))
        if not isinstance(rate, float) or not 0 < rate <= 1:
            raise FedkinError(f"{where}: a rate is a number above 0 and at most 1, not '{value}'")
        found.append(rate)
    return torch.tensor(found, dtype=torch.float64)
