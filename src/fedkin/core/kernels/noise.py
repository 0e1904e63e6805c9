"""Random numbers that a model draws in its forward pass, from the client's key and the step.

Dropout, wherever it is (a layer, a function, inside attention or between recurrent layers), ends
in a few operations of torch that fill a tensor at random. While a model is trained these are
answered here: draw number k of row b depends on the row's key and on k alone, so it is the same
stacked or one by one, in any engine, and after a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedkin.core import rng

aten = torch.ops.aten

# random bits of one decision: four fit in a word
DIGITS = 16


class Noise(TorchDispatchMode):
    """Answers torch's random operations for the rows that have these keys.

    `draws` counts them; `strange` names those that are not answered.
    """

    def __init__(self, keys: rng.Bits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.draws, self.strange = keys, 0, dict[str, None]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # importing the compiler takes seconds, and there is nothing to compile here

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not _draws(func):
            return func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}
        defaults = {
            a.name: a.default_value for a in func._schema.arguments if a.has_default_value()
        }
        arguments = {**defaults, **given, **(kwargs or {})}
        if name not in ANSWERS:
            if arguments.get("dropout_p") != 0:  # fused attention without dropout draws nothing
                self.strange[name] = None
            return func(*args, **(kwargs or {}))
        answer = ANSWERS[name](self, arguments)
        self.draws += 1
        return answer

    def chance(self, shape: Sequence[int], p: float) -> Tensor:
        """True with chance p, to 1/65536."""
        words = self._words(-(-prod(shape) // (len(self.keys) * 64 // DIGITS)))
        lanes = words.view(np.uint16)[:, : prod(shape) // len(self.keys)]
        return torch.from_numpy(lanes < round(p * 2**DIGITS)).reshape(tuple(shape))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers between 0 and 1, neither of which occurs."""
        numbers = rng.uniform(self._words(prod(shape) // len(self.keys))) + 2.0**-54
        return torch.from_numpy(numbers).reshape(tuple(shape))

    def _words(self, count: int) -> rng.Bits:
        return rng.bits(rng.key(self.keys, "draw", self.draws), rng.positions(0, count))


@cache  # asked for every operation of a model
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def noise(keys: rng.Bits | None) -> AbstractContextManager[Any]:
    """Within it a model's random numbers come from these keys; None: it draws none."""
    return nullcontext() if keys is None else Noise(keys)


# what torch's operations are answered with -------------------------------------------------


def _like(values: Tensor, arguments: Mapping[str, Any], default: Tensor | None = None) -> Tensor:
    dtype = arguments.get("dtype") or (
        torch.get_default_dtype() if default is None else default.dtype
    )
    device = arguments.get("device") or ("cpu" if default is None else default.device)
    return values.to(device, dtype)


def _put(tensor: Tensor, values: Tensor) -> Tensor:
    return tensor.copy_(values)


def _bernoulli(mode: Noise, a: Mapping[str, Any], into: bool) -> Tensor:
    tensor, p = a["self"], a.get("p")
    if p is None or isinstance(p, Tensor):
        chances = (tensor if p is None else p).double().cpu()
        values = mode.uniform(tensor.shape) < chances
    else:
        values = mode.chance(tensor.shape, p)
    return _put(tensor, values) if into else _like(values, a, tensor)


def _native_dropout(mode: Noise, a: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    tensor, keep = a["input"], 1 - a["p"] if a["train"] is not False else 1.0
    kept = mode.chance(tensor.shape, keep).to(tensor.device)
    factor = kept.to(tensor.dtype).mul_(1 / keep if keep else 0.0)
    return tensor * factor, kept


def _uniform_(mode: Noise, a: Mapping[str, Any]) -> Tensor:
    return _put(a["self"], a["from"] + (a["to"] - a["from"]) * mode.uniform(a["self"].shape))


def _normal(mode: Noise, shape: Sequence[int]) -> Tensor:
    found: Tensor = torch.special.ndtri(mode.uniform(shape))
    return found


def _normal_(mode: Noise, a: Mapping[str, Any]) -> Tensor:
    return _put(a["self"], a["mean"] + a["std"] * _normal(mode, a["self"].shape))


ANSWERS: dict[str, Callable[[Noise, Mapping[str, Any]], Any]] = {
    "bernoulli": lambda mode, a: _bernoulli(mode, a, into=False),
    "bernoulli_": lambda mode, a: _bernoulli(mode, a, into=True),
    "native_dropout": _native_dropout,
    "uniform_": _uniform_,
    "normal_": _normal_,
    "rand": lambda mode, a: _like(mode.uniform(a["size"]), a),
    "rand_like": lambda mode, a: _like(mode.uniform(a["self"].shape), a, a["self"]),
    "randn": lambda mode, a: _like(_normal(mode, a["size"]), a),
    "randn_like": lambda mode, a: _like(_normal(mode, a["self"].shape), a, a["self"]),
}
