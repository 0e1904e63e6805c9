"""Many sites on one machine: one process and one connection, and each site its own.

Every site has its own file, limits, memory, agreements and name; the process, torch and Flower's
SuperNode are shared. A message brings requests to several of them, and one answer goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.engines.flower.bundles import KIND, requests_of, tied
from fedkin.engines.flower.logs import warner
from fedkin.engines.flower.transport import MOST_HOSTED
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from fedkin.runs.sites.answering import answered
from fedkin.runs.sites.checking import agree_by
from fedkin.runs.sites.names import check_name
from fedkin.runs.sites.policy import TABLES, SitePolicy
from fedkin.runs.sites.site import SiteWorker

FILES = (*TABLES, ".npz")


class Machine:
    """Answers for its sites, which are called MACHINE.FILE after their files."""

    def __init__(self, name: str, home: Path, sites: Mapping[str, SiteWorker]) -> None:
        self.name, self.home, self.sites = name, home, dict(sites)
        home.mkdir(parents=True, exist_ok=True)
        self._told: dict[str, str | None] = {}

    # as a site is, to the process that connects it ---------------------------------------

    @property
    def title(self) -> str:
        return f"machine '{self.name}' with {len(self.sites)} sites"

    @property
    def finished(self) -> bool:
        """Whether every site that takes part has its model."""
        done = [site.finished for site in self.sites.values() if site.refused is None]
        return bool(done) and all(done)

    @property
    def leaving(self) -> bool:
        return all(site.leaving for site in self.sites.values())

    @leaving.setter
    def leaving(self, leaving: bool) -> None:
        for site in self.sites.values():
            site.leaving = leaving

    def begin_anew(self) -> None:
        for site in self.sites.values():
            site.finished = False

    @property
    def result(self) -> str:
        if self.leaving:
            return "; ".join(site.result for site in self.sites.values())
        return f"the models of its sites are {self.home}/NAME/model.safetensors"

    @property
    def refused(self) -> str | None:
        """Why none of its sites can take part."""
        reasons = [site.refused for site in self.sites.values()]
        return reasons[0] if all(reason is not None for reason in reasons) else None

    @property
    def say(self) -> Callable[[str], None]:
        return next(iter(self.sites.values())).say

    def forget_older(self, days: float) -> list[str]:
        gone = (name for site in self.sites.values() for name in site.forget_older(days))
        return sorted(set(gone))

    # requests ------------------------------------------------------------------------------

    def respond(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Message:
        """A hello is for all of them, a refusal and every other request for those it names."""
        kind = facts.get("kind")
        if kind == "hello":
            return {}, {"sites": [self._one(site, {}, facts)[1] for site in self.sites.values()]}
        if kind == "refused":
            named = self.sites.get(str(facts.get("site")))
            for site in [named] if named else self.sites.values():
                self._one(site, {}, facts)
            return {}, {}
        if kind != KIND:
            raise FedkinError("this machine has several sites: a request must name them")
        answers = list[Message]()
        for name, given, asked in requests_of(tensors, facts):
            if name not in self.sites or asked.get("kind") == "hello":
                answers.append(({}, {"error": "there is no such site here", "name": name}))
            else:
                answers.append(self._one(self.sites[name], given, asked))
        return tied(answers)

    def _one(self, site: SiteWorker, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Message:
        """One site's answer; what goes wrong there does not touch the others."""
        try:
            found = answered(site, tensors, facts)
        except Exception as error:
            warner(site.say)(f"'{site.name}' could not answer: {type(error).__name__}: {error}")
            # an error's text may quote data, which must not reach the server
            found = {}, {"error": type(error).__name__, "name": site.name}
        if site.refused is not None and self._told.get(site.name) != site.refused:
            warner(site.say)(f"'{site.name}' cannot take part: {site.refused}")
        self._told[site.name] = site.refused
        return found


def site_files(folder: Path, machine: str) -> dict[str, Path]:
    """The data file of every site by the site's name."""
    check_name(machine)
    if not folder.is_dir():
        raise FedkinError(f"there is no folder {folder}")
    paths = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in FILES]
    if not 0 < len(paths) <= MOST_HOSTED:
        raise FedkinError(
            f"{folder} has {len(paths)} files that are .csv, .parquet or .npz: put one for each "
            f"site there, at most {MOST_HOSTED}"
        )
    found: dict[str, Path] = {}
    for path in paths:
        name = f"{machine}.{path.stem}"
        check_name(name)
        if name in found:
            raise FedkinError(f"{found[name]} and {path} would both be site '{name}'")
        found[name] = path.resolve()
    return found


def asked_once(agree: Callable[[list[str]], bool]) -> Callable[[list[str]], bool]:
    """Ask the people of a machine once for all sites of which the same is asked."""
    known: dict[tuple[str, ...], bool] = {}

    def agree_once(words: Sequence[str]) -> bool:
        about = tuple(words[1:])  # the first line names the site
        if about not in known:
            known[about] = agree(list(words))
        return known[about]

    return agree_once


def limits_of(path: Path, usual: SitePolicy) -> SitePolicy:
    """A site's own limits, in a .toml beside its file; the machine's where there is none."""
    own = path.with_suffix(".toml")
    return SitePolicy.read(own) if own.is_file() else usual


def make_machine(
    name: str,
    folder: Path,
    home: Path,
    device: str,
    say: Callable[[str], None],
    limits: SitePolicy,
    yes: bool,
    server: str,
) -> Machine:
    """The machine whose sites have their files in a folder; each has a folder under `home`."""
    sites: dict[str, SiteWorker] = {}
    asked: dict[str, Callable[[list[str]], bool]] = {}
    for site, path in site_files(folder, name).items():
        policy = limits_of(path, limits)
        agree = asked.setdefault(
            policy.model_dump_json(), asked_once(agree_by(policy, path, yes, say))
        )
        sites[site] = SiteWorker(site, path, home / site, device, say, None, policy, agree, server)
    return Machine(name, home, sites)


def to_check(
    name: str, data: Path | None, folder: Path | None, limits: SitePolicy
) -> list[tuple[str, Path, SitePolicy]]:
    """The sites that `fedkin join --check` is about, with their files and limits."""
    if data is not None:
        return [(name, data.resolve(), limits)]
    assert folder is not None
    return [
        (site, path, limits_of(path, limits)) for site, path in site_files(folder, name).items()
    ]
