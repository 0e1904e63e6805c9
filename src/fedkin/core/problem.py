"""A problem: an ordinary module, a loss, and every client's data."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedkin.core.kernels import Kernel, ModelSpec, UnsupportedLayerError, make_kernel
from fedkin.core.kernels.scaled import Scaled
from fedkin.core.kernels.statistics import has_batch_norm
from fedkin.core.losses import Loss, PerExample, get_loss
from fedkin.core.variants import (
    PLAIN,
    Part,
    Variant,
    classes_of_entries,
    own_classes_loss,
    with_own_classes,
)
from fedkin.data.clients import ClientData, Examples
from fedkin.errors import FedkinError
from fedkin.models.layout import Layout
from fedkin.models.widths import Widths, narrow


class Problem:
    """f_i(v) = mean loss of the model with parameters v over client i's training data.

    The model is any `torch.nn.Module` that works functionally; its trainable
    parameters become one flat vector (see `layout`), its present values the initial
    model. `l2` adds l2/2*|v|^2 to every f_i. Minibatches of `batch_size` are drawn with
    replacement, or, with `reshuffle`, in passes over the data in a fresh order each.
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
    ) -> None:
        refuse_hidden_state(module)
        if loss is None:
            loss = "squared-error" if data.num_classes is None else "cross-entropy"
        self.data, self.l2, self.dtype = data, l2, dtype
        self.batch_size, self.reshuffle = batch_size, reshuffle
        self.device = torch.device(device)
        module = copy.deepcopy(module).to(self.device, dtype)
        self.become(ModelSpec(module, Layout.of(module), get_loss(loss)))
        self.train = self._part(data.train)
        self.test = self._part(data.test)
        if data.validation is not None:
            self.validation = self._part(data.validation)
        self._check_outputs()

    def become(self, spec: ModelSpec) -> None:
        """Take on a model and a loss; the model's present values are the initial ones."""
        self.spec = spec
        self.scale: Tensor | None = None
        self.batch_norm = has_batch_norm(spec.module)
        self.initial = spec.layout.flatten(spec.module)[None]
        self._variants: dict[Variant, Problem] = {}
        for found in ("widths", "served"):
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
        """Another form of this problem; its data are shared, not copied."""
        varied, spec = copy.copy(self), self.spec
        if variant.rate != 1:
            module = narrow(spec.module, self.widths, variant.rate)
            spec = replace(spec, module=module, layout=Layout.of(module))
        if variant.own_classes:
            spec = replace(spec, loss=own_classes_loss(spec.loss, variant.own_classes))
            varied.train = with_own_classes(self.train, self.data.num_classes or 0)
        varied.become(spec)
        if variant.scaler and variant.rate != 1:
            scale = self.widths.scaler(self.spec.module, variant.rate)
            varied.scale = scale[None].to(varied.initial)
        return varied

    @cached_property
    def widths(self) -> Widths:
        """The hidden widths by which the model can be cut."""
        return Widths.of(self.spec.module, self.train.x[:2])

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

    @property
    def size(self) -> int:
        """How many parameters the model has."""
        return self.layout.size

    def kernel(self, name: str = "native") -> Kernel:
        """How gradients are computed; `native` falls back to vmap for modules it cannot read."""
        try:
            kernel = make_kernel(name, self.spec)
        except UnsupportedLayerError:
            kernel = make_kernel("vmap", self.spec)
        return kernel if self.scale is None else Scaled(kernel, self.scale)

    def has_native(self) -> bool:
        """Whether the module is a chain of layers with gradients written out."""
        try:
            make_kernel("native", self.spec)
        except UnsupportedLayerError:
            return False
        return True

    def module(self, vector: Tensor) -> nn.Module:
        """A module of its own with these parameters."""
        return self.layout.fill(copy.deepcopy(self.spec.module), vector)

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
            x.to(self.dtype) if x.is_floating_point() else x,
            # the classes of a binary loss are numbers of their own, and used as such
            y.to(self.dtype) if y.is_floating_point() or self.spec.loss.binary else y,
            examples.offsets[:-1],
            examples.sizes,
        )

    def _check_outputs(self) -> None:
        """Refuse at the door a model that does not fit the data."""
        # two examples, as batch norm takes
        example, target = self.train.x[:2], self.train.y[:2]
        shape = tuple(example.shape[1:])
        try:
            with torch.no_grad():
                output = self.spec.module(example)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise FedkinError(f"the model cannot take inputs of shape {shape}: {reason}") from None
        classes = self.data.num_classes
        if self.spec.loss.binary:
            if classes != 2 or output.shape[1:] != (1,):
                raise FedkinError(
                    f"loss '{self.spec.loss.name}' is for 2 classes and a model with 1 output, not "
                    f"for {classes} classes and outputs of shape {tuple(output.shape[1:])}"
                )
        elif self.spec.loss.classes and classes is not None:
            if output.dim() != 2 or output.shape[1] < classes:
                raise FedkinError(
                    f"the model gives outputs of shape {tuple(output.shape[1:])} but the labels "
                    f"have {classes} classes; its last layer needs {classes} outputs"
                )
        elif self.spec.loss.name == "squared-error" and output.numel() != target.numel():
            raise FedkinError(
                f"the model gives outputs of shape {tuple(output.shape[1:])} but the targets "
                f"have shape {tuple(target.shape[1:]) or '(one number)'}"
            )
        if not torch.isfinite(output).all():
            raise FedkinError("the initial model gives outputs that are not finite")


def refuse_hidden_state(module: nn.Module) -> None:
    """A model must be a function of its parameters and its input, and of nothing else."""
    for name, part in module.named_modules():
        if (
            getattr(part, "track_running_stats", False)
            and getattr(part, "running_mean", None) is not None
        ):
            raise FedkinError(
                f"layer '{name}' ({type(part).__name__}) keeps running statistics, which cannot be "
                "averaged between clients: use GroupNorm or LayerNorm, or batch norm with "
                "track_running_stats=False"
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            raise FedkinError(
                f"layer '{name}' ({type(part).__name__}) draws random numbers of its own, so runs "
                "could not be repeated: leave it out, or regularise with l2"
            )
