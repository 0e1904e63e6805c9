"""Which dimensions of which parameters are hidden widths, and the smaller models they allow.

A hidden width is a set of channels (units) that lives inside the model: cutting some of
them leaves inputs and outputs as they are. Channels that are added together, as in
residual stacks, are one group and are cut together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError, unknown
from fedkin.models.flows import CONVOLUTIONS, NORMS, Axis, follow
from fedkin.models.layout import Layout, Slot

Declared = Mapping[str, Sequence[str | tuple[str, int] | None]]


@dataclass(frozen=True)
class Widths:
    """Groups of channels by name with their sizes, and where each parameter carries them."""

    layout: Layout
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    axes: dict[str, tuple[Axis, ...]]

    @classmethod
    def of(cls, module: nn.Module, example: Tensor) -> Widths:
        """Derived by following an input through layers joined in chains or by addition.

        A module with a table `widths` as an attribute declares them itself (see `declared`).
        """
        layout = Layout.of(module)
        if isinstance(own := getattr(module, "widths", None), Mapping):
            found = cls.declared(layout, own)
        else:
            found = cls._of_names(layout, follow(module, example))
        _try_out(module, found, example)
        return found

    @classmethod
    def declared(cls, layout: Layout, widths: Declared) -> Widths:
        """From a group name (or None) for every dimension of parameters that have any.

        `{"first.weight": ("hidden", None), "first.bias": ("hidden",), "last.weight":
        (None, "hidden")}`; a pair ("hidden", 49) says that 49 consecutive entries
        belong to each channel, as after flattening 7x7 images.
        """
        shapes = {slot.name: slot.shape for slot in layout.slots}
        axes = {}
        for name, groups in widths.items():
            if name not in shapes:
                raise unknown("parameter", name, shapes)
            if not isinstance(groups, tuple | list) or len(groups) != len(shapes[name]):
                raise FedkinError(
                    f"the widths of '{name}' are {groups!r}: give a name or None for each of its "
                    f"{len(shapes[name])} dimensions"
                )
            axes[name] = tuple(_axis(name, group) for group in groups)
        return cls._of_names(layout, axes)

    @classmethod
    def _of_names(cls, layout: Layout, axes: Mapping[str, tuple[Axis, ...]]) -> Widths:
        sizes: dict[str, int] = {}
        for slot in layout.slots:
            for axis, length in zip(axes.get(slot.name, ()), slot.shape, strict=False):
                if axis.group is None:
                    continue
                size = sizes.setdefault(axis.group, length // axis.repeat)
                if size * axis.repeat != length:
                    raise FedkinError(
                        f"'{slot.name}' cannot be cut: a dimension of {length} does not hold "
                        f"{axis.repeat} entries for each of the {size} channels of '{axis.group}'"
                    )
        return cls(layout, tuple(sizes), tuple(sizes.values()), dict(axes))

    def kept(self, rate: float) -> tuple[int, ...]:
        """How many channels of each group a model of this rate has: ceil(rate*width)."""
        if not 0 < rate <= 1:
            raise FedkinError(f"a rate is a number above 0 and at most 1, not {rate}")
        # the small slack keeps 0.1*30 at 3 whatever the rounding of the product
        return tuple(max(1, ceil(rate * size - 1e-9)) for size in self.sizes)

    def first(self, rate: float) -> list[Tensor]:
        """The first channels of every group: the choice that nests smaller models in larger."""
        return [torch.arange(count)[None] for count in self.kept(rate)]

    def index(self, channels: Sequence[Tensor]) -> Tensor:
        """Where a sub-model's parameters lie in the full vector: [B, k].

        `channels` holds for every group the channels kept, [B, count] (or one row for
        all): `x[index]` takes sub-models out of x, `index_add_` puts them back.
        """
        chosen = dict(zip(self.names, channels, strict=True))
        return torch.cat([self._slot_index(slot, chosen) for slot in self.layout.slots], 1)

    def _slot_index(self, slot: Slot, chosen: Mapping[str, Tensor]) -> Tensor:
        axes = self.axes.get(slot.name) or (Axis(None),) * len(slot.shape)
        rows = max((len(c) for c in chosen.values()), default=1)
        places = []
        for i, (axis, length) in enumerate(zip(axes, slot.shape, strict=True)):
            stride = prod(slot.shape[i + 1 :])
            if axis.group is None:
                entries = torch.arange(length)[None]
            else:
                within = torch.arange(axis.repeat)
                entries = (chosen[axis.group][:, :, None] * axis.repeat + within).flatten(1)
            spread = [-1 if j == i else 1 for j in range(len(slot.shape))]
            places.append((entries * stride).view(len(entries), *spread))
        start = torch.tensor(slot.start).expand(rows, *[1] * len(slot.shape))
        return reduce(torch.add, places, start).flatten(1) if places else start[:, None]

    def scaler(self, module: nn.Module, rate: float) -> Tensor:
        """By what a sub-model's entries are multiplied so that its hidden layers give more: [k].

        The scaler of HeteroFL and FedRolex stands right after each linear layer or convolution
        with hidden outputs, before norm and activation: it multiplies by C/ceil(rate*C), which
        is 1/rate where that many channels can be had.
        """
        kept = dict(zip(self.names, zip(self.sizes, self.kept(rate), strict=True), strict=True))
        factors, reached = torch.ones(self.layout.size, dtype=torch.float64), set[str | None]()
        for slot, owner, group in self._outputs(module):
            if group in kept and isinstance(owner, (nn.Linear, *CONVOLUTIONS)):
                whole, part = kept[group]
                factors[slot.start : slot.start + slot.size] = whole / part
                reached.add(group)
        missed = next((name for name in self.names if name not in reached), None)
        if missed is not None:
            raise FedkinError(
                f"the scaler does not know what gives the channels '{missed}' their values: only "
                "linear layers and convolutions do; train without it"
            )
        return factors[self.index(self.first(rate))[0]]

    def missing_inputs(self, module: nn.Module, rate: float) -> Tensor:
        """C/ceil(rate*C) where a sub-model's entry weighs one of what is left of C inputs: [k].

        1 elsewhere, and in layers whose outputs are normed: there any scale is undone.
        """
        kept = dict(zip(self.names, zip(self.sizes, self.kept(rate), strict=True), strict=True))
        factors, normed = torch.ones(self.layout.size, dtype=torch.float64), self.normed(module)
        for slot, owner, group in self._outputs(module):
            inputs = next(iter(self.axes.get(slot.name, ())[1:]), Axis(None)).group
            if isinstance(owner, (nn.Linear, *CONVOLUTIONS)) and inputs in kept:
                whole, part = kept[inputs]
                scale = 1.0 if group in normed else whole / part
                factors[slot.start : slot.start + slot.size] = scale
        return factors[self.index(self.first(rate))[0]]

    def normed(self, module: nn.Module) -> tuple[str, ...]:
        """The groups whose channels go through a norm, which undoes what a scaler does."""
        kinds = (*NORMS, nn.LayerNorm)
        found = {group for _, owner, group in self._outputs(module) if isinstance(owner, kinds)}
        return tuple(name for name in self.names if name in found)

    def _outputs(self, module: nn.Module) -> Iterator[tuple[Slot, nn.Module, str | None]]:
        """Every parameter with its layer and the group of the channels that the layer gives.

        A norm over images has its channels first; over the last dimensions, wherever they lie.
        """
        parts = dict(module.named_modules())
        for slot in self.layout.slots:
            axes, owner = self.axes.get(slot.name, ()), parts[slot.name.rpartition(".")[0]]
            groups = [axis.group for axis in axes if axis.group is not None]
            first = next(iter(axes), Axis(None)).group
            anywhere = groups[0] if groups else None
            yield slot, owner, anywhere if isinstance(owner, nn.LayerNorm) else first


def narrow(module: nn.Module, widths: Widths, rate: float) -> nn.Module:
    """A really smaller module: of every group the first ceil(rate*width) channels."""
    small = copy.deepcopy(module)
    index = widths.index(widths.first(rate))[0]
    vector, start = widths.layout.flatten(module)[index.to(next(module.parameters()).device)], 0
    kept = dict(zip(widths.names, widths.kept(rate), strict=True))
    for slot in widths.layout.slots:
        axes = widths.axes.get(slot.name) or (Axis(None),) * len(slot.shape)
        shape = [
            length if axis.group is None else kept[axis.group] * axis.repeat
            for axis, length in zip(axes, slot.shape, strict=True)
        ]
        owner, _, name = slot.name.rpartition(".")
        values = vector[start : start + prod(shape)].view(shape).clone()
        setattr(small.get_submodule(owner), name, nn.Parameter(values))
        start += prod(shape)
    for part in small.modules():
        _tell_size(part)
    return small


def _axis(name: str, group: Any) -> Axis:
    """What a declaration says about one dimension."""
    match group:
        case None | str():
            return Axis(group)
        case (str() as channels, int() as repeat) if repeat > 0:
            return Axis(channels, repeat)
    raise FedkinError(
        f"the widths of '{name}' say {group!r} of a dimension: give None, a name, or a pair of a "
        "name and how many entries each channel has"
    )


def _try_out(module: nn.Module, widths: Widths, example: Tensor) -> None:
    """Refuse widths by which the model does not work: its code may know sizes, too."""
    if not widths.sizes:
        return
    with torch.no_grad():
        whole = module(example)
        try:
            small = narrow(module, widths, 1 / max(widths.sizes))(example)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise FedkinError(
                f"the model cannot be cut: with fewer channels it fails ({reason}); take sizes in "
                "its forward from its inputs, and declare all its widths if you declare any"
            ) from None
    if small.shape != whole.shape:
        raise FedkinError(
            f"the model cannot be cut: with fewer channels its outputs have shape "
            f"{tuple(small.shape[1:])} instead of {tuple(whole.shape[1:])}; leave them whole"
        )


def _tell_size(part: Any) -> None:
    """Make a layer's own account of its size agree with its parameters."""
    if isinstance(part, nn.Linear):
        part.out_features, part.in_features = part.weight.shape
    elif isinstance(part, CONVOLUTIONS):
        out, inner = part.weight.shape[:2]
        depthwise = part.groups > 1
        part.groups = out if depthwise else 1
        part.out_channels, part.in_channels = out, out if depthwise else inner
    elif isinstance(part, nn.modules.batchnorm._NormBase) and part.weight is not None:
        part.num_features = len(part.weight)
        for name in ("running_mean", "running_var"):
            if getattr(part, name) is not None:
                setattr(part, name, getattr(part, name)[: part.num_features].clone())
    elif isinstance(part, nn.GroupNorm) and part.weight is not None:
        part.num_channels = len(part.weight)
        part.num_groups = max(
            g for g in range(1, part.num_groups + 1) if part.num_channels % g == 0
        )
    elif isinstance(part, nn.LayerNorm) and part.weight is not None:
        part.normalized_shape = tuple(part.weight.shape)
    elif isinstance(part, nn.PReLU):
        part.num_parameters = len(part.weight)
