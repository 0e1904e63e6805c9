"""What a run trains side by side: the method, and local-only training to compare it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkin.core.federation import Federation, Requests
from fedkin.core.memory import Rows
from fedkin.core.tables import Table
from fedkin.engines import Choices, Choosing, Embedded
from fedkin.errors import FedkinError
from fedkin.methods import Local, Method, State, Submodel, SubmodelAlone
from fedkin.methods.base import MOVES
from fedkin.methods.registry import SIZES
from fedkin.runs.contents import Released
from fedkin.runs.validation import validated
from fedkin.tensors import Chunked

PRIVACY = "privacy released"  # beside the numbers of a method's state, which are Python names
NOT_OURS = "the checkpoint is not one of this run"


@dataclass
class Contender:
    """A method in a run, with its own memory, accounts and state: what a checkpoint contains."""

    method: Method
    fed: Federation
    state: State

    def step(self, number: int, last: bool = False, now: Method | None = None) -> None:
        """One round, and the final step after the last one.

        `now` is the method with this round's settings, if they change (a schedule).
        """
        self.fed.begin_round(number)
        (now or self.method).round(self.fed, self.state)
        if last:
            self.method.finish(self.fed, self.state)
        if self.fed.privacy is not None:
            self.fed.privacy.end_round()
        for name, value in vars(self.state).items():
            if isinstance(value, Tensor):  # as it is when read from a checkpoint
                setattr(self.state, name, value.contiguous())

    def models(self, number: int) -> Requests:
        """The request for every client's personal model after a round: always the same one."""
        self.fed.after_round(number)
        return self.method.personal(self.fed, self.state)

    def broken(self) -> list[str]:
        """Names of server state that is not finite."""
        return [
            name
            for name, value in vars(self.state).items()
            if isinstance(value, Tensor) and bool(torch.isnan(value).any())
        ]

    # keeping ---------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor | Chunked]:
        found: dict[str, Tensor | Chunked] = {"accounts": self.fed.accounts.table}
        for name, value in vars(self.state).items():
            if isinstance(value, Tensor):
                found[f"state.{name}"] = value
            elif isinstance(value, Table):
                found |= {f"table.{name}.{key}": rows for key, rows in value.state().items()}
        memory = self.fed.engine.memory.state()  # type: ignore[attr-defined]
        return found | {f"memory.{name}": value for name, value in memory.items()}

    def numbers(self) -> dict[str, Any]:
        found = {k: v for k, v in vars(self.state).items() if not isinstance(v, Tensor | Table)}
        return found | ({PRIVACY: self.fed.privacy.facts()} if self.fed.privacy else {})

    def restore(self, tensors: Mapping[str, Rows], numbers: Mapping[str, Any]) -> None:
        """The opposite of `tensors` and `numbers`; each tensor goes where `init` had put it."""
        self._check_stored(tensors, numbers)
        self.fed.accounts.table = tensors["accounts"][:]
        state: dict[str, Any] = dict(numbers)
        if self.fed.privacy is not None:
            self.fed.privacy.restore(state.pop(PRIVACY))
        for name, stored in under("state.", tensors).items():
            fresh = getattr(self.state, name, None)
            device = fresh.device if isinstance(fresh, Tensor) else self.fed.problem.device
            state[name] = stored[:].to(device)
        for name, table in vars(self.state).items():
            if isinstance(table, Table):
                table.restore(under(f"table.{name}.", tensors))
                state[name] = table
        self.state = State(**state)
        self.fed.engine.memory.restore(under("memory.", tensors))  # type: ignore[attr-defined]

    def _check_stored(self, tensors: Mapping[str, Rows], numbers: Mapping[str, Any]) -> None:
        """Refuse what is not a state of this method."""
        accounts = tensors.get("accounts")
        counted = self.fed.accounts.table
        if accounts is None or (tuple(accounts.shape), accounts.dtype) != (
            tuple(counted.shape), counted.dtype,
        ):  # fmt: skip
            raise FedkinError(f"{NOT_OURS}: it does not count the bytes of all clients")
        if self.fed.privacy is not None:
            validated(Released, numbers.get(PRIVACY), "the checkpoint's account of privacy")
        stored = under("state.", tensors)
        for name, fresh in vars(self.state).items():
            if isinstance(fresh, Tensor):
                own = stored.get(name)
                known = own is not None and own.dtype == fresh.dtype
                if not known or len(own.shape) != fresh.dim():  # type: ignore[union-attr]
                    raise FedkinError(f"{NOT_OURS}: '{name}' is missing or of another form")
            elif isinstance(fresh, Table):
                if not fresh.takes(under(f"table.{name}.", tensors)):
                    raise FedkinError(f"{NOT_OURS}: '{name}' is missing or of another form")
            elif name not in numbers or not _same_kind(numbers[name], fresh):
                raise FedkinError(f"{NOT_OURS}: '{name}' is missing or of another kind")


