"""What the server and the sites of a run agreed on, kept in its folder as `serve.json`."""

from __future__ import annotations

import json
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedkin.core.metrics import BUILT_IN
from fedkin.data import DataConfig
from fedkin.data.clients import ClientData, Examples
from fedkin.data.facts import with_facts
from fedkin.data.site import SHARED_KEYS, Agreement
from fedkin.engines.flower.exchange import KnownSite, WaitPolicy
from fedkin.errors import FedkinError
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.contents import MOST_CLIENTS
from fedkin.runs.limits import LONGEST_WAIT
from fedkin.runs.plugins import is_file, refuse_files
from fedkin.runs.reading import read_json
from fedkin.runs.sites.announcement import announce
from fedkin.runs.sites.names import NAME
from fedkin.runs.validation import validated
from fedkin.tensors import write_text
from fedkin.toml import read_toml, to_toml
from fedkin.version import __version__

FILE = "serve.json"
# facts about a site's data that must be equal at all sites
SAME_EVERYWHERE = ("fedkin", "shape", "target", "num_classes", "parameters")


# more than any site has: what goes beyond would overflow where it is counted
MOST_ROWS, MOST_SIDE = 10**10, 10**6
Side = Annotated[int, Field(ge=1, le=MOST_SIDE)]


class SiteFacts(BaseModel):
    """A site's description of itself, checked before it is used."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=NAME)
    identity: str = Field(pattern=r"^[0-9A-Za-z-]{1,64}$")
    fedkin: str = Field(pattern=r"^[0-9A-Za-z.+-]{1,64}$")
    train: int = Field(ge=1, le=MOST_ROWS)
    test: int = Field(ge=0, le=MOST_ROWS)
    validation: int | None = Field(ge=0, le=MOST_ROWS)
    shape: list[Side] = Field(min_length=1, max_length=4)
    target: list[Side] = Field(max_length=4)
    num_classes: int | None = Field(ge=1, le=MOST_SIDE)
    parameters: int = Field(ge=1, le=MOST_ROWS)


class PlanFile(BaseModel):
    """serve.json, checked before it is used."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    experiment: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    clients: int = Field(ge=1, le=MOST_CLIENTS)
    sites: dict[str, Any]
    wait: float = Field(gt=0, le=1)
    timeout: float = Field(gt=0, le=LONGEST_WAIT)
    starts: int = Field(ge=0)
    cards: list[SiteFacts]
    secure: dict[str, Any] | None = None
    open: bool = False
    left: tuple[str, ...] = ()


PLAN: TypeAdapter[PlanFile] = TypeAdapter(PlanFile)


