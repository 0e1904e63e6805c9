"""`fedkin.advise`: the question asked from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedkin.data import ClientData, DataConfig
from fedkin.data.config import SUFFIXES
from fedkin.errors import FedkinError
from fedkin.reports.advice_write import Advised
from fedkin.runs.advice import give_advice
from fedkin.runs.config import read_config
from fedkin.runs.progress import Progress, followers
from fedkin.runs.validation import validated


def advise(
    data: str | Path | DataConfig | ClientData,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    progress: bool | None = None,
    **keys: Any,
) -> Advised:
    """Should these sites collaborate, with whom, with what, at what cost, and how sure is that?

    `data` is a table (.csv, .parquet), an .npz file, a config.toml, the name of a data set, a
    `DataConfig`, or clients made by `fedkin.from_arrays`. `keys` are those of [data]:
    `client_column="hospital", target_column="disease"`.
    """
    source = data if isinstance(data, ClientData) else source_of(data, keys)
    if isinstance(data, ClientData) and keys:
        raise FedkinError(f"clients made in Python take no {next(iter(keys))}: leave it out")
    show = followers("advice", on_progress, progress)

    def tell(done: int, total: int) -> None:
        if show:
            show(Progress(done, total))

    return Advised(give_advice(source, on_progress=tell))


def source_of(data: str | Path | DataConfig, keys: dict[str, Any]) -> DataConfig:
    """The data that a name, a file or a config describes."""
    if isinstance(data, DataConfig):
        return data.model_copy(update=keys)
    text = str(data)
    if text.endswith(".toml"):
        known = read_config(Path(text)).data.model_dump()
        return validated(DataConfig, {**known, **keys}, text)
    if Path(text).suffix and Path(text).suffix.lower() not in SUFFIXES:
        raise FedkinError(
            f"'{text}' cannot be read: give a {', '.join(SUFFIXES)} file, a config.toml or the "
            "name of a data set"
        )
    return validated(DataConfig, {"name": text, **keys}, "advise")
