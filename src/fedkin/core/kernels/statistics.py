"""Norms where a model is used: by the statistics of training data, not of the batch at hand."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkin.core.kernels import forms
from fedkin.core.kernels.spec import ModelSpec, model_errors

# training examples that the statistics are taken from, at most
EXAMPLES = 100


def spread(count: int, at_most: int = EXAMPLES) -> Tensor:
    """Which of `count` examples to take: all, or some spread evenly over them."""
    places = torch.linspace(0, count - 1, min(count, at_most), dtype=torch.float64)
    return places.round().long()


class Settler:
    """Finds the statistics of a model's norms on given examples."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self._local = spec, threading.local()

    def __getstate__(self) -> ModelSpec:
        """What another process needs to have the same: modules of threads are made anew there."""
        return self.spec

    def __setstate__(self, spec: ModelSpec) -> None:
        self.spec, self._local = spec, threading.local()

    def rows(self, v: Tensor, examples: Iterable[Tensor]) -> Tensor:
        """The statistics [B, s] of every row's model on that row's examples."""
        found = [self._row(row, own) for row, own in zip(v, examples, strict=True)]
        return torch.stack(found)

    def _row(self, vector: Tensor, examples: Tensor) -> Tensor:
        module = self._module
        for part in forms.norms_in(module, self.spec.module):
            forms.track(part, vector)
        named = {name: value[0] for name, value in self.spec.whole.split(vector[None]).items()}
        with torch.no_grad(), model_errors(examples):
            functional_call(module, named, (examples,))
        buffers = dict(module.named_buffers())
        return torch.cat([buffers[slot.name] for slot in self.spec.statistics.slots])

    @property
    def _module(self) -> nn.Module:
        if not hasattr(self._local, "module"):
            self._local.module = forms.used(self.spec.module)
            for part in forms.norms_in(self._local.module, self.spec.module):
                part.train()
                part.momentum = 1.0
        module: nn.Module = self._local.module
        return module
