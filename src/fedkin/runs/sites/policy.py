"""A site's own limits: what it lets a server ask of its data, whatever the server says.

`site.toml`, or options of `fedkin join`. They are checked at the site before its file is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from fedkin.engines.flower.text import shown
from fedkin.errors import FedkinError
from fedkin.models import MODELS, build
from fedkin.runs.validation import validated
from fedkin.toml import read_toml, to_toml

TABLES = (".csv", ".parquet")
PER_ROUND = 100


class PolicyError(FedkinError):
    """A request outside what a site allows or agreed to: it ends the run at that site."""


class SitePolicy(BaseModel):
    """What a site allows. Every limit has a default; a table's columns must be named."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    columns: list[str] | None = Field(
        None, description="columns that may be inputs of models (none: those agreed to when asked)"
    )
    target: str | None = Field(None, description="the column that may be predicted")
    methods: list[str] = Field([], description="methods that may be used (none: any installed one)")
    least_batch: int = Field(8, ge=1, description="fewest samples in a minibatch")
    least_rows: int = Field(8, ge=1, description="fewest rows that an answer may rest on")
    most_rounds: int = Field(10_000, ge=1, description="most rounds of a run")
    most_requests: int | None = Field(
        None, ge=1, description=f"most requests of a run (none: {PER_ROUND} for every round)"
    )
    most_steps: int = Field(10_000, ge=1, description="most local steps or passes in a request")
    most_parameters: int = Field(50_000_000, ge=1, description="most parameters of a model")
    most_resampled: int = Field(
        8, ge=0, description="most evaluations with resampled test rows (for intervals) in a run"
    )
    most_runs: int = Field(100, ge=1, description="most runs that this site takes part in")

    @classmethod
    def read(cls, path: Path) -> SitePolicy:
        return validated(cls, read_toml(path), str(path))

    def requests(self, rounds: int) -> int:
        """How many requests a run of so many rounds may make."""
        return PER_ROUND * (rounds + 1) if self.most_requests is None else self.most_requests

    def to_toml(self) -> str:
        return to_toml(self.model_dump(exclude_none=True))

    def check_setup(self, setup: Mapping[str, Any], data: Path) -> None:
        """Refuse a run that is outside the limits; nothing of the data is read for this.

        `setup` is what the server announced, already checked to be of the right types.
        """
        if self.methods and setup["method"] not in self.methods:
            raise PolicyError(
                f"it uses the method '{setup['method']}', and this site allows "
                f"{', '.join(self.methods)}"
            )
        if data.suffix.lower() in TABLES:
            self._check_columns(setup)
        batch, rows = setup["model"]["batch_size"], setup["data"].get("train_per_client")
        if batch < self.least_batch:
            raise PolicyError(
                f"its minibatches have {batch} samples, and this site's least_batch is "
                f"{self.least_batch}"
            )
        if rows is not None and rows < self.least_rows:
            raise PolicyError(
                f"it trains on {rows} rows, and this site's least_rows is {self.least_rows}"
            )
        if setup["rounds"] > self.most_rounds:
            raise PolicyError(
                f"it has {setup['rounds']} rounds, and this site allows {self.most_rounds}"
            )

    def _check_columns(self, setup: Mapping[str, Any]) -> None:
        features = setup["sites"].get("features", [])
        target = setup["data"].get("target_column") or "target"
        if self.columns is not None:
            strange = [name for name in features if name not in self.columns]
            if strange:
                raise PolicyError(
                    f"it uses the column '{shown(strange[0], 80)}', and this site allows "
                    f"{', '.join(self.columns)}"
                )
        if self.target is not None and target != self.target:
            raise PolicyError(
                f"it predicts '{shown(target, 80)}', and this site allows '{self.target}'"
            )
        if target in features:
            raise PolicyError(f"it uses '{shown(target, 80)}' as an input and as the target")

    def check_parts(self, sizes: dict[str, int | None]) -> None:
        """Refuse a division of this site's rows whose parts are too small to hide a row in."""
        for part, rows in sizes.items():
            if rows is not None and 0 < rows < self.least_rows:
                raise PolicyError(
                    f"its {part} part would have {rows} of this site's rows, and this site's "
                    f"least_rows is {self.least_rows}: another test_fraction, or a lower least_rows"
                )

    def check_model(self, name: str, shape: tuple[int, ...], outputs: int) -> None:
        """Refuse a model that is too large, before it is made."""
        if name.partition(":")[0] not in MODELS:
            return  # from a package that this site's people have installed
        with torch.device("meta"):
            size = sum(p.numel() for p in build(name, shape, outputs).parameters())
        self.check_size(size)

    def check_size(self, parameters: int) -> None:
        if parameters > self.most_parameters:
            raise PolicyError(
                f"its model has {parameters} parameters, and this site allows "
                f"{self.most_parameters}"
            )
