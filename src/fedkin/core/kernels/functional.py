"""Kernels for any module that works functionally: stacked by vmap, or row by row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedkin.core import rng
from fedkin.core.kernels import forms
from fedkin.core.kernels.noise import noise as drawing
from fedkin.core.kernels.recurrent import stackable, step_by_step
from fedkin.core.kernels.spec import CHANNELS, ModelSpec, as_outputs, model_errors, weights

Named = dict[str, Tensor]


class Functional:
    """What both share: modules of their own per thread, and the loss of one row."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        # functional_call swaps parameters in place, so threads must not share a module
        self._local = threading.local()

    def _form(self, name: str) -> nn.Module:
        """The module as it is trained, held still, or used."""
        if not hasattr(self._local, name):
            setattr(self._local, name, self._made(forms.FORMS[name](self.spec.module)))
        module: nn.Module = getattr(self._local, name)
        return module

    def _made(self, form: nn.Module) -> nn.Module:
        return form

    def _trained(self, noise: rng.Bits | None) -> nn.Module:
        """What gradients are of: held still where a module that draws has no keys to draw by."""
        return self._form("still" if noise is None and self.spec.random else "training")

    def _model(self, module: nn.Module, named: Named, x: Tensor) -> Tensor:
        return as_outputs(functional_call(module, named, (x,)))

    def _loss(
        self, module: nn.Module, noise: rng.Bits | None, named: Named, x: Tensor, y: Tensor,
        w: Tensor,
    ) -> Tensor:  # fmt: skip
        with drawing(noise):  # not on the way back, where nothing is drawn and it costs time
            outputs = self._model(module, named, x)
        return (self.spec.loss.value(outputs, y) * w).sum()

    def _weights(self, v: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        return weights(w, y.reshape(*y.shape[:2], -1)[..., 0].to(v.dtype))

    def _split(self, v: Tensor, statistics: Tensor | None) -> Named:
        """Parameters, and where given statistics, by name."""
        named = self.spec.whole.split(v)
        return named if statistics is None else named | self.spec.statistics.split(statistics)


class Stacked(Functional):
    """One vmapped call for the whole block."""

    def _made(self, form: nn.Module) -> nn.Module:
        return stackable(form)

    def outputs(self, v: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        module = self._form("still" if statistics is None else "used")
        found: Tensor = self._stacked(partial(self._model, module), self._split(v, statistics), x)
        return found

    def _stacked(self, of_one: Callable[..., Any], *rows: Any) -> Any:
        """A function of one row's parameters and examples (the last of `rows`), for all rows."""
        # fused attention cannot be stacked: torch would compute one row after the other
        with model_errors(rows[1]), sdpa_kernel(SDPBackend.MATH):
            return vmap(of_one, randomness="different")(*rows)

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> tuple[Tensor, Tensor]:
        loss = grad_and_value(partial(self._loss, self._trained(noise), noise))
        named, whole = self.spec.whole.split(v), self.spec.whole
        gradient, value = self._stacked(loss, named, x, y, self._weights(v, y, w))
        return value[:, None], whole.join(gradient)

    def grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> Tensor:
        return self.value_and_grad(v, x, y, w, noise)[1]

    def hvp(
        self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None,
        noise: rng.Bits | None = None,
    ) -> Tensor:  # fmt: skip
        module, whole = self._trained(noise), self.spec.whole

        def product(at: Named, x: Tensor, y: Tensor, w: Tensor, along: Named) -> Named:
            slope = grad(lambda p: self._loss(module, noise, p, x, y, w))
            result: Named = jvp(slope, (at,), (along,))[1]
            return result

        w = self._weights(v, y, w)
        with step_by_step():
            return whole.join(self._stacked(product, whole.split(v), x, y, w, whole.split(u)))


class OneByOne(Functional):
    """Plain autograd, one row after the other: the reference, and good for big models."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        filters = [part for part in spec.module.modules() if isinstance(part, nn.Conv2d)]
        self._channels_last = all(part.out_channels >= CHANNELS for part in filters)

    def _row(self, v: Tensor) -> Named:
        """One model's parameters as leaves, convolutions in the layout they are fastest in."""
        named = {}
        for name, parameter in self.spec.whole.split(v[None]).items():
            leaf = parameter[0].detach()
            if leaf.dim() == 4 and self._channels_last:
                leaf = leaf.contiguous(memory_format=torch.channels_last)
            named[name] = leaf.requires_grad_()
        return named

    def outputs(self, v: Tensor, x: Tensor, statistics: Tensor | None = None) -> Tensor:
        module, found = self._form("still" if statistics is None else "used"), []
        with torch.no_grad(), model_errors(x):
            for i in range(len(v)):
                named = self._row(v[i])
                if statistics is not None:
                    split = self.spec.statistics.split(statistics[i : i + 1])
                    named |= {name: value[0] for name, value in split.items()}
                found.append(self._model(module, named, x[i]))
        return torch.stack(found)

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> tuple[Tensor, Tensor]:
        w = self._weights(v, y, w)
        values, gradient = [], torch.empty_like(v, memory_format=torch.contiguous_format)
        for i in range(len(v)):
            row = self._row(v[i])
            with model_errors(x[i]):
                value = self._value(row, i, x, y, w, noise)
                slopes = torch.autograd.grad(value, list(row.values()), allow_unused=True)
            self._put(slopes, gradient[i : i + 1])
            values.append(value.detach())
        return torch.stack(values)[:, None], gradient

    def grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None = None
    ) -> Tensor:
        return self.value_and_grad(v, x, y, w, noise)[1]

    def hvp(
        self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None,
        noise: rng.Bits | None = None,
    ) -> Tensor:  # fmt: skip
        w = self._weights(v, y, w)
        products = torch.empty_like(v, memory_format=torch.contiguous_format)
        for i in range(len(v)):
            row = self._row(v[i])
            leaves = list(row.values())
            along = self.spec.whole.split(u[i : i + 1]).values()
            with model_errors(x[i]), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                value = self._value(row, i, x, y, w, noise)
                slopes = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
                pairs = [
                    (s * a[0]).sum()
                    for s, a in zip(slopes, along, strict=True)
                    if s is not None and s.requires_grad
                ]
                found: Sequence[Tensor | None] = [None] * len(leaves)
                if pairs:
                    total = torch.stack(pairs).sum()
                    found = torch.autograd.grad(total, leaves, allow_unused=True)
            self._put(found, products[i : i + 1])
        return products

    def _value(
        self, row: Named, i: int, x: Tensor, y: Tensor, w: Tensor, noise: rng.Bits | None
    ) -> Tensor:
        """The loss of row i."""
        examples = x[i]
        if examples.dim() == 4 and self._channels_last:
            examples = examples.contiguous(memory_format=torch.channels_last)
        own = None if noise is None else noise[i : i + 1]
        with torch.enable_grad():
            return self._loss(self._trained(noise), own, row, examples, y[i], w[i])

    def _put(self, slopes: Sequence[Tensor | None], into: Tensor) -> None:
        """Derivatives by the parameters, into one row."""
        for slot, slope in zip(self.spec.whole.slots, slopes, strict=True):
            target = slot.view(into)[0]
            target.zero_() if slope is None else target.copy_(slope)
