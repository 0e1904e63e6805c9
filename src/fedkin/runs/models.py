"""Each client's model as safetensors: a file per client, or one stacked file for many."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from math import prod
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
from fedkin.runs import contents
from fedkin.runs.norms import completed, completed_global
from fedkin.runs.reading import from_json
from fedkin.tensors import Chunked, Stored, open_tensors, read_facts, write_tensors

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
        layout, request = fed.problem.variant(request.variant).complete, completed(fed, request)
        own, module = {"rate": str(request.variant.rate)}, request.variant.module
        own |= {"model": module} if module else {}
        if fed.size > MANY:
            rows = Chunked(
                (len(request.at), layout.size), fed.problem.dtype, models_of(fed, request)
            )
            slots = json.dumps([[s.name, list(s.shape)] for s in layout.slots])
            path = work / stacked_name(fed.problem, request.variant)
            write_tensors(path, {"clients": request.at, "models": rows}, {"layout": slots, **own})
            continue
        models = (model for rows in models_of(fed, request) for model in rows)
        for client, model in zip(request.at.tolist(), models, strict=True):
            about = {"client": names[client], **own}
            write_tensors(work / file_name(client, names[client]), named(layout, model), about)
    shared = method.global_model(state)
    if shared is not None:
        write_tensors(work / "global.safetensors", named_global(fed, shared))
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)


def models_of(fed: Federation, request: Request) -> Iterator[Tensor]:
    """The models that a request returns, some rows at a time."""
    form = fed.problem.variant(request.variant)
    row_bytes = form.complete.size * form.dtype.itemsize
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


def named_global(fed: Federation, model: Tensor) -> dict[str, Tensor]:
    """The one model for all, as a file keeps it."""
    return named(fed.problem.complete, completed_global(fed, model))


def named(layout: Layout, vector: Tensor) -> dict[str, Tensor]:
    """A model's parameters, and its norms' statistics, by name."""
    return {name: value[0] for name, value in layout.split(vector[None]).items()}


def load_model(folder: Path, problem: Problem, client: int, name: str) -> tuple[Problem, Tensor]:
    """One client's personal model as a vector, and the form of the problem it is a model of."""
    for path in sorted(folder.glob("personal-*.safetensors")):
        stacked = _open_stacked(path)
        place = (stacked["clients"][:] == client).nonzero().flatten().tolist()
        if place:
            facts = {"rate": path.stem.removeprefix("personal-rate"), **read_facts(path)}
            small = _variant(problem, path, facts)  # files of older runs tell the rate by name
            layout = from_json(facts.get("layout", "[]"), contents.LAYOUT, str(path))
            sizes = [prod(shape) for _, shape in layout]
            if sum(sizes) != stacked["models"].shape[1]:
                raise FedkinError(f"{path} is damaged: its layout is not that of its models")
            row = stacked["models"][place[0] : place[0] + 1].split(sizes, 1)
            named_ = {
                name: own.view(1, *shape) for (name, shape), own in zip(layout, row, strict=True)
            }
            return small, _vector(path, small, named_)
    path = folder / file_name(client, name)
    return read_model(path, problem, read_facts(path))


def _open_stacked(path: Path) -> dict[str, Stored]:
    """All models of one size and whose they are, checked to belong together."""
    stacked = open_tensors(path)
    if set(stacked) != {"clients", "models"}:
        raise FedkinError(f"{path} does not contain clients' models")
    clients, models = stacked["clients"], stacked["models"]
    whole = clients.dtype == torch.int64 and len(clients.shape) == 1 and len(models.shape) == 2
    if not whole or clients.shape[0] != models.shape[0]:
        raise FedkinError(f"{path} is damaged: it needs one model for each of its clients")
    return stacked


def read_model(path: Path, problem: Problem, facts: Mapping[str, str]) -> tuple[Problem, Tensor]:
    """The model in a file of its own, by the facts that the file tells of it."""
    small = _variant(problem, path, facts)
    return small, _vector(path, small, {k: v[:][None] for k, v in open_tensors(path).items()})


def _vector(path: Path, problem: Problem, named: dict[str, Tensor]) -> Tensor:
    """A file's named values as a vector; files of older runs have no statistics of norms."""
    found = {name: tuple(value.shape[1:]) for name, value in named.items()}
    for layout in (problem.complete, problem.spec.whole):
        if found == {slot.name: slot.shape for slot in layout.slots}:
            wrong = next((n for n, v in named.items() if not _usable(v, problem.dtype)), None)
            if wrong is not None:
                raise FedkinError(
                    f"{path} is damaged: '{wrong}' needs finite numbers of type {problem.dtype}"
                )
            return layout.join(named)[0]
    raise FedkinError(f"{path} contains another model than the run's config.toml describes")


def _usable(values: Tensor, dtype: torch.dtype) -> bool:
    return values.dtype == dtype and bool(torch.isfinite(values).all())


def _variant(problem: Problem, path: Path, facts: Mapping[str, str]) -> Problem:
    rate, module = facts.get("rate", ""), facts.get("model", "")
    try:
        share = float(rate)
        if not 0 < share <= 1:
            raise FedkinError(f"{path} is not a client's model: its rate is {rate[:60]}")
        known = problem.architectures.modules if problem.architectures else {}
        if module and module not in known:
            raise FedkinError(
                f"{path} is a model '{module[:100]}' of its client's own, which the run's config "
                "does not name"
            )
        return problem.variant(Variant(share, module=module))
    except ValueError:
        raise FedkinError(f"{path} is not a client's model: its rate is missing") from None


def stacked_name(problem: Problem, variant: Variant) -> str:
    """The file of all models of one size, or of one architecture."""
    if variant.module and problem.architectures:
        kind = list(problem.architectures.modules).index(variant.module) + 1
        return f"personal-model{kind}.safetensors"
    return f"personal-rate{variant.rate!r}.safetensors"


def file_name(client: int, name: str) -> str:
    """A file name with the client's number and name."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80]
    return f"client-{client:04d}{'' if safe == str(client) else '-' + safe}.safetensors"