@dataclass(frozen=True)
class Plan:
    """Who takes part in a served run, and how.

    `cards` holds the facts that each site sent about itself (`SiteFacts`). `starts` counts how
    often the server was started or resumed.
    """

    experiment: str
    clients: int
    sites: dict[str, Any]
    wait: float
    timeout: float
    starts: int = 0
    cards: tuple[dict[str, Any], ...] = ()
    secure: dict[str, Any] | None = None  # how answers are added up securely, where they are
    open: bool = False  # whether sites may join after the first round
    left: tuple[str, ...] = ()  # sites that have left for good

    @classmethod
    def new(cls, name: str, clients: int, agreement: Agreement, waiting: WaitPolicy) -> Plan:
        experiment = f"{name[:60]}-{secrets.token_hex(6)}"
        return cls(experiment, clients, agreement.model_dump(), waiting.wait, waiting.timeout)

    @classmethod
    def read(cls, folder: Path) -> Plan:
        try:
            found = read_json(folder / FILE, PLAN)
        except FileNotFoundError:
            raise FedkinError(f"{folder} is not the folder of a served run: no {FILE}") from None
        return cls(**{**found.model_dump(), "cards": tuple(c.model_dump() for c in found.cards)})

    def write(self, folder: Path) -> Plan:
        write_text(folder / FILE, json.dumps(asdict(self), indent=1))
        return self

    @property
    def waiting(self) -> WaitPolicy:
        return WaitPolicy(self.wait, self.timeout)

    def with_waiting(self, wait: float | None, timeout: float | None) -> Plan:
        """The same plan with another wait policy, where one is given."""
        waiting = self.waiting.changed(wait, timeout)
        return replace(self, wait=waiting.wait, timeout=waiting.timeout)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites in the order of clients; empty until the run has begun."""
        return tuple(card["name"] for card in self.cards)

    def with_sites(self, known: Mapping[str, KnownSite]) -> Plan:
        """The first `clients` sites by name take part, from now on and until the end."""
        names = sorted(known)[: self.clients]
        return replace(self, cards=tuple(known[name].facts for name in names))

    def setup(self, config: RunConfig) -> dict[str, Any]:
        """What is announced to a site: all that it has to agree to."""
        secure = {"at_least": self.secure["at_least"]} if self.secure else None
        return announce(config, self.sites, secure)

    def admit(self, facts: Mapping[str, Any], others: Mapping[str, KnownSite]) -> None:
        """Refuse a site that cannot be a client of this run."""
        validated(SiteFacts, facts, "its description of itself")
        if self.cards:
            same = next((card for card in self.cards if card["name"] == facts["name"]), None)
            keys: tuple[str, ...] = (*SAME_EVERYWHERE, "train", "test", "validation")
            if facts["name"] in self.left:
                raise FedkinError("it has left this run for good")
            if same is None:
                if not self.open:
                    raise FedkinError(f"this run has begun with {', '.join(self.names)}")
                same, keys = self.cards[0], SAME_EVERYWHERE
        else:
            same = next((site.facts for site in others.values()), {"fedkin": __version__})
            keys = SAME_EVERYWHERE if others else ("fedkin",)
        for key in keys:
            if facts[key] != same[key]:
                raise FedkinError(f"its {key} is {facts[key]}, and not {same[key]}")

    def data(self, config: DataConfig) -> ClientData:
        """The clients as the server knows them: how many examples of which shape, no more.

        The columns of the server's own client table are added.
        """
        shape, target = self.cards[0]["shape"], self.cards[0]["target"]
        classes = self.cards[0]["num_classes"]
        kind = torch.float32 if classes is None else torch.int64
        blank = torch.zeros(2, *shape), torch.zeros(2, *target, dtype=kind)

        def part(name: str) -> Examples:
            return Examples.elsewhere(torch.tensor([c[name] for c in self.cards]), *blank)

        known = ClientData(
            part("train"),
            part("test"),
            classes,
            part("validation") if self.cards[0]["validation"] is not None else None,
            self.names,
        )
        return with_facts(known, config)


def served_config(config: RunConfig, agreement: Agreement, made_with: Mapping[str, Any]) -> str:
    """The complete config of a served run, as `read_serve_config` takes it: serving it again
    repeats the run."""
    values = tomllib.loads(config.to_toml(made_with))
    data = {key: value for key, value in values["data"].items() if key in SHARED_KEYS}
    if config.data.client_table:
        data["client_table"] = str(Path(config.data.client_table).resolve())
    return to_toml({**values, "data": data, "sites": agreement.model_dump()})


def read_serve_config(path: Path) -> tuple[RunConfig, Agreement]:
    """A run's config with the table [sites] that only a served run has."""
    values = read_toml(path)
    values.pop("made_with", None)
    sites = values.pop("sites", {})
    _refuse_metrics(values.get("metric", ()), path)
    refuse_files(
        values,
        "sites run only what is installed there, so make it a package with an entry point "
        "(fedkin.methods or fedkin.models) and install it at the server and at every site",
    )
    config = make_config(values, str(path))
    _refuse_what_needs_all_data(config, path)
    if config.patience is not None:
        raise FedkinError(
            f"{path}: patience is not for runs over sites, whose memory does not go back to the "
            "best round: leave it out"
        )
    agreement = validated(Agreement, sites, f"{path}: [sites]")
    # every round is saved: the memory of sites only goes back a few rounds
    return config.model_copy(update={"checkpoint_every": 1}), agreement


def _refuse_metrics(given: Any, path: Path) -> None:
    """Before anything is read from files: sites compute metrics, and run only what they have."""
    names = given.split(",") if isinstance(given, str) else given
    own = [str(name).strip() for name in names if str(name).strip() not in BUILT_IN]
    if own and is_file(own[0]):
        raise FedkinError(
            f"{path}: sites know the built-in metrics only, and '{own[0]}' is your own: choose "
            f"from {', '.join(BUILT_IN)}"
        )


def _refuse_what_needs_all_data(config: RunConfig, path: Path) -> None:
    """Settings by which rows of a whole table are split, or all clients' classes are counted."""
    for key in ("group_column", "time_column", "test"):
        value = getattr(config.data, key)
        if value:
            raise FedkinError(
                f"{path}: {key} = '{value}' is for tables in one place: every site splits its own "
                "rows by test_fraction; leave it out"
            )
    if config.model.client_models:
        raise FedkinError(
            f"{path}: models of clients' own are for clients in one place: leave model_column and "
            "client_models out"
        )
    if config.model.class_weights == "balanced":
        raise FedkinError(
            f"{path}: class_weights = balanced counts the classes of all clients, which nobody "
            "sees when data stay at sites: give the weights themselves, as in [1, 5]"
        )
