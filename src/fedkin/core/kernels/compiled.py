"""The fastest other kernel, compiled to machine code: for long runs where a compiler is at hand."""

from __future__ import annotations

import logging
import os
import shutil
import warnings

import torch
from torch import Tensor

from fedkin.core.kernels.functional import Stacked
from fedkin.core.kernels.native import Native, UnsupportedLayerError
from fedkin.core.kernels.spec import ModelSpec
from fedkin.errors import FedkinError


def compiler_at_hand() -> bool:
    """Whether torch.compile can work here: it needs a C++ compiler."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


class Compiled:
    """Gradients by torch.compile; everything that is asked for rarely as before."""

    def __init__(self, spec: ModelSpec) -> None:
        if not compiler_at_hand():
            raise FedkinError(
                "strategy 'compiled' needs a C++ compiler and found none: install g++, or use auto"
            )
        base: Native | Stacked
        try:
            base = Native(spec)
        except UnsupportedLayerError:
            base = Stacked(spec)
        self.outputs, self.value_and_grad, self.hvp = base.outputs, base.value_and_grad, base.hvp
        # how often it compiles anew is its own affair, not the user's
        logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
        self._grad = torch.compile(base.grad, dynamic=False)

    def grad(self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the tracer, about its own workings
            result: Tensor = self._grad(v, x, y, w)
        return result
