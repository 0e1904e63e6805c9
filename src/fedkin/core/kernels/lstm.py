"""One layer of an LSTM for many clients at once, with its gradient written out.

Gates are i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of W x_t + U h_{t-1} + b;
c_t = f*c_{t-1} + i*g and h_t = o*tanh(c_t). What does not wait for the step before is computed for
all steps at once: W x_t, the gates' derivatives, and the gradients by W and U, each in one
product. Autograd, that knows one step at a time, cannot do that. tanh(z) = 2*sigmoid(2z) - 1 is
taken by the sigmoid, which torch computes three times as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def lstm(
    x: Tensor, of_x: Tensor, of_h: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Outputs [T, n, H] and the last state, from x [T, n, i], W [4H, i], U [4H, H] and b [4H]."""
    hs, cs = OneRow.apply(x, of_x, of_h, bias, h, c)  # type: ignore[no-untyped-call]
    return hs, (hs[-1], cs[-1])


class OneRow(torch.autograd.Function):
    """h_1 .. h_T and c_1 .. c_T of one client; vmap makes rows of it."""

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        hs, cs, _, _ = forward(*(t[None] for t in tensors))
        return hs[0], cs[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        rows = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, dims, strict=True)
        ]
        return Rows.apply(*rows), (0, 0)  # type: ignore[no-untyped-call]


class Rows(torch.autograd.Function):
    """The same for many clients, a row each."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, of_x, of_h, _, h, c = tensors
        hs, cs, bent, gates = forward(*tensors)
        ctx.save_for_backward(x, of_x, of_h, h, c, hs, cs, bent, gates)
        ctx.set_materialize_grads(False)
        return hs, cs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_h: Tensor | None, by_c: Tensor | None) -> tuple[Any, ...]:
        if by_h is None:
            by_h = torch.zeros_like(ctx.saved_tensors[5])
        wanted = {"by_h": by_h, "by_c": by_c, "of_inputs": ctx.needs_input_grad[0]}
        return backward(*ctx.saved_tensors, **wanted)


def forward(
    x: Tensor, of_x: Tensor, of_h: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, ...]:
    """h_t, c_t and tanh(c_t) [B, T, n, H] and gates [B, T, n, 4H] of rows."""
    rows, steps, n, _ = x.shape
    width = h.shape[2]
    of_x, of_h, bias = (_for_sigmoids(weight, width) for weight in (of_x, of_h, bias))
    gates = torch.baddbmm(bias.unsqueeze(1), x.flatten(1, 2), of_x.transpose(1, 2))
    gates = gates.view(rows, steps, n, -1)  # from x alone at first
    hs, cs, bent = (x.new_empty(rows, steps, n, width) for _ in range(3))
    # in the loop h is -h, c is 2c, and g and tanh(c) are what the sigmoid gave: numbers beside
    # tensors would cost as much as the sums
    turned, h, c = of_h.transpose(1, 2), -h, 2 * c
    for a, now, c_now, h_now in zip(
        *(tensor.unbind(1) for tensor in (gates, bent, cs, hs)), strict=True
    ):
        torch.sigmoid(torch.baddbmm(a, h, turned, alpha=-1), out=a)
        i, f, g, o = a.split_with_sizes([width] * 4, 2)
        c = torch.mul(f, c, out=c_now).addcmul_(i, g, value=4).sub_(i, alpha=2)
        torch.sigmoid(c, out=now)
        h = torch.addcmul(o, o, now, value=-2, out=h_now)
    gates[..., 2 * width : 3 * width].mul_(2).sub_(1)
    return hs.neg_(), cs.mul_(0.5), bent.mul_(2).sub_(1), gates


def _for_sigmoids(weight: Tensor, width: int) -> Tensor:
    """Weights with those of the gate g twice as large."""
    doubled = weight.clone(memory_format=torch.contiguous_format)
    doubled[:, 2 * width : 3 * width].mul_(2)
    return doubled


def backward(
    x: Tensor, of_x: Tensor, of_h: Tensor, h: Tensor, c: Tensor, hs: Tensor, cs: Tensor,
    bent: Tensor, gates: Tensor, by_h: Tensor, by_c: Tensor | None, of_inputs: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients by x (where wanted), W, U, b, h_0 and c_0, from those by all outputs and (where
    they count) states."""
    rows, steps, n, _ = x.shape
    width = h.shape[2]
    # by how much each gate's argument moves c_t (i, f, g) or h_t (o), and c_t moves h_t
    moves = gates.new_empty(rows, steps, n, 4 * width)
    i, f, g, o = gates.split_with_sizes([width] * 4, 3)
    by_i, by_f, by_g, by_o = moves.split_with_sizes([width] * 4, 3)
    torch.mul(g, i, out=by_i).addcmul_(by_i, i, value=-1)
    torch.addcmul(f, f, f, value=-1, out=by_f)
    by_f[:, 1:].mul_(cs[:, :-1])
    by_f[:, 0].mul_(c)
    torch.mul(i, g, out=by_g).mul_(g).neg_().add_(i)
    torch.addcmul(o, o, o, value=-1, out=by_o).mul_(bent)
    through = torch.mul(o, bent).mul_(bent).neg_().add_(o).unbind(1)
    of_state, of_output = (
        part.unbind(1) for part in moves.view(rows, steps, n, 4, width).split_with_sizes([3, 1], 3)
    )
    forgets, slopes_by_h, slopes = f.unbind(1), by_h.unbind(1), moves.unbind(1)
    dh, dc = slopes_by_h[-1], by_h.new_zeros(rows, n, width)
    for t in reversed(range(steps)):
        if by_c is not None:
            dc.add_(by_c[:, t])
        dc.addcmul_(dh, through[t])
        of_state[t].mul_(dc.unsqueeze(2))
        of_output[t].mul_(dh.unsqueeze(2))
        if t:
            dh = torch.baddbmm(slopes_by_h[t - 1], slopes[t], of_h)
        dc.mul_(forgets[t])
    dh = torch.bmm(slopes[0], of_h)
    along = moves.flatten(1, 2)
    later = moves[:, 1:].flatten(1, 2).transpose(1, 2)
    by_of_h = torch.bmm(slopes[0].transpose(1, 2), h)
    by_of_h.baddbmm_(later, hs[:, :-1].flatten(1, 2))
    by_of_x = torch.bmm(along.transpose(1, 2), x.flatten(1, 2))
    by_x = torch.bmm(along, of_x).view_as(x) if of_inputs else None
    return by_x, by_of_x, by_of_h, along.sum(1), dh, dc
