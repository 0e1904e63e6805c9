"""Everything a run needs in one validated TOML file; every key is a CLI option too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, field_validator

from fedkin.core.augment import Augment
from fedkin.core.faults import Faults
from fedkin.core.losses import get_loss
from fedkin.core.metrics import METRICS, get_metric
from fedkin.core.problem import Problem
from fedkin.core.robust import Aggregate
from fedkin.data import ClientData, DataConfig, load
from fedkin.data.config import MOST
from fedkin.engines import ENGINES
from fedkin.engines.strategy import check_name
from fedkin.errors import FedkinError, unknown
from fedkin.methods import Method
from fedkin.methods.registry import MODELS, form_for, get_method
from fedkin.runs.limits import LONGEST_WAIT, MOST_ROUNDS, MOST_THREADS
from fedkin.runs.own_models import brings_models, client_architectures, with_client_models
from fedkin.runs.plugins import is_file, with_files
from fedkin.runs.sections import FaultConfig, ModelConfig
from fedkin.runs.settings import Settings, check_device, parse_clip, parse_size
from fedkin.runs.user_code import find_augment, find_loss, known_method, known_objective, make_model
from fedkin.runs.validation import STRICT, options_model, refuse_setting, validated
from fedkin.toml import read_toml, to_toml

ALIASES = {
    "global_rounds": "rounds",
    "num_rounds": "rounds",
    "join_ratio": "fraction",
    "fraction_fit": "fraction",
    "fraction_train": "fraction",
}


class RunConfig(BaseModel):
    """A whole run. Its TOML file repeats it."""

    model_config = STRICT

    method: str = Field(description="what to train with: see `fedkin methods`")
    rounds: int = Field(100, ge=1, le=MOST_ROUNDS, description="communication rounds")
    seed: int = Field(
        0, ge=0, lt=2**63, description="seed of all randomness: data split, models, sampling"
    )
    fraction: float = Field(1.0, gt=0, le=1, description="share of clients taking part in a round")
    eval_every: int = Field(10, ge=1, le=MOST, description="rounds between evaluations")
    checkpoint_every: int = Field(10, ge=1, le=MOST, description="rounds between checkpoints")
    baseline: bool = Field(True, description="also train every client alone, for comparison")
    train_scores: bool = Field(False, description="evaluate models on training data as well")
    metric: tuple[str, ...] = Field(
        (),
        description="what results are measured by, the first decides: "
        f"{', '.join(METRICS)}, or your own function as file.py:name "
        "(default: what fits the target)",
    )
    patience: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="end after so many rounds without a better validation score, with the models "
        "of the best round (needs validation_fraction)",
    )
    lr_schedule: Literal["constant", "cosine", "step"] = Field(
        "constant", description="how lr changes over the rounds"
    )
    lr_warm_up: int = Field(
        0, ge=0, le=MOST, description="first rounds, in which lr rises to its value"
    )
    lr_every: int = Field(
        30, ge=1, le=MOST, description="rounds between the steps of lr_schedule step"
    )
    lr_factor: float = Field(0.1, gt=0, le=1, description="what each such step multiplies lr by")
    engine: str = Field("embedded", description=f"one of {', '.join(ENGINES)}")
    strategy: str = Field(
        "auto", description="how the embedded engine computes: auto, stacked, vmap, threads, ..."
    )
    block_size: int | None = Field(None, ge=1, le=MOST, description="clients computed together")
    threads: int | None = Field(None, ge=1, le=MOST_THREADS, description="processor threads to use")
    memory: str | None = Field(
        None, description="limit of clients' state in RAM, such as 2GB; more goes to files"
    )
    files: dict[str, str] = Field(
        default_factory=dict, description="checksums of Python files that the run uses"
    )
    ray_address: str | None = Field(
        None, description="engine ray: HOST:PORT of a cluster, or auto (none: start one here)"
    )
    shards: int | None = Field(
        None, ge=1, le=MOST, description="engine ray: parts of the clients (none: one per CPU)"
    )
    on_loss: Literal["wait", "skip"] = Field(
        "wait",
        description="engine ray: restore a lost shard and repeat from the last checkpoint, or "
        "go on without its answers",
    )
    ray_timeout: float = Field(
        600.0,
        gt=0,
        le=LONGEST_WAIT,
        description="engine ray: seconds to wait for a shard before it counts as lost",
    )
    gpus_per_shard: float = Field(0.0, ge=0, le=1000, description="engine ray: GPUs of every shard")
    sampling: Literal["fixed", "poisson"] = Field(
        "fixed",
        description="who takes part in a round: so many clients drawn without replacement, or each "
        "by a coin of its own, with probability fraction",
    )
    aggregate: str = Field(
        "mean",
        description="how answers become one: mean, or median, trimmed:0.1, norm-bound:1 (longer "
        "answers shortened to 1), which resist broken or hostile clients",
    )
    dp_clip: float | dict[str, float] | None = Field(
        None,
        description="differential privacy: the longest that a client's answer may be; or a limit "
        "for each of its tensors, as in dx=1,dc=0.5",
    )
    dp_noise: float | None = Field(
        None, ge=0, description="noise on every sum, in units of dp_clip (z, the noise multiplier)"
    )
    dp_epsilon: float | None = Field(
        None, gt=0, description="epsilon after all rounds: noise is found for it, or ends the run"
    )
    dp_delta: float | None = Field(
        None, gt=0, lt=1, description="delta of the guarantee (none: clients^-1.1, at most 1e-5)"
    )
    dp_quantile: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="let the limit follow the length that this share of answers stays below, from "
        "dp_clip on",
    )
    dp_cohort: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="simulate the noise of so many clients in a round; epsilon belongs to them",
    )
    dp_most_samples: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="samples from which on a client counts no more in a weighted mean",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the method's own settings")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    faults: FaultConfig = FaultConfig()

    @field_validator("dp_clip", mode="before")
    @classmethod
    def _limits(cls, given: Any) -> Any:
        return parse_clip(given)

    @field_validator("memory")
    @classmethod
    def _memory_size(cls, text: str | None) -> str | None:
        parse_size(text)
        return text

    # what it describes ------------------------------------------------------------------

    def make_method(self) -> Method:
        """The method with its hyper-parameters, checked."""
        cls = get_method(self.method)
        for name in self.options:
            refuse_setting(cls, name)
        values = validated(options_model(cls), self.options, f"method '{self.method}'")
        method = cls(**values.model_dump())
        method.check()
        return method

    def make_problem(self, data: ClientData) -> Problem:
        m = self.model
        outputs = data.num_classes or max(1, data.train.y[0].numel())
        loss = find_loss(m.loss)
        if loss is not None and get_loss(loss).binary:
            outputs = 1
        check_device(m.device)
        return Problem(
            make_model(m.name, data.input_shape, outputs, self.seed, m.args),
            data,
            loss,
            m.l2,
            batch_size=m.batch_size,
            reshuffle=m.reshuffle,
            device=m.device,
            dtype=getattr(torch, m.dtype),
            norm=m.norm,
            class_weights=m.class_weights,
            augment=find_augment(m.augment),
            models=client_architectures(
                m.client_models, bool(m.model_column), data, outputs, self.seed
            ),
        )

    def make_data(self) -> ClientData:
        return load(self.data, self.seed)

    def settings(self) -> Settings:
        names = {f.name for f in fields(Settings)} - {"faults"}
        plain = {name: getattr(self, name) for name in names}
        return Settings(**plain, faults=Faults(**self.faults.model_dump()))

    def to_toml(self, made_with: Mapping[str, Any] | None = None) -> str:
        """The complete config; None values are left out. `made_with` is for readers."""
        complete = self.model_dump()
        complete["options"] = asdict(self.make_method())
        return to_toml({**complete, "made_with": dict(made_with) if made_with else None})


def read_config(path: Path) -> RunConfig:
    """A run's config from its TOML file."""
    values = read_toml(path)
    values.pop("made_with", None)
    sites, data = values.pop("sites", None), values.get("data", {})
    if sites is not None and not (data.get("path") or data.get("name")):
        raise FedkinError(f"the data of {path} are at sites: run it with `fedkin serve {path}`")
    return make_config(values, str(path))


