"""Layers that can be stacked where torch's own cannot: the same parameters by name.

Recurrent layers go step by step. torch computes an LSTM or a GRU in one call that vmap cannot
batch. Written out as matrix products, with the products by the inputs of all steps taken at once,
twenty clients' layers cost little more than one's. Embeddings leave their padding as it is in
every row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core.kernels.lstm import lstm


def stackable(module: nn.Module) -> nn.Module:
    """Let the module's layers compute so that rows can be stacked (in place)."""
    for part in module.modules():
        if type(part) is nn.Embedding and part.padding_idx is not None:
            part.__class__ = Padded
        if type(part) in STEPPED and not getattr(part, "proj_size", 0):
            part.__class__ = STEPPED[type(part)]
    return module


class _Alone(threading.local):
    stepping = False


_alone = _Alone()


@contextmanager
def step_by_step() -> Iterator[None]:
    """Within it LSTMs are computed so that second derivatives can be taken as well."""
    _alone.stepping = True
    try:
        yield
    finally:
        _alone.stepping = False


class Padded(nn.Embedding):
    """An embedding whose padding stays as it is: stacked, torch holds that of the first row only
    (its gradient sees all rows' tables as one)."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.padding_idx is not None
        found = super().forward(x)
        return torch.where(x.eq(self.padding_idx).unsqueeze(-1), found.detach(), found)


class Stepped:
    """The forward pass of torch's recurrent layers; a cell says what one step is."""

    states = 1

    def forward(self, x: Tensor, start: Any = None) -> Any:
        layer: Any = self
        sequence = x.transpose(0, 1) if layer.batch_first and x.dim() == 3 else x
        single = sequence.dim() == 2
        sequence = sequence.unsqueeze(1) if single else sequence
        begun = self._start(layer, sequence, start, single)
        ends: list[list[Tensor]] = [[] for _ in begun]
        count = 2 if layer.bidirectional else 1
        for number in range(layer.num_layers):
            if number and layer.dropout:
                sequence = F.dropout(sequence, layer.dropout, layer.training)
            outputs = []
            for way in range(count):
                state = tuple(part[number * count + way] for part in begun)
                run, state = self._run(layer, number, way == 1, sequence, state)
                outputs.append(run)
                for kept, final in zip(ends, state, strict=True):
                    kept.append(final)
            sequence = outputs[0] if count == 1 else torch.cat(outputs, 2)
        last = tuple(torch.stack(kept) for kept in ends)
        if single:
            sequence, last = sequence.squeeze(1), tuple(part.squeeze(1) for part in last)
        elif layer.batch_first:
            sequence = sequence.transpose(0, 1)
        return sequence, (last if self.states == 2 else last[0])

    def _start(self, layer: Any, x: Tensor, start: Any, single: bool) -> tuple[Tensor, ...]:
        if start is None:
            count = layer.num_layers * (2 if layer.bidirectional else 1)
            return (x.new_zeros(count, x.shape[1], layer.hidden_size),) * self.states
        given = start if self.states == 2 else (start,)
        return tuple(part.unsqueeze(1) if single else part for part in given)

    def _run(
        self, layer: Any, number: int, reverse: bool, x: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer in one direction over the whole sequence."""
        end = f"l{number}{'_reverse' if reverse else ''}"
        weight_ih, weight_hh = (getattr(layer, f"weight_{which}_{end}") for which in ("ih", "hh"))
        biases = [getattr(layer, f"bias_{which}_{end}") if layer.bias else None
                  for which in ("ih", "hh")]  # fmt: skip
        if self.states == 2 and not _alone.stepping:
            given = [bias for bias in biases if bias is not None]
            bias = sum(given, start=weight_ih.new_zeros(len(weight_ih)))
            if not reverse:
                return lstm(x, weight_ih, weight_hh, bias, *state)
            run, last = lstm(x.flip(0), weight_ih, weight_hh, bias, *state)
            return run.flip(0), last
        outputs, from_inputs = [], F.linear(x, weight_ih, biases[0]).unbind(0)
        for step in reversed(from_inputs) if reverse else from_inputs:
            state = self.cell(layer, step, F.linear(state[0], weight_hh, biases[1]), state)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if reverse else outputs), state

    def cell(
        self, layer: Any, inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The next state, from what inputs and the hidden state contribute."""
        raise NotImplementedError


class SteppedLSTM(Stepped, nn.LSTM):  # type: ignore[misc]
    states = 2

    def cell(
        self, layer: Any, inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        i, f, g, o = (inputs + hidden).chunk(4, -1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class SteppedGRU(Stepped, nn.GRU):  # type: ignore[misc]
    def cell(
        self, layer: Any, inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        (r, z, n), (hr, hz, hn) = inputs.chunk(3, -1), hidden.chunk(3, -1)
        reset, update = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
        return (torch.lerp(torch.tanh(n + reset * hn), state[0], update),)


class SteppedRNN(Stepped, nn.RNN):  # type: ignore[misc]
    def cell(
        self, layer: Any, inputs: Tensor, hidden: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        return ((torch.tanh if layer.nonlinearity == "tanh" else torch.relu)(inputs + hidden),)


STEPPED: dict[type[nn.Module], type[nn.Module]] = {
    nn.LSTM: SteppedLSTM,
    nn.GRU: SteppedGRU,
    nn.RNN: SteppedRNN,
}
