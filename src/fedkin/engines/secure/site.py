"""What a site does for secure sums: its terms, its sums under way, and what it has given away."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.engines.secure.crypto import Identity, Trust
from fedkin.engines.secure.fixed import encode, layout_of
from fedkin.engines.secure.party import Party
from fedkin.engines.secure.terms import FEWEST, Facts, Terms, canonical, digest
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from fedkin.tensors import write_text

# what all sites of a sum must be asked alike
ALIKE = ("step", "hyper", "remember", "variant", "guard", "weighing", "scale")
SUMS_KEPT = 4
ROWS = "this run shows the server sums over sites only, and this request is for one site's answer"


def request_digest(
    shared: Mapping[str, Tensor], facts: Mapping[str, Any], setup: Mapping[str, Any]
) -> str:
    """A hash of a request: its tensors, what is asked, and what the run was set up with."""
    parts = [canonical(setup), canonical({key: facts.get(key) for key in ALIKE})]
    for name, value in sorted(shared.items()):
        plain = value.detach().cpu().contiguous()
        parts.append(canonical([name, str(plain.dtype), list(plain.shape)]))
        parts.append(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return digest(*parts).hex()


class Given:
    """What a site has given into sums, kept in a file: nothing is given into two sums.

    The same answer in two sums of different sites would show, as their difference, the answers
    of single sites. A request of a round that is over, or that was answered in this round, is
    refused; evaluations may be several for one request, each once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, terms: Terms, remember: bool) -> None:
        known = self._read()
        place, last = [terms.round, terms.call], known["last"]
        again = place <= last if remember else self._mark(terms) in known["looks"]
        if again or terms.round < last[0]:
            raise FedkinError(
                f"request {terms.call} of round {terms.round} was added up before, and a second "
                "sum with other sites in it could show single sites' answers"
            )

    def note(self, terms: Terms, remember: bool) -> None:
        """Refuse, or write down before anything leaves."""
        self.check(terms, remember)
        known = self._read()
        if terms.round > known["last"][0]:
            known = {"last": [terms.round, -1], "looks": []}
        if remember:
            known["last"] = [terms.round, terms.call]
        else:
            known["looks"].append(self._mark(terms))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(known))

    @staticmethod
    def _mark(terms: Terms) -> str:
        return f"{terms.round} {terms.call} {terms.request}"

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"last": [-1, -1], "looks": []}
        try:
            found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            return {"last": list(found["last"]), "looks": list(found["looks"])}
        except (ValueError, KeyError, TypeError):
            raise FedkinError(f"{self.path} is damaged, so no secure sum can be joined") from None


class SecureSite:
    """A site that takes part in secure sums; with `at_least` in nothing else, and not in smaller
    ones."""

    def __init__(self, identity: Identity, trust: Trust, at_least: int | None = None) -> None:
        self.identity, self.trust, self.at_least = identity, trust, at_least
        self._sums: dict[str, Party] = {}

    def agree(self, setup: Mapping[str, Any]) -> None:
        """Raise if a run is not protected as this site demands."""
        agreed = announced(setup)
        if self.at_least is not None and (agreed is None or agreed["at_least"] < self.at_least):
            said = "no secure sums" if agreed is None else f"sums of {agreed['at_least']} sites"
            raise FedkinError(
                f"this site takes part in secure sums of at least {self.at_least} sites only, and "
                f"the server offers {said}: it must serve with --secure-sum --secure-at-least "
                f"{self.at_least}"
            )

    def answer(
        self,
        tensors: dict[str, Tensor],
        facts: Mapping[str, Any],
        setup: Mapping[str, Any],
        samples: int,
        folder: Path,
        work: Callable[[], Message],
    ) -> Message:
        """The answer to one stage of a sum; `work` does what is to be added up."""
        terms, stage = Terms.read(facts["terms"]), str(facts["stage"])
        number = terms.first().hex()
        if stage != "keys":
            if number not in self._sums:
                raise FedkinError("this site knows nothing of this sum, or not any more")
            said, words = self._sums[number].answer(stage, facts["said"])
            numbers = {} if words is None else {"masked": torch.from_numpy(words.view(np.int64))}
            return numbers, {"said": said}
        self._check(terms, tensors, facts, setup)
        given = Given(folder / "added.json")
        given.check(terms, facts["remember"])
        reply, about = work()
        if not about["good"]:
            return {}, about
        if number not in self._sums:
            weight = (samples if facts["weighing"] == "samples" else 1.0) / facts["scale"]
            words = encode(reply, weight, terms.bits, terms.most)
            layout = layout_of(reply)
            if any(not value.is_floating_point() for value in reply.values()):
                raise FedkinError("only floating-point numbers can be added up securely")
            self._sums[number] = Party(
                self.identity, self.trust, terms, layout, words,
                lambda: given.note(terms, facts["remember"]),
            )  # fmt: skip
            for old in list(self._sums)[:-SUMS_KEPT]:
                del self._sums[old]
        said, _ = self._sums[number].answer("keys", {})
        return {}, {**about, "said": said}

    def _check(
        self,
        terms: Terms,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        setup: Mapping[str, Any],
    ) -> None:
        """Raise unless the terms are those of this request, and as agreed."""
        agreed = announced(setup)
        if agreed is None:
            raise FedkinError("this run was not announced as one of secure sums")
        least = max(FEWEST, self.at_least or FEWEST, agreed["at_least"])
        if terms.at_least < least:
            raise FedkinError(f"this sum is of {terms.at_least} sites, and {least} were agreed")
        place = [terms.start, terms.round, terms.call]
        if list(facts["place"])[:3] != place:
            raise FedkinError("the terms of this sum are those of another request")
        if (terms.experiment, terms.contender) != (facts["experiment"], facts["contender"]):
            raise FedkinError("the terms of this sum are those of another run")
        if terms.request != request_digest(tensors, facts, setup):
            raise FedkinError("the terms of this sum are not those of what is asked")
        scale = facts["scale"]
        if facts["weighing"] not in ("same", "samples") or not (
            isinstance(scale, float) and 0 < scale < 1e18
        ):
            raise FedkinError("how sites are to be weighed cannot be read")


def announced(setup: Mapping[str, Any]) -> Facts | None:
    """What a run's setup says of secure sums; None where nothing."""
    agreed = setup.get("secure")
    if agreed is None:
        return None
    if not isinstance(agreed, dict) or type(agreed.get("at_least")) is not int:
        raise FedkinError("what the server says of secure sums cannot be read")
    return agreed
