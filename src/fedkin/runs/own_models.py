"""Models of clients' own architecture: by a column of the client table, and in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from fedkin.core.architectures import Architectures
from fedkin.core.own_models import own_sizes
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData
from fedkin.data.config import DataConfig
from fedkin.data.facts import read_client_table
from fedkin.errors import FedkinError, unknown
from fedkin.methods import Method
from fedkin.methods.registry import with_models
from fedkin.runs.plugins import is_file, short_name
from fedkin.runs.reading import read_table
from fedkin.runs.settings import Settings
from fedkin.runs.user_code import make_model
from fedkin.tensors import write_text

TABLE = "models.csv"
COMMON = "common"  # in tables, the model that clients have who bring none
WORDS = ("client", "model")


def brings_models(model: Any) -> bool:
    """Whether the table [model] of a config gives clients models of their own."""
    return isinstance(model, Mapping) and bool(
        model.get("model_column") or model.get("client_models")
    )


def with_client_models(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose `client_models` say what the column of its client table says.

    A file is looked for beside the table. Clients without an entry have the common model.
    """
    model, data = values.get("model"), values.get("data")
    if not isinstance(model, Mapping) or not model.get("model_column"):
        return dict(values)
    if model.get("client_models"):  # a complete config, as a run writes it
        return dict(values)
    column = str(model["model_column"])
    path = data.get("client_table") if isinstance(data, Mapping) else None
    if not isinstance(path, str):
        raise FedkinError(
            f"model_column = '{column}' names a column of the client table: give one as "
            "client_table"
        )
    table = read_client_table(DataConfig.model_validate(data))
    if column not in table:
        raise unknown("client column", column, [str(name) for name in table.columns])
    entries = {client: str(name).strip() for client, name in table[column].dropna().items()}
    place = Path(path).expanduser().resolve().parent
    own = {str(c): str(place / n) if is_file(n) else n for c, n in entries.items() if n}
    if not own:
        raise FedkinError(f"client column '{column}' names no model: leave model_column out")
    return {**values, "model": {**model, "client_models": own}}


def make_architectures(
    names: Mapping[str, str], clients: tuple[str, ...], shape: tuple[int, ...], outputs: int,
    seed: int,
) -> Architectures:  # fmt: skip
    """Modules by name for the clients there are; a table may know of more."""
    modules: dict[str, nn.Module] = {}
    for client in clients:
        name = names.get(client, "")
        if name and name not in modules:
            modules[name] = make_model(name, shape, outputs, seed, {})
    by_client = {c: modules[names[c]] for c in clients if c in names}
    found = Architectures.of(by_client, clients, shape, outputs)
    return Architectures(modules, found.kinds)


def client_architectures(
    names: Mapping[str, str], from_table: bool, data: ClientData, outputs: int, seed: int
) -> Architectures | None:
    """The modules that a config gives clients, if it gives any."""
    stray = next((client for client in names if client not in data.names), None)
    if stray is not None and not from_table:
        raise unknown("client in client_models", stray, data.names)
    if not any(client in names for client in data.names):
        return None
    return make_architectures(names, data.names, data.input_shape, outputs, seed)


def check_models(problem: Problem, method: Method, settings: Settings, elsewhere: bool) -> None:
    """Refuse what models of clients' own do not go with."""
    if problem.architectures is None:
        return
    if not method.takes_models:
        form = with_models(method.name)  # says so where there is no such form
        raise FedkinError(
            f"clients bring models of their own, which '{method.name}' does not take: use '{form}'"
        )
    if elsewhere or settings.engine != "embedded":
        raise FedkinError(
            "models of clients' own need all clients in this process: use the engine embedded"
        )
    if problem.data.newcomers is not None:
        raise FedkinError(
            "clients that are kept out bring no models that are known: leave unseen or the "
            "clients' own models out"
        )


# in the run folder ------------------------------------------------------------------------


def keep_models(folder: Path, problem: Problem) -> None:
    """Write models.csv at a run's start: every client's model and its size."""
    brought = problem.architectures
    if brought is None:
        return
    table = pd.DataFrame(
        {
            "client": list(problem.data.names),
            "model": [short_name(name) or COMMON for name in brought.names],
            "parameters": own_sizes(problem).tolist(),
        }
    )
    if not (folder / TABLE).exists():
        write_text(folder / TABLE, table.to_csv(index=False))
    elif not read_models(folder).astype(str).equals(table.astype(str)):
        raise FedkinError(
            f"clients have other models than {folder / TABLE} says: give them those that the run "
            "began with"
        )


def read_models(folder: Path) -> pd.DataFrame:
    """models.csv of a run folder: client, model, parameters; empty if all have the same model."""
    table = read_table(folder / TABLE, (*WORDS, "parameters"), words=WORDS)
    if len(table) and not (table["parameters"] > 0).all():
        raise FedkinError(f"{folder / TABLE} is damaged: models have at least one parameter")
    return table


def scores_by_model(folder: Path, metric: str) -> pd.DataFrame:
    """A row per model of a finished run: its clients, its size, their mean score and that alone."""
    models, path = read_models(folder), folder / "clients.csv"
    if models.empty:
        return models
    clients = read_table(path, ("client", "round", f"personal_{metric}"))
    last = clients[clients["round"] == clients["round"].max()]
    table = models.merge(last, on="client")
    if len(table) != len(models):
        raise FedkinError(f"{path} is damaged: it needs a row for each client of {TABLE}")
    alone = table.get(f"local_{metric}", pd.Series(float("nan"), table.index))
    table = table.assign(score=table[f"personal_{metric}"], alone=alone)
    groups = table.groupby("model", sort=False)
    found = groups[["parameters", "score", "alone"]].mean().assign(clients=groups.size())
    return found.sort_values("parameters", ascending=False).reset_index()
