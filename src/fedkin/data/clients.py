"""Every client's examples, held contiguously: the one shape in which data reach a Problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedkin.data.preparation import Preparation
from fedkin.errors import FedkinError


@dataclass(frozen=True)
class Examples:
    """All clients' examples one after the other; client i owns rows offsets[i]:offsets[i+1]."""

    x: Tensor
    y: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, parts: Sequence[tuple[Any, Any]]) -> Examples:
        """Join one (x, y) pair of arrays per client."""
        xs = [torch.as_tensor(x) for x, _ in parts]
        ys = [torch.as_tensor(y) for _, y in parts]
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            if len(x) != len(y):
                raise FedkinError(f"client {i} has {len(x)} inputs but {len(y)} targets")
        sizes = torch.tensor([0] + [len(y) for y in ys])
        return cls(torch.cat(xs), torch.cat(ys), sizes.cumsum(0))

    @classmethod
    def elsewhere(cls, sizes: Tensor, x: Tensor, y: Tensor) -> Examples:
        """Examples that are not here but at the clients: how many each has, and blanks
        x [2, ...], y [2, ...] that show what one looks like."""
        return cls(x, y, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))

    @property
    def here(self) -> bool:
        """Whether the examples themselves are known, and not only how many there are."""
        return len(self.y) == int(self.offsets[-1])

    @property
    def sizes(self) -> Tensor:
        """How many examples each client has."""
        return self.offsets.diff()

    def only(self, clients: Sequence[int]) -> Examples:
        """The examples of some clients."""
        return Examples.of([self[i] for i in clients])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> tuple[Tensor, Tensor]:
        rows = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        return self.x[rows], self.y[rows]


@dataclass(frozen=True)
class Truth:
    """The linear models that a generator drew labels from: beta* [M, d] of the clients, and w* [d]
    that these lie around, where there is one."""

    betas: Tensor
    w: Tensor | None = None


@dataclass(frozen=True)
class ClientData:
    """Clients with their training, validation (possibly empty) and test examples.

    `num_classes` is None for regression. `groups` holds the planted group of every
    client where the generator knows it; `columns` other facts per client (a device's
    capacity, a site's region); `notes` what was noticed while reading, for the user;
    `global_test` the whole official test set where there is one, for judging one global model;
    `preparation` how raw samples became these inputs, for doing the same with new ones;
    `truth` the models that a generator drew from, for judging how near training comes to them;
    `counts` the training samples of every client and class, where the samples are elsewhere;
    `newcomers` clients that were kept out, to come when training is over.
    """

    train: Examples
    test: Examples
    num_classes: int | None
    validation: Examples | None = None
    names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    groups: Tensor | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    global_test: tuple[Tensor, Tensor] | None = None
    preparation: Preparation = field(default_factory=Preparation)
    truth: Truth | None = None
    counts: Tensor | None = None
    newcomers: ClientData | None = None

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(str(i) for i in range(len(self.train))))
        if len(self.train) == 0:
            raise FedkinError("there are no clients: give at least one client's data")
        if not len(self.train) == len(self.test) == len(self.names):
            raise FedkinError(
                f"{len(self.train)} clients have training data, {len(self.test)} test data "
                f"and {len(self.names)} names; these numbers must be equal"
            )
        empty = [
            n for n, size in zip(self.names, self.train.sizes.tolist(), strict=True) if not size
        ]
        if empty:
            raise FedkinError(
                f"client '{empty[0]}' has no training data"
                + (f" (and {len(empty) - 1} more)" if len(empty) > 1 else "")
                + "; remove it or give it data"
            )

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    def only(self, clients: Sequence[int]) -> ClientData:
        """Some of the clients, by their places; what belongs to all of them stays."""
        at = list(clients)
        return replace(
            self,
            train=self.train.only(at),
            test=self.test.only(at),
            validation=None if self.validation is None else self.validation.only(at),
            names=tuple(self.names[i] for i in at),
            groups=None if self.groups is None else self.groups[at],
            columns={key: [values[i] for i in at] for key, values in self.columns.items()},
            counts=None if self.counts is None else self.counts[at],
            truth=None if self.truth is None else replace(self.truth, betas=self.truth.betas[at]),
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])
