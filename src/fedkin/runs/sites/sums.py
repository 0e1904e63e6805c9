"""Secure sums in served runs: what was chosen, which methods can do with sums, a site's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.core.blocks import Block, Sums, add_up
from fedkin.core.federation import Federation, Request
from fedkin.engines import Embedded
from fedkin.engines.flower.certificates import ServerFiles, SiteFiles
from fedkin.engines.flower.identity import identity_of
from fedkin.engines.flower.summing import SecureSums
from fedkin.engines.secure.crypto import Trust
from fedkin.engines.secure.site import ROWS, SecureSite, announced
from fedkin.engines.secure.terms import FEWEST
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from fedkin.methods import Method
from fedkin.runs.checks import problem, usual
from fedkin.runs.config import RunConfig

AT_LEAST = 3
ROUNDS_TRIED = 2


# at the server ----------------------------------------------------------------------------


def chosen(
    config: RunConfig, clients: int, keys: ServerFiles | None, wanted: bool, at_least: int | None
) -> dict[str, Any] | None:
    """What a plan keeps of secure sums; None without. Refuses what cannot be."""
    if not wanted:
        if at_least is not None:
            raise FedkinError("--secure-at-least is for secure sums: give --secure-sum too")
        return None
    if keys is None:
        raise FedkinError(
            "--secure-sum needs every site's certificate: make them with `fedkin certs` and give "
            "their folder with --certs"
        )
    least = AT_LEAST if at_least is None else at_least
    if least < FEWEST:
        raise FedkinError(f"--secure-at-least must be at least {FEWEST}, not {least}")
    asked = min(clients, max(1, round(config.settings().fraction * clients)))
    if asked < least:
        raise FedkinError(
            f"{asked} of {clients} sites are asked in a round, and sums must be of at least "
            f"{least}: let more take part (--clients, fraction), or choose --secure-at-least"
        )
    reason = needs_rows(config.make_method())
    if reason:
        raise FedkinError(f"method '{config.method}' cannot do with sums over sites: {reason}")
    return {"at_least": least, "authority": keys.authority.read_text(encoding="utf-8")}


def secure_sums(
    kept: Mapping[str, Any], setup: Mapping[str, Any], samples: Tensor
) -> SecureSums:  # fmt: skip
    """As the engine takes it."""
    return SecureSums(kept["at_least"], Trust(kept["authority"].encode()), setup, samples)


@dataclass
class Watched:
    """An engine that notes which of a method's requests are for more than a plain sum."""

    engine: Embedded
    size: int
    samples: Tensor
    found: list[str] = field(default_factory=list)

    def run(self, request: Request) -> Iterator[Block]:
        for block in self.engine.run(request):
            if block.reply:
                names = ", ".join(sorted(block.reply))
                self.note(f"its step {request.step.__name__} sends single sites' {names}")
            yield block

    def sums(self, request: Request, weights: Tensor | None) -> Iterator[Sums]:
        step = request.step.__name__
        if request.each:
            names = ", ".join(sorted(request.each))
            self.note(f"it gives each site its own {names} for its step {step}")
        if len(request.at) < self.size:
            self.note(f"it asks groups of sites for sums of their own in its step {step}")
        if weights is not None and not torch.equal(weights, self.samples[request.at]):
            self.note(f"it weighs sites otherwise than by their examples in its step {step}")
        for block in self.engine.run(request):
            own = None if weights is None else weights[block.positions]
            yield add_up(block, block.good, own)

    def note(self, sentence: str) -> None:
        if sentence not in self.found:
            self.found.append(sentence)


def needs_rows(method: Method) -> str | None:
    """Why a method cannot do with sums, found by running it for a moment on a small problem.

    What a method does only in later rounds is refused then, by the engine and by every site.
    """
    if hasattr(method, "warm_up"):
        method = replace(method, warm_up=1)  # type: ignore[call-arg]  # what comes later, at once
    small = problem(usual(type(method)))
    engine = Watched(Embedded(small, "native:3:1x1"), small.num_clients, small.train.sizes)
    fed = Federation(small, engine)
    state = method.init(fed)
    for number in range(1, ROUNDS_TRIED + 1):
        fed.begin_round(number)
        method.round(fed, state)
    return engine.found[0] if engine.found else None


# at a site --------------------------------------------------------------------------------


def secure_site(name: str, keys: SiteFiles | None, at_least: int | None) -> SecureSite | None:
    """A site's part in secure sums; None if it has no certificate and demands none."""
    if keys is None:
        if at_least is not None:
            raise FedkinError("--secure-at-least needs this site's certificate: give --certs")
        return None
    if at_least is None and not keys.key.with_name("site.pem").is_file():
        return None
    if at_least is not None and at_least < FEWEST:
        raise FedkinError(f"--secure-at-least must be at least {FEWEST}, not {at_least}")
    return SecureSite(*identity_of(name, keys), at_least)


def agree_to_sums(secure: SecureSite | None, setup: Mapping[str, Any]) -> None:
    """Raise if this site cannot take part in a run as it was announced."""
    if secure is not None:
        secure.agree(setup)
    elif announced(setup) is not None:
        raise FedkinError(
            "this run adds sites' answers up securely, for which this site needs its certificate: "
            "join with --certs, a folder with site.pem in it (made by `fedkin certs`), not --sites"
        )


def no_rows(setup: Mapping[str, Any], answer: Message) -> Message:
    """An answer to a request that is not part of a sum; in a run of sums it must be empty."""
    if announced(setup) is not None and answer[0]:
        raise FedkinError(ROWS)
    return answer


def answer_stage(
    secure: SecureSite | None,
    setup: Mapping[str, Any],
    samples: int,
    folder: Path,
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    work: Callable[[], Message],
) -> Message:
    """One stage of a secure sum."""
    if secure is None or announced(setup) is None:
        raise FedkinError("this run was not announced as one of secure sums")
    return secure.answer(tensors, facts, setup, samples, folder, work)
