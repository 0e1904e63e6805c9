"""Each client's model as safetensors: a file per client, or one stacked file for many."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedkin.core.federation import Federation, Request, parts
from fedkin.core.memory import CHUNK_BYTES
from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.errors import FedkinError
from fedkin.methods import Method, State
from fedkin.models.layout import Layout
from fedkin.tensors import Chunked, open_tensors, read_facts, write_tensors

# with more clients than this, one stacked file instead of a file per client
MANY = 200


def save_models(folder: Path, fed: Federation, method: Method, state: State) -> None:
    """Write every personal model, and the global one where there is one.

    The folder appears only when it is complete.
    """
    work = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    names = fed.problem.data.names
    for request in parts(method.personal(fed, state)):
        layout = fed.problem.variant(request.variant).layout
        facts = {"layout": json.dumps([[s.name, list(s.shape)] for s in layout.slots])}
        if fed.size > MANY:
            rows = Chunked(
                (len(request.at), layout.size), fed.problem.dtype, models_of(fed, request)
            )
            path = work / stacked_name(request.variant.rate)
            write_tensors(path, {"clients": request.at, "models": rows}, facts)
            continue
        models = (model for rows in models_of(fed, request) for model in rows)
        for client, model in zip(request.at.tolist(), models, strict=True):
            about = {"client": names[client], "rate": str(request.variant.rate)}
            write_tensors(work / file_name(client, names[client]), named(layout, model), about)
    shared = method.global_model(state)
    if shared is not None:
        write_tensors(work / "global.safetensors", named(fed.problem.layout, shared))
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)


def models_of(fed: Federation, request: Request) -> Iterator[Tensor]:
    """The models that a request returns, some rows at a time."""
    row_bytes = fed.problem.size * fed.problem.dtype.itemsize
    for positions in torch.arange(len(request.at)).split(max(1, CHUNK_BYTES // row_bytes)):
        found = fed.look(request.rows(positions))
        if not bool(found.arrived.all()):
            lost = found.at[~found.arrived]
            name = fed.problem.data.names[int(lost[0])]
            raise FedkinError(
                f"the models of {len(lost)} clients (first: '{name}') cannot be had: their shard "
                "is lost; `fedkin resume` goes on when it is there again"
            )
        yield found["model"]


def named(layout: Layout, vector: Tensor) -> dict[str, Tensor]:
    """A model's parameters by name."""
    return {name: value[0] for name, value in layout.split(vector[None]).items()}


def load_model(folder: Path, problem: Problem, client: int, name: str) -> tuple[Problem, Tensor]:
    """One client's personal model as a vector, and the form of the problem it is a model of."""
    for path in sorted(folder.glob("personal-rate*.safetensors")):
        stacked = open_tensors(path)
        if set(stacked) != {"clients", "models"}:
            raise FedkinError(f"{path} does not contain clients' models")
        place = (stacked["clients"][:] == client).nonzero().flatten().tolist()
        if place:
            small = _variant(problem, path, path.stem.removeprefix("personal-rate"))
            _same(path, stacked["models"].shape[1:], (small.size,))
            return small, stacked["models"][place[0] : place[0] + 1][0]
    path = folder / file_name(client, name)
    small = _variant(problem, path, read_facts(path).get("rate", ""))
    slots, file = small.layout.slots, open_tensors(path)
    _same(path, {k: v.shape for k, v in file.items()}, {slot.name: slot.shape for slot in slots})
    return small, small.layout.join({slot.name: file[slot.name][:][None] for slot in slots})[0]


def _variant(problem: Problem, path: Path, rate: str) -> Problem:
    try:
        return problem.variant(Variant(float(rate)))
    except ValueError:
        raise FedkinError(f"{path} is not a client's model: its rate is missing") from None


def _same(path: Path, found: object, expected: object) -> None:
    if found != expected:
        raise FedkinError(f"{path} contains another model than the run's config.toml describes")


def stacked_name(rate: float) -> str:
    """The file of all models of one size."""
    return f"personal-rate{rate!r}.safetensors"


def file_name(client: int, name: str) -> str:
    """A file name with the client's number and name."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80]
    return f"client-{client:04d}{'' if safe == str(client) else '-' + safe}.safetensors"
