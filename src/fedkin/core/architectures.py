"""Modules of clients' own: who brings which, beside the one that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.core import door
from fedkin.core.kernels import ModelSpec, forms
from fedkin.core.losses import Loss
from fedkin.core.variants import Part
from fedkin.data.clients import ClientData
from fedkin.errors import FedkinError, unknown
from fedkin.models import build
from fedkin.models.layout import Layout
from fedkin.models.own import make

# a module, what makes one, or the name of one
OwnModel = nn.Module | Callable[..., nn.Module] | str


@dataclass(frozen=True)
class Fitted:
    """A module as a problem takes it, and what it does."""

    spec: ModelSpec
    manners: door.Manners


def fit(
    module: nn.Module, train: Part, data: ClientData, loss: Loss, batch_size: int, local: bool
) -> Fitted:
    """What kernels are told of a module, which is refused if it does not fit the data.

    `local`: weights and biases of its norms stay at the clients.
    """
    layout, home, manners = Layout.of(module), Layout(()), door.manners(module, train.x)
    door.check_outputs(manners.output, train.y[:2], loss, data.num_classes)
    door.check_batches(manners.least, batch_size, data)
    if local:
        own = {f"{name}.{part}".lstrip(".") for name in forms.norms(module)
               for part in ("weight", "bias")}  # fmt: skip
        layout, home = layout.parted(own)
        if not layout.slots:
            raise FedkinError(
                "norm = 'local' keeps all of the model's parameters at the clients, so there is "
                "nothing to share: choose norm = 'shared'"
            )
    statistics = forms.statistics_of(module)
    return Fitted(ModelSpec(module, layout, loss, home, statistics, manners.random), manners)


@dataclass(frozen=True)
class Architectures:
    """The different modules that clients bring, by name, and who brings which.

    `kinds` [N] is 0 for clients with the problem's own module, k for those with the k-th here;
    `fitted` has the modules as a problem takes them.
    """

    modules: dict[str, nn.Module]
    kinds: Tensor
    fitted: dict[str, Fitted] = field(default_factory=dict)

    @classmethod
    def of(
        cls, models: Mapping[str, OwnModel], clients: Sequence[str], shape: tuple[int, ...],
        outputs: int,
    ) -> Architectures:  # fmt: skip
        """Clients that are given the same module, class or name have the same architecture."""
        for client in models:
            if client not in clients:
                raise unknown("client in models", client, clients)
        modules, kinds = dict[str, nn.Module](), dict[str | int, int]()
        for model in models.values():
            if _key(model) not in kinds:
                kinds[_key(model)] = len(modules) + 1
                name = _free_name(model, modules)
                modules[name] = _made(model, name, shape, outputs)
        of = [kinds[_key(models[c])] if c in models else 0 for c in clients]
        return cls(modules, torch.tensor(of))

    def fitted_by(self, fit: Callable[[nn.Module], Fitted]) -> Architectures:
        """The same with its modules as a problem takes them."""
        found = {}
        for name, module in self.modules.items():
            try:
                found[name] = fit(module)
            except FedkinError as error:
                raise FedkinError(f"model '{name}' of some clients: {error}") from None
        return replace(self, fitted=found)

    def __getitem__(self, name: str) -> Fitted:
        if name not in self.fitted:
            raise unknown("model of clients' own", name, self.fitted)
        return self.fitted[name]

    @property
    def names(self) -> list[str]:
        """The name of every client's module; "" for the problem's own."""
        known = ["", *self.modules]
        return [known[kind] for kind in self.kinds.tolist()]

    @property
    def least(self) -> int:
        """The smallest batch that all of them can be trained on."""
        return max((own.manners.least for own in self.fitted.values()), default=1)


def _key(model: OwnModel) -> str | int:
    return model if isinstance(model, str) else id(model)


def _free_name(model: OwnModel, taken: Mapping[str, Any]) -> str:
    """The name that it is given by, or that of its class; numbered where several have it."""
    if isinstance(model, str):
        return model
    own = type(model) if isinstance(model, nn.Module) else model
    name = first = str(getattr(own, "__name__", "model"))
    number = 2
    while name in taken:
        name, number = f"{first}-{number}", number + 1
    return name


def _made(model: OwnModel, name: str, shape: tuple[int, ...], outputs: int) -> nn.Module:
    if isinstance(model, str):
        return build(model, shape, outputs)
    return model if isinstance(model, nn.Module) else make(model, name, shape, outputs, 0, {})
