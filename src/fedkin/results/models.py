"""Each client's model as safetensors: a file per client, or one stacked file for many."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.layout import Layout
from fedkin.tensors import Chunked, open_tensors, write_tensors

if TYPE_CHECKING:
    from fedkin.federation import Federation
    from fedkin.methods import Method, State

# with more clients than this, one stacked file instead of a file per client
MANY = 200


def save_models(folder: Path, fed: Federation, method: Method, state: State) -> None:
    """Write every personal model, and the global one where there is one."""
    folder.mkdir(exist_ok=True)
    layout, names = fed.problem.layout, fed.problem.data.names
    facts = {"layout": json.dumps([[s.name, list(s.shape)] for s in layout.slots])}
    pieces = personal_models(fed, method, state)
    if fed.size > MANY:
        shape = (fed.size, layout.size)
        stacked = Chunked(shape, fed.problem.dtype, pieces)
        write_tensors(folder / "personal.safetensors", {"models": stacked}, facts)
    else:
        rows = torch.cat(list(pieces))
        for i in range(fed.size):
            named = {k: v[0] for k, v in layout.split(rows[i : i + 1]).items()}
            write_tensors(folder / file_name(i, names[i]), named, {"client": names[i]})
    model = method.global_model(state)
    if model is not None:
        named = {k: v[0] for k, v in layout.split(model[None]).items()}
        write_tensors(folder / "global.safetensors", named)


def personal_models(fed: Federation, method: Method, state: State) -> Iterator[Tensor]:
    """Personal models in the order of clients, some at a time."""
    ask = method.personal(fed, state)
    for positions in torch.arange(len(ask.at)).split(64):
        yield fed.look(ask.rows(positions))["model"]


def load_model(folder: Path, layout: Layout, client: int, name: str) -> Tensor:
    """One client's personal model as a vector [d]."""
    stacked = folder / "personal.safetensors"
    if stacked.exists():
        rows: Tensor = open_tensors(stacked).get_slice("models")[client : client + 1]
        return rows[0]
    path = folder / file_name(client, name)
    file = open_tensors(path)
    if set(file.keys()) != {slot.name for slot in layout.slots}:
        raise FedkinError(f"{path} holds another model than the run's config.toml describes")
    return layout.join({slot.name: file.get_tensor(slot.name)[None] for slot in layout.slots})[0]


def file_name(client: int, name: str) -> str:
    """A file name that tells the client's number and name."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80]
    return f"client-{client:04d}{'' if safe == str(client) else '-' + safe}.safetensors"
