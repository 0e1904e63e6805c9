"""A run folder opened again: its tables, and its models as plain modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from fedkin.core.architectures import Architectures, OwnModel
from fedkin.core.losses import LOSSES
from fedkin.core.problem import NormName, Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.errors import FedkinError
from fedkin.models import MODELS, build
from fedkin.runs.display import Shown
from fedkin.runs.groups import FOLDS, Records
from fedkin.runs.inputs import INPUTS, Inputs
from fedkin.runs.models import load_model, read_model
from fedkin.runs.own_models import make_architectures, read_models
from fedkin.runs.plugins import is_file, refuse_brought, with_files
from fedkin.runs.run import PersonalModels, last_score
from fedkin.runs.sections import ModelConfig
from fedkin.runs.user_code import make_model
from fedkin.runs.validation import validated
from fedkin.runs.who import TABLE, read_mixing
from fedkin.tensors import read_facts

LEAST_SHARE = 1000


class StoredRun(Shown, Records):
    """A run read from its folder: `metrics`, `clients`, `personal`, `mixing`; not its data."""

    def __init__(
        self,
        path: Path,
        module: nn.Module | None = None,
        models: Mapping[str, OwnModel] | None = None,
    ) -> None:
        super().__init__(path)
        self._module, self._models = module, models

    @property
    def label(self) -> str:
        return f"{self.method} ({self.path.name})"

    @property
    def accuracy(self) -> float:
        """Mean personal accuracy at the last evaluation."""
        return last_score(self.metrics, "accuracy")

    @property
    def score(self) -> float:
        """Mean of the deciding metric over personal models, at the last evaluation."""
        return last_score(self.metrics, self.measures[0].name)

    @cached_property
    def inputs(self) -> Inputs:
        return Inputs.load(self.path)

    @cached_property
    def personal(self) -> PersonalModels:
        """Every client's own model, read on access."""
        if (self.path / FOLDS).is_dir():
            raise FedkinError(
                f"{self.path} has models for each fold: name one of them, as in "
                f"{self.path / FOLDS / 'fold-1'}, or train once more without test = folds"
            )
        if not (self.path / "models").is_dir():
            raise FedkinError(
                f"{self.path} has no models yet: finish it with `fedkin resume {self.path}`"
            )
        return PersonalModels(self.problem, FilesOfModels(self.path / "models", self.problem))

    @property
    def mixing(self) -> Tensor | None:
        """How much every client (row) learns from every other (column), if the method knows."""
        return read_mixing(self.path)[0] if (self.path / TABLE).is_file() else None

    @cached_property
    def problem(self) -> Problem:
        """The run's model with clients that have names but no data."""
        known = self.inputs
        if self._module is None and "model" not in self.settings:
            raise FedkinError(
                f"{self.path} was trained with your own module: pass it too, as in "
                "open_run(path, module)"
            )
        module, models = self._module, self._models
        own: Architectures | None = None
        norm: NormName | None = None
        if module is not None and not models and len(read_models(self.path)):
            raise FedkinError(
                f"clients of {self.path} have models of their own: pass them too, as in "
                "open_run(path, module, models)"
            )
        if module is None:
            where = f"{self.path}/config.toml"
            config = validated(ModelConfig, self.settings["model"], where)
            refuse_brought(self.settings, self.path)
            with_files(self.settings, where)
            own_names = {n for c, n in config.client_models.items() if c in known.clients}
            for name in {config.name, *own_names}:
                if not is_file(name):
                    check_size(name, known, self.path / "models", where)
            shape, outputs = known.input_shape, known.outputs
            seed = self.settings.get("seed", 0)
            if not isinstance(seed, int) or not 0 <= seed < 2**63:
                raise FedkinError(f"{where}: seed must be a whole number, not {str(seed)[:60]}")
            norm = config.norm
            module = make_model(config.name, shape, outputs, seed, config.args)
            if len(read_models(self.path)):
                own = make_architectures(config.client_models, known.clients, shape, outputs, seed)
        return blank_problem(known, module, own or models, norm)


def check_size(name: str, known: Inputs, models: Path, where: str) -> None:
    """Refuse a model by name that is far larger than the files of models beside it.

    It is measured before anything is allocated. Files may hold models of a rate only, of which a
    thousandth of all parameters is the least that clients are given.
    """
    if name.partition(":")[0] not in MODELS:
        return
    with torch.device("meta"):
        module = build(name, known.input_shape, known.outputs)
    size = sum(p.numel() for p in module.parameters()) * torch.finfo(known.number_type).bits // 8
    there = max((path.stat().st_size for path in models.glob("*.safetensors")), default=0)
    if size > LEAST_SHARE * there + 2**20:
        raise FedkinError(
            f"{where} and {INPUTS} describe a model of {size / 1e6:.3g} MB, and no file in "
            f"{models} has models of that size"
        )


def blank_problem(
    known: Inputs,
    module: nn.Module,
    models: Mapping[str, OwnModel] | Architectures | None = None,
    norm: NormName | None = None,
) -> Problem:
    """A model with clients that have names but no data."""
    dtype = known.number_type
    count = 2 * len(known.clients)  # batch norm needs two
    nothing = torch.zeros(1, dtype=known.input_type).expand(count, *known.input_shape)
    kind = torch.long if known.num_classes is not None else dtype
    shape = (known.outputs,) if known.num_classes is None and known.outputs > 1 else ()
    targets = torch.zeros(1, dtype=kind).expand(count, *shape)
    two_each = Examples(nothing, targets, torch.arange(0, count + 1, 2))
    data = ClientData(two_each, two_each, known.num_classes, names=known.clients)
    loss = known.loss if known.loss in LOSSES else None
    return Problem(module, data, loss, dtype=dtype, models=models, norm=norm)


class ModelFile:
    """The model that a site of a served run has written for itself, with all it takes to use it."""

    def __init__(self, path: Path) -> None:
        facts = read_facts(path)
        if not {"inputs", "model", "rate"} <= facts.keys():
            raise FedkinError(f"{path} is not the model of a site: it does not describe its inputs")
        self.path, self._facts = path, facts
        self.inputs = Inputs.from_json(facts["inputs"], path)

    @cached_property
    def personal(self) -> PersonalModels:
        """The one model, of the client at place 0."""
        known, model = self.inputs, self._facts["model"]
        check_size(model, known, self.path.parent, str(self.path))
        problem = blank_problem(known, build(model, known.input_shape, known.outputs))
        rate = {"rate": self._facts["rate"]}
        return PersonalModels(problem, {0: read_model(self.path, problem, rate)})


class FilesOfModels(Mapping[int, tuple[Problem, Tensor]]):
    """Models by the client's number, each read from its file on access."""

    def __init__(self, folder: Path, problem: Problem) -> None:
        self.folder, self.problem = folder, problem

    def __getitem__(self, client: int) -> tuple[Problem, Tensor]:
        return load_model(self.folder, self.problem, client, self.problem.data.names[client])

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self.problem.num_clients


def open_run(
    path: str | Path,
    module: nn.Module | None = None,
    models: Mapping[str, OwnModel] | None = None,
) -> StoredRun:
    """A run from its folder: `metrics`, `clients`, `personal`, `mixing`.

    `module` is needed for models that were made in Python and not by name; and `models` where
    clients have their own, as `Problem` takes them.
    """
    return StoredRun(Path(path), module, models)