def make_config(values: Mapping[str, Any], where: str = "the command line") -> RunConfig:
    """Check nested values; aliases are accepted, an unknown key is an error."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        key = ALIASES.get(name, name)
        if key in plain:
            raise FedkinError(f"{where} gives {key} twice")
        plain[key] = value
    if "method" not in plain:
        raise FedkinError(f'{where} names no method: add a line such as method = "fedavg"')
    if isinstance(plain.get("metric"), str):  # several, as on a command line
        plain["metric"] = [part.strip() for part in plain["metric"].split(",")]
    plain = with_files(with_client_models(plain), where)
    options, method = plain.get("options", {}), plain["method"]
    model = plain.get("model")
    if isinstance(method, str):
        method = plain["method"] = known_method(method)
    if isinstance(options, Mapping) and isinstance(method, str):
        known_objective(options.get("objective", ""))
        options = _present_names(method, options, where)
        given = [*options, *(MODELS if brings_models(model) else ())]
        plain["method"] = form_for(method, given)
        plain["options"] = _of_form(method, plain["method"], options)
    config: RunConfig = validated(RunConfig, plain, where)
    config.make_method()
    if config.engine not in ENGINES:
        raise unknown("engine", config.engine, ENGINES)
    check_name(config.strategy)
    Aggregate.parse(config.aggregate)
    find_loss(config.model.loss)
    for name in config.metric:
        if not is_file(name):
            get_metric(name)
    Augment(find_augment(config.model.augment))
    return config


def _present_names(method: str, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options under their present names: files of older runs may have others."""
    former = get_method(method).former
    found = {name: value for name, value in options.items() if name not in former}
    for name in former.keys() & options.keys():
        for now in former[name]:
            if now in found:
                raise FedkinError(f"{where} gives {name}, which is now {now}, beside {now}")
            found[now] = options[name]
    return found


def _of_form(method: str, form: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options without those that its other form lacks and that have no effect."""
    if form == method:
        return dict(options)
    own = {f.name for f in fields(get_method(form))}
    lacking = {f.name: f.default for f in fields(get_method(method)) if f.name not in own}
    return {k: v for k, v in options.items() if k not in lacking or v != lacking[k]}
