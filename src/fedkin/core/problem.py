"""A problem: an ordinary module, a loss, and every client's data."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.core import door
from fedkin.core.architectures import Architectures, OwnModel, fit
from fedkin.core.augment import Augment, OwnChange
from fedkin.core.kernels import (
    Kernel,
    ModelError,
    ModelSpec,
    UnsupportedLayerError,
    forms,
    make_kernel,
)
from fedkin.core.kernels.scaled import Scaled
from fedkin.core.kernels.statistics import Settler
from fedkin.core.losses import ClassWeights, Loss, PerExample, class_weights_of, get_loss, weighted
from fedkin.core.variants import (
    PLAIN,
    Part,
    Variant,
    classes_of_entries,
    hold_out,
    own_classes_loss,
    with_own_classes,
)
from fedkin.data.clients import ClientData, Examples
from fedkin.errors import FedkinError, unknown
from fedkin.models.layout import Layout
from fedkin.models.widths import Widths, narrow

NormName = Literal["shared", "local", "averaged"]


class Problem:
    """f_i(v) = mean loss of the model with parameters v over client i's training data.

    The model is any `torch.nn.Module` that is called with a batch of inputs; its trainable
    parameters become one flat vector (see `layout`), their present values the initial
    model. What is frozen stays as it is. `l2` adds l2/2*|v|^2 to every f_i. Minibatches of
    `batch_size` are drawn with replacement, or, with `reshuffle`, in passes over the data in a
    fresh order each; `augment` changes their inputs at random: `flip`, `crop:4` or a function
    of (examples, numbers).

    Batch norms go by the batch in training. Where a model is used they go, by `norm`, by the
    statistics of the client's own training data ("shared": weights and biases are shared),
    "local": with weights and biases that also stay at the client (FedBN), or by the mean of all
    clients' statistics ("averaged").

    With `class_weights`, one for each class, an example's loss is multiplied by that of its class;
    "balanced": by n / (classes * examples of the class), counted in the training data of all.

    `models` are modules of clients' own, by the clients' names: each a module, a class or function
    that makes one, or a name such as "mlp:64". `module` is then what all can carry.
    """

    def __init__(
        self,
        module: nn.Module,
        data: ClientData,
        loss: str | Loss | PerExample | None = None,
        l2: float = 0.0,
        batch_size: int = 20,
        reshuffle: bool = False,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        norm: NormName | None = None,
        augment: Sequence[str | OwnChange] = (),
        class_weights: ClassWeights | None = None,
        models: Mapping[str, OwnModel] | Architectures | None = None,
    ) -> None:
        if norm not in (None, *get_args(NormName)):
            raise unknown("norm", norm, get_args(NormName))
        if loss is None:
            loss = "squared-error" if data.num_classes is None else "cross-entropy"
        self.data, self.l2, self.dtype = data, l2, dtype
        self.batch_size, self.reshuffle = batch_size, reshuffle
        self.device = torch.device(device)
        self.norm: NormName = norm or "shared"
        module = door.own_copy(module).to(self.device, dtype)
        Layout.of(module)  # there must be something to train
        first = door.fitting(module, data.train.x[:2].to(self.device), dtype, data.train.here)
        self.input_dtype = first.dtype
        self._loss = get_loss(loss)
        if class_weights is not None:
            labels = data.train.y if data.train.here else None
            own = class_weights_of(class_weights, data.num_classes, labels)
            self._loss = weighted(self._loss, own)
        self.train = self._part(data.train)
        self.test = self._part(data.test)
        if data.validation is not None:
            self.validation = self._part(data.validation)
        own_fit = partial(
            fit, train=self.train, data=data, loss=self._loss, batch_size=batch_size,
            local=self.norm == "local",
        )  # fmt: skip
        common = own_fit(module)
        if not common.spec.statistics.slots and norm in ("local", "averaged"):
            raise FedkinError(
                f"norm = '{norm}' is about batch norms, and the model has none: leave norm out"
            )
        self.manners = common.manners
        self.become(common.spec)
        if isinstance(models, Mapping) and models:
            outputs = self.manners.output[0].numel()
            models = Architectures.of(models, data.names, data.input_shape, outputs)
        self.architectures = (
            models.fitted_by(lambda own: own_fit(door.own_copy(own).to(self.device, dtype)))
            if isinstance(models, Architectures)
            else None
        )
        if self.architectures is not None:  # so many are left where some are held out
            least = max(self.manners.least, self.architectures.least)
            self.manners = replace(self.manners, least=least)
        self.augment = Augment(augment) if augment else None
        if self.augment is not None and data.train.here:
            self.augment.check(self.train.x[:2])

    def become(self, spec: ModelSpec) -> None:
        """Take on a model and a loss; the model's present values are the initial ones."""
        self.spec = spec
        self.scale: Tensor | None = None
        self.initial = spec.layout.flatten(spec.module)[None]
        self.initial_home = spec.home.flatten(spec.module)[None].to(self.initial)
        self.settler = Settler(spec)
        self._variants: dict[Variant, Problem] = {}
        self._missing: dict[float, Tensor] = {}
        for found in ("widths", "served", "stacks"):
            self.__dict__.pop(found, None)

    def with_data(self, data: ClientData, device: str | torch.device) -> Problem:
        """The same model and loss with other clients' data, computed on this device."""
        other = copy.copy(self)
        other.data, other.device = data, torch.device(device)
        module = copy.deepcopy(self.spec.module).to(other.device)
        other.become(replace(self.spec, module=module))
        other.train, other.test = other._part(data.train), other._part(data.test)
        if data.validation is not None:
            other.validation = other._part(data.validation)
        return other

    def variant(self, variant: Variant) -> Problem:
        """This problem in another form, such as with a smaller model; each form is made once."""
        if variant == PLAIN:
            return self
        if variant not in self._variants:
            self._variants[variant] = self._varied(variant)
        return self._variants[variant]

    def _varied(self, variant: Variant) -> Problem:
        """Another form of this problem; its data are shared, not copied, but for their order."""
        if variant.module:
            return self._with_module(variant)
        varied, spec = copy.copy(self), self.spec
        if variant.rate != 1:
            module = narrow(spec.module, self.widths, variant.rate)
            spec = spec.with_module(module, Layout.of(module), forms.statistics_of(module))
            # initial weights are smaller the more inputs a layer has: as for so many
            start = spec.layout.flatten(module) * self.missing_inputs(variant.rate).sqrt()
            spec.layout.fill(module, start)
        if variant.own_classes:
            spec = replace(spec, loss=own_classes_loss(spec.loss, variant.own_classes))
            varied.train = with_own_classes(self.train, self.data.num_classes or 0)
        if variant.held_out:
            varied.train, varied.validation = hold_out(varied.train, self.manners.least)
        varied.become(spec)
        if variant.scaler and variant.rate != 1:
            scale = self.widths.scaler(self.spec.module, variant.rate)
            varied.scale = scale[None].to(varied.initial)
        return varied

    def _with_module(self, variant: Variant) -> Problem:
        """A form of this problem with a module that clients bring."""
        if self.architectures is None:
            raise FedkinError(f"no client brings a model '{variant.module}'")
        own = self.architectures[variant.module]
        other = copy.copy(self.variant(replace(variant, module="")))
        other.manners, other.architectures = own.manners, None
        module = copy.deepcopy(own.spec.module)
        other.become(replace(own.spec, module=module, loss=other.spec.loss))
        return other

    def missing_inputs(self, rate: float) -> Tensor:
        """By what weights on the inputs that a smaller model has left make up for the others."""
        if rate not in self._missing:
            factors = self.widths.missing_inputs(self.spec.module, rate)
            self._missing[rate] = factors.to(self.device, self.dtype)
        return self._missing[rate]

    @cached_property
    def widths(self) -> Widths:
        """The hidden widths by which the model can be cut."""
        if self.spec.home.slots:
            raise FedkinError(
                "clients that train parts of the model cannot keep norms of their own: choose "
                "norm = 'shared' or 'averaged'"
            )
        return Widths.of(forms.still(self.spec.module), self.train.x[:2])

    @cached_property
    def served(self) -> Tensor:
        """For every entry of the model the class it serves alone, from 1; 0: not one alone."""
        return classes_of_entries(self.spec.module, self.layout, self.data.num_classes).to(
            self.device
        )

    @property
    def layout(self) -> Layout:
        """Names, shapes and places of the parameters in the flat vector."""
        return self.spec.layout

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.train.sizes)

    def initial_of(self, who: Tensor) -> Tensor:
        """The model that these clients start from: one row for all, or a row each."""
        return self.initial

    def target_scale(self, who: Tensor) -> Tensor:
        """The mean and deviation by which these clients' targets were standardised: [B, 2]."""
        scale = self.data.preparation.target or (0.0, 1.0)
        return torch.tensor([scale], dtype=torch.float64, device=self.device).expand(len(who), 2)

    def initial_home_of(self, who: Tensor) -> Tensor:
        """As `initial_of`, of what stays at the clients."""
        return self.initial_home

    @property
    def size(self) -> int:
        """How many parameters the model has."""
        return self.layout.size

    def kernel(self, name: str = "native") -> Kernel:
        """How gradients are computed; `native` falls back to what works for the module."""
        if name == "native" and not self.has_native():
            name = "vmap" if self.stacks else "autograd"
        kernel = make_kernel(name, self.spec)
        return kernel if self.scale is None else Scaled(kernel, self.scale)

    def has_native(self) -> bool:
        """Whether the module is a chain of layers with gradients written out."""
        try:
            make_kernel("native", self.spec)
        except UnsupportedLayerError:
            return False
        return True

    @cached_property
    def stacks(self) -> bool:
        """Whether the module's gradients can be computed stacked, with the same numbers."""
        count = max(2, self.manners.least)
        x, y = (t[:count].expand(2, *t[:count].shape) for t in (self.train.x, self.train.y))
        v = torch.cat([self.initial, self.initial_home], 1).expand(2, -1)
        keys = np.arange(2, dtype=np.uint64) if self.spec.random else None
        try:
            stacked, alone = (
                make_kernel(name, self.spec).grad(v, x, y, None, keys)
                for name in ("vmap", "autograd")
            )
        except ModelError:
            return False
        scale = float(alone.abs().max())
        return torch.allclose(stacked, alone, rtol=1e-2, atol=1e-3 * scale, equal_nan=True)

    @property
    def complete(self) -> Layout:
        """All that makes a client's own module: its vector, what it keeps at home, statistics."""
        return self.spec.whole.followed_by(self.spec.statistics)

    def module(self, vector: Tensor) -> nn.Module:
        """A module of its own, ready for use, with these parameters (of `layout` or `complete`)."""
        module = copy.deepcopy(self.spec.module)
        if len(vector) == self.layout.size:
            return self.layout.fill(module, vector).eval()
        for part in forms.norms_in(module, self.spec.module):
            forms.track(part, vector)
        return self.complete.fill(module, vector).eval()

    @property
    def mixes(self) -> bool:
        """Whether examples of a batch meet in training, as with batch norm: rows must not."""
        return self.manners.mixes

    def pads(self, at: Tensor) -> bool:
        """Whether minibatches of these clients, side by side, need examples that do not count."""
        sizes = self.train.sizes[at]
        return self.reshuffle and bool((sizes % self.batch_size != 0).any())

    def part(self, name: str) -> Part:
        """train, validation or test."""
        part: Part = getattr(self, name)
        return part

    def _part(self, examples: Examples) -> Part:
        x = examples.x.to(self.device)
        y = examples.y.to(self.device)
        return Part(
            x.to(self.input_dtype),
            # the classes of a binary loss are numbers of their own, and used as such
            y.to(self.dtype) if y.is_floating_point() or self._loss.binary else y,
            examples.offsets[:-1],
            examples.sizes,
        )
