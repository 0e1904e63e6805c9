"""Kernels for any module that works functionally: stacked by vmap, or row by row."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedkin.core import rng
from fedkin.core.kernels import forms
from fedkin.core.kernels.layer import Into
from fedkin.core.kernels.noise import noise as drawing
from fedkin.core.kernels.recurrent import stackable, step_by_step
from fedkin.core.kernels.spec import CHANNELS, ModelSpec, as_outputs, model_errors, weights
from fedkin.models.layout import Layout

Named = dict[str, Tensor]

# what torch cannot stack it computes row by row, and asks the user to write to its authors
warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet")


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
        values, slopes = self._slopes(v, x, y, w, noise)
        gradient = torch.empty_like(v, memory_format=torch.contiguous_format)
        for slot, slope in zip(self.spec.whole.slots, slopes, strict=True):
            target = slot.view(gradient)
            target.zero_() if slope is None else target.copy_(slope)
        return values[:, None], gradient

    def descend_(
        self, v: Tensor, lr: Any, x: Tensor, y: Tensor, w: Tensor | None, into: Tensor,
        noise: rng.Bits | None = None,
    ) -> Tensor:  # fmt: skip
        """As `Native.descend_`, of models without parameters that stay at home."""
        _, slopes = self._slopes(v, x, y, w, noise)
        for slot, slope in zip(self.spec.layout.slots, slopes, strict=True):
            target = slot.view(into)
            if slope is not None and isinstance(lr, Tensor):
                column = lr.view(-1, *[1] * (slope.dim() - 1))
                target.addcmul_(column, slope, value=-1)
            elif slope is not None:
                target.sub_(slope, alpha=lr)
        return into

    def _slopes(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Each row's loss, and its derivatives by the parameters: those of the sum of all losses,
        as rows do not meet. So autograd itself need not be stacked, which would take longer."""
        split = self.spec.whole.split(v).items()
        leaves = {name: value.detach().requires_grad_() for name, value in split}
        loss, w = partial(self._loss, self._trained(noise), noise), self._weights(v, y, w)
        with torch.enable_grad():
            values = self._stacked(loss, leaves, x, y, w)
        with model_errors(x):
            slopes = torch.autograd.grad(
                values, list(leaves.values()), torch.ones_like(values), allow_unused=True
            )
        return values.detach(), slopes

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

    def _row(self, v: Tensor, home: Tensor | None = None) -> Named:
        """One model's parameters as leaves, convolutions in the layout they are fastest in.

        Those that stay at home are v's last, or given by themselves.
        """
        named, layout = {}, self.spec.whole if home is None else self.spec.layout
        own = {} if home is None else self.spec.home.split(home[None])
        for name, parameter in (layout.split(v[None]) | own).items():
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
        gradient = torch.empty_like(v, memory_format=torch.contiguous_format)
        values = []
        for i, (value, slopes) in enumerate(self._slopes(v, x, y, w, noise)):
            self._put(slopes, gradient[i : i + 1], self.spec.whole)
            values.append(value)
        return torch.stack(values)[:, None], gradient

    def descend_(
        self, v: Tensor, lr: Any, x: Tensor, y: Tensor, w: Tensor | None, into: Tensor,
        noise: rng.Bits | None = None, home: Tensor | None = None,
        home_slopes: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """As `Native.descend_`. Parameters that stay at home are given by themselves, and their
        gradients put into `home_slopes`."""
        place, travels = Into(into, True), self.spec.layout.slots
        for i, (_, slopes) in enumerate(self._slopes(v, x, y, w, noise, home)):
            size = float(lr[i if len(lr) > 1 else 0]) if isinstance(lr, Tensor) else lr
            for slot, slope in zip(travels, slopes[: len(travels)], strict=True):
                target = place.of(slot, i)
                if slope is not None:
                    target.sub_(slope, alpha=size)
            if home_slopes is not None:
                self._put(slopes[len(travels) :], home_slopes[i : i + 1], self.spec.home)
        return into

    def _slopes(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None, noise: rng.Bits | None,
        home: Tensor | None = None,
    ) -> Iterator[tuple[Tensor, Sequence[Tensor | None]]]:  # fmt: skip
        """Each row's loss, and its derivatives by the parameters."""
        w = self._weights(v, y, w)
        for i in range(len(v)):
            row = self._row(v[i], None if home is None else home[i])
            with model_errors(x[i]):
                value = self._value(row, i, x, y, w, noise)
                slopes = torch.autograd.grad(value, list(row.values()), allow_unused=True)
            yield value.detach(), slopes

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
            self._put(found, products[i : i + 1], self.spec.whole)
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

    def _put(self, slopes: Sequence[Tensor | None], into: Tensor, layout: Layout) -> None:
        """Derivatives by a layout's parameters, into one row."""
        for slot, slope in zip(layout.slots, slopes, strict=True):
            target = slot.view(into)[0]
            target.zero_() if slope is None else target.copy_(slope)
