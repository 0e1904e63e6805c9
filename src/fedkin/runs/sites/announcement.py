"""What a server announces of a run, checked by a site, and said in words to its people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedkin.core.steps import step_name
from fedkin.data.site import SHARED_KEYS, Agreement
from fedkin.engines.flower.text import shown
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.methods.base import use
from fedkin.runs.config import RunConfig, make_config
from fedkin.runs.plugins import refuse_files
from fedkin.runs.sites.policy import SitePolicy
from fedkin.runs.sites.private import AnnouncedPrivacy
from fedkin.runs.sites.terms import StepsOf
from fedkin.runs.validation import validated

MOST_COLUMNS = 10_000


class Announcement(BaseModel):
    """A run as the server announces it: method and settings, model, columns, rounds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str = Field(max_length=200)
    options: dict[str, Any]
    rounds: int = Field(ge=1)
    eval_every: int = Field(ge=1)
    baseline: bool
    seed: int = Field(ge=0, lt=2**63)
    model: dict[str, Any]
    data: dict[str, Any]
    sites: Agreement
    secure: dict[str, Any] | None = None
    privacy: AnnouncedPrivacy | None = None

    @classmethod
    def read(cls, setup: Mapping[str, Any]) -> Announcement:
        """What a message says, checked; whatever names a file is refused."""
        if not isinstance(setup, Mapping):
            raise FedkinError("the server announces nothing that can be understood")
        refuse_files(setup, "a site runs only what is installed there, never a file it is told of")
        found = validated(cls, setup, "the server's announcement")
        if len(found.sites.features) > MOST_COLUMNS:
            raise FedkinError(f"the server asks for more than {MOST_COLUMNS} columns")
        return found

    def config(self, device: str) -> RunConfig:
        """The run's config as far as a site has to know it."""
        values = {"method": self.method, "options": self.options, "rounds": self.rounds}
        values |= {"seed": self.seed, "model": {**self.model, "device": device}}
        return make_config(values, "the server's announcement")

    def checked(self) -> dict[str, Any]:
        """The plain values, with the defaults of what is left out."""
        plain = self.model_dump()
        plain["data"] = {k: v for k, v in self.data.items() if k in SHARED_KEYS}
        plain["model"] = self.config("cpu").model.model_dump()
        return plain


def announce(
    config: RunConfig, agreement: Mapping[str, Any], secure: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the server announces to its sites; it contains no path. `secure` are the terms of
    secure sums."""
    whole, privacy = config.model_dump(mode="json"), AnnouncedPrivacy.of(config)
    return {
        "method": config.method,
        "options": whole["options"],
        "rounds": config.rounds,
        "eval_every": config.eval_every,
        "baseline": config.baseline,
        "seed": config.seed,
        "model": config.model.model_dump(mode="json", exclude={"device"}, exclude_none=True),
        "data": config.data.model_dump(include=set(SHARED_KEYS), exclude_none=True),
        "sites": dict(agreement),
        **({"secure": dict(secure)} if secure else {}),
        **({"privacy": privacy} if privacy else {}),
    }


def in_words(
    name: str, server: str, experiment: str, announced: Announcement, method: Method,
    policy: SitePolicy, table: bool,
) -> list[str]:  # fmt: skip
    """For the site's people, before anything is read: who asks for what, and what is sent."""
    steps = StepsOf.of(method)
    keeps = bool(steps.models - {step_name(use)})
    features = [shown(column, 60) for column in announced.sites.features]
    target = shown(announced.data.get("target_column") or "target", 60)
    sent = sorted({step.partition(":")[2] for step in steps.work})
    lines = [
        f"{server} asks '{name}' to take part in '{experiment}':",
        f"  method     {shown(announced.method, 60)}, {announced.rounds} rounds"
        + (", and training alone beside it for comparison" if announced.baseline else ""),
        f"  model      {shown(announced.model.get('name', ''), 60)}, minibatches of "
        f"{announced.model.get('batch_size')} rows",
    ]
    if table:
        lines += [f"  inputs     {', '.join(features)}", f"  to predict {target}"]
    else:
        lines += ["  data       the arrays x and y of the file"]
    if announced.secure:
        least = shown(announced.secure.get("at_least"), 20)
        lines += [f"  added up   with others' answers: the server sees sums of {least} or more"]
    if announced.privacy:
        lines += [f"  private    {announced.privacy.words(bool(announced.secure))}"]
    lines += [
        f"  sent       in every round what {', '.join(sent)} compute from this site's training "
        "rows (updates of the model, gradients); never rows",
        f"  also sent  every {announced.eval_every} rounds sums over test rows: loss, right "
        "answers, how many; before the first round how many rows there are",
        "  stays      the rows"
        + ("; the site's own model" if keeps else "")
        + "; at the end the model is written here",
        f"  limits     at least {policy.least_batch} rows in a minibatch and {policy.least_rows} "
        f"in an answer, at most {policy.requests(announced.rounds)} requests; what is outside "
        "this ends the run here",
    ]
    return lines
