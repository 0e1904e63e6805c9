"""Kernels for any module that works functionally: stacked by vmap, or row by row."""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, jvp, vmap

from fedkin.core.kernels.spec import ModelSpec, weights

Named = dict[str, Tensor]


class Functional:
    """What both share: a module of its own per thread, and the loss of one row."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        # functional_call swaps parameters in place, so threads must not share a module
        self._local = threading.local()

    @property
    def module(self) -> nn.Module:
        if not hasattr(self._local, "module"):
            self._local.module = copy.deepcopy(self.spec.module)
        module: nn.Module = self._local.module
        return module

    def _model(self, parameters: Named, x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self.module, parameters, (x,))
        return outputs

    def _loss(self, parameters: Named, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return (self.spec.loss.value(self._model(parameters, x), y) * w).sum()

    def hvp(self, v: Tensor, u: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        layout = self.spec.layout

        def product(at: Named, along: Named, x: Tensor, y: Tensor, w: Tensor) -> Named:
            slope = grad(lambda p: self._loss(p, x, y, w))
            result: Named = jvp(slope, (at,), (along,))[1]
            return result

        w = weights(w, y.reshape(*y.shape[:2], -1)[..., 0].to(v.dtype))
        return layout.join(vmap(product)(layout.split(v), layout.split(u), x, y, w))


class Stacked(Functional):
    """One vmapped call for the whole block."""

    def outputs(self, v: Tensor, x: Tensor) -> Tensor:
        result: Tensor = vmap(self._model)(self.spec.layout.split(v), x)
        return result

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        layout = self.spec.layout
        w = weights(w, y.reshape(*y.shape[:2], -1)[..., 0].to(v.dtype))
        gradient, value = vmap(grad_and_value(self._loss))(layout.split(v), x, y, w)
        return value[:, None], layout.join(gradient)

    def grad(self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        return self.value_and_grad(v, x, y, w)[1]


class OneByOne(Functional):
    """Plain autograd, one row after the other: the reference, and good for big models."""

    def _row(self, v: Tensor) -> Named:
        """One model's parameters as leaves, convolutions in the layout they are fastest in."""
        named = {}
        for name, parameter in self.spec.layout.split(v[None]).items():
            leaf = parameter[0].detach()
            if leaf.dim() == 4:
                leaf = leaf.contiguous(memory_format=torch.channels_last)
            named[name] = leaf.requires_grad_()
        return named

    def outputs(self, v: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.stack([self._model(self._row(v[i]), x[i]) for i in range(len(v))])

    def value_and_grad(
        self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        layout = self.spec.layout
        w = weights(w, y.reshape(*y.shape[:2], -1)[..., 0].to(v.dtype))
        values, gradient = [], torch.empty_like(v, memory_format=torch.contiguous_format)
        for i in range(len(v)):
            row = self._row(v[i])
            examples = x[i]
            if examples.dim() == 4:
                examples = examples.contiguous(memory_format=torch.channels_last)
            with torch.enable_grad():
                value = self._loss(row, examples, y[i], w[i])
            slopes = torch.autograd.grad(value, list(row.values()), allow_unused=True)
            for slot, slope in zip(layout.slots, slopes, strict=True):
                target = slot.view(gradient[i : i + 1])[0]
                target.zero_() if slope is None else target.copy_(slope)
            values.append(value.detach())
        return torch.stack(values)[:, None], gradient

    def grad(self, v: Tensor, x: Tensor, y: Tensor, w: Tensor | None) -> Tensor:
        return self.value_and_grad(v, x, y, w)[1]