def _same_kind(stored: Any, fresh: Any) -> bool:
    if fresh is None or stored is None:
        return True
    if isinstance(fresh, float):
        return isinstance(stored, int | float)
    return isinstance(stored, list if isinstance(fresh, tuple) else type(fresh))


def check_server_memory(contender: Contender, budget: int | None) -> None:
    """Raise if the server's state per client does not fit in the memory limit."""
    rows = [
        value
        for value in vars(contender.state).values()
        if isinstance(value, Tensor) and value.dim() > 1 and len(value) == contender.fed.size
    ]
    held = sum(value.numel() * value.element_size() for value in rows)
    if budget is not None and held > budget:
        raise FedkinError(
            f"the server of this method keeps {held / 1e6:.3g} MB about its clients that cannot go "
            "to files: give more memory than that, or choose a method whose personal models stay "
            "with the clients"
        )


def local_like(method: Method, whole: bool = False) -> Local:
    """Local-only training with a method's steps, amount of work and sizes of models (or `whole`
    models)."""
    sized = isinstance(method, Submodel) and not whole
    shared = ("lr", "local_steps", "local_epochs", *MOVES, *(SIZES if sized else ()))
    same = {name: getattr(method, name) for name in shared if hasattr(method, name)}
    return SubmodelAlone(**same) if sized else Local(**same)


def choices_of(contenders: Mapping[str, Contender]) -> dict[str, list[dict[str, Any]]]:
    """The strategies that engines have chosen so far, for each contender."""
    engines = {name: contender.fed.engine for name, contender in contenders.items()}
    return {name: e.choices() for name, e in engines.items() if isinstance(e, Choosing)}


def go_on_with(contenders: Mapping[str, Contender], choices: Mapping[str, Choices]) -> None:
    """Use the strategies of a saved run."""
    for name, made in choices.items():
        if name not in contenders:
            raise FedkinError(f"{NOT_OURS}: it has choices of '{name[:60]}'")
        engine = contenders[name].fed.engine
        # a run may go on in another engine: then that one chooses for itself
        elsewhere = isinstance(engine, Embedded) and any("shard" in choice for choice in made)
        if isinstance(engine, Choosing) and not elsewhere:
            engine.go_on_with(made)


def save_contenders(
    contenders: Mapping[str, Contender],
) -> tuple[dict[str, Tensor | Chunked], dict[str, Any]]:
    """All contenders' tensors and numbers, each under its contender's name."""
    tensors: dict[str, Tensor | Chunked] = {}
    for name, contender in contenders.items():
        tensors |= {f"{name}.{key}": value for key, value in contender.tensors().items()}
    return tensors, {name: contender.numbers() for name, contender in contenders.items()}


def restore_contenders(
    contenders: Mapping[str, Contender], tensors: Mapping[str, Rows], numbers: Mapping[str, Any]
) -> list[Contender]:
    """The opposite of the function above; returns rivals of the method that were not saved."""
    behind = []
    for name, contender in contenders.items():
        if name != "method" and name not in numbers:
            behind.append(contender)
        else:
            contender.restore(under(f"{name}.", tensors), numbers.get(name, {}))
    return behind


def under(prefix: str, tensors: Mapping[str, Rows]) -> dict[str, Rows]:
    """Tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
