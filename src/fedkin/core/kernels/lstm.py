"""One layer of an LSTM for many clients at once, with its gradient written out.

Gates are i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of W (x_t, h_{t-1}) + b;
c_t = f*c_{t-1} + i*g and h_t = o*tanh(c_t). The gradient by W is taken of all steps in one product,
which autograd, that knows one step at a time, cannot do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def lstm(
    x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Outputs [T, n, H] and the last state, from x [T, n, i], W [4H, i + H] and b [4H]."""
    hs, cs, _, _ = Forward.apply(x, weight, bias, h, c)  # type: ignore[no-untyped-call]
    return hs, (hs[-1], cs[-1])


def _rows(info: Any, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """What vmap hands over, with a row per client in front."""
    return [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, dims, strict=True)
    ]


class Forward(torch.autograd.Function):
    """h_1 .. h_T, c_1 .. c_T, gates [T, n, 4H] and what they were made of [T, n, i + H]."""

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in forward(*(t[None] for t in tensors)))

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return forward(*_rows(info, dims, tensors)), (0,) * 4

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(inputs[1], inputs[4], *output[1:])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return Backward.apply(*ctx.saved_tensors, *slopes[:2])  # type: ignore[no-untyped-call]


class Backward(torch.autograd.Function):
    """Gradients by x, W, b, h_0 and c_0, from those by all outputs and states."""

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in backward(*(t[None] for t in tensors)))

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return backward(*_rows(info, dims, tensors)), (0,) * 5

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass  # second derivatives are taken step by step


def forward(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """As `Forward`, for rows."""
    rows, steps, n, _ = x.shape
    width, turned, beside = h.shape[2], weight.transpose(1, 2).contiguous(), bias.unsqueeze(1)
    inputs = x.new_empty(rows, steps, n, turned.shape[1])
    inputs[..., :-width] = x
    hs, cs = (x.new_empty(rows, steps, n, width) for _ in range(2))
    gates = x.new_empty(rows, steps, n, 4 * width)
    for t in range(steps):
        inputs[:, t, :, -width:] = h
        a = torch.bmm(inputs[:, t], turned).add_(beside)
        a[..., : 2 * width].sigmoid_()
        i, f, g, o = a.split_with_sizes([width] * 4, 2)
        c = torch.addcmul(i * g.tanh_(), f, c)
        h = torch.tanh(c).mul_(o.sigmoid_())
        hs[:, t], cs[:, t], gates[:, t] = h, c, a
    return hs, cs, gates, inputs


def backward(
    weight: Tensor, start: Tensor, cs: Tensor, gates: Tensor, inputs: Tensor, by_h: Tensor,
    by_c: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As `Backward`, for rows."""
    width, slopes = start.shape[2], torch.empty_like(gates)
    by_inputs = torch.empty_like(inputs)
    dh = dc = torch.zeros_like(start)
    for t in reversed(range(gates.shape[1])):
        i, f, g, o = gates[:, t].split_with_sizes([width] * 4, 2)
        by_i, by_f, by_g, by_o = slopes[:, t].split_with_sizes([width] * 4, 2)
        dh, bent = dh + by_h[:, t], torch.tanh(cs[:, t])
        dc = aten.tanh_backward(dh * o, bent).add_(dc).add_(by_c[:, t])
        aten.sigmoid_backward.grad_input(dh.mul_(bent), o, grad_input=by_o)
        aten.sigmoid_backward.grad_input(dc * g, i, grad_input=by_i)
        before = cs[:, t - 1] if t else start
        aten.sigmoid_backward.grad_input(dc * before, f, grad_input=by_f)
        aten.tanh_backward.grad_input(dc * i, g, grad_input=by_g)
        moved = torch.bmm(slopes[:, t], weight)
        by_inputs[:, t], dh, dc = moved, moved[..., -width:], dc.mul_(f)
    along, before = slopes.flatten(1, 2), inputs.flatten(1, 2)
    by_weight = torch.bmm(along.transpose(1, 2), before)
    return by_inputs[..., :-width], by_weight, along.sum(1), dh, dc
