"""What made a run: its complete config, versions of packages, and how it was started."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from fedkin.data import ClientData, DataConfig, checksum
from fedkin.runs.config import RunConfig
from fedkin.version import __version__

RUNS = Path("runs")  # default folder of runs
# in config.toml, for a run started from Python: its data and model are known only there
BY_PYTHON = "python"
BY_SERVE, RESUME_SERVED = "fedkin serve", "fedkin serve --resume"


def complete(config: RunConfig, data: ClientData, digest: str | None = None) -> str:
    """The config with nothing left to defaults, and what it was made with.

    `digest` is the data's checksum, where the examples themselves are elsewhere.
    """
    full = resolved_data(config.data)
    return config.model_copy(update={"data": full}).to_toml(
        {**versions(), "data_sha256": checksum(data) if digest is None else digest}
    )


def resolved_data(config: DataConfig) -> DataConfig:
    """The data's config with its defaults, and with paths that hold in any folder."""
    places = {
        key: str(Path(value).resolve())
        for key in ("path", "data_dir", "client_table")
        if (value := getattr(config, key)) and Path(value).exists()
    }
    return config.resolved().model_copy(update=places)


def versions() -> dict[str, str]:
    """Versions that may change the last digits of results."""
    python = platform.python_version()
    return {"fedkin": __version__, "torch": torch.__version__, "python": python}
