"""`fedkin doctor`: what this installation has, and what it lacks."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

import torch
import typer

from fedkin.command.screen import console, plain_table, say
from fedkin.data.places import REMOTE, cache_dir, on_disk, roots
from fedkin.runs.config import make_config
from fedkin.runs.provenance import RUNS
from fedkin.runs.training import Trainer
from fedkin.version import __version__

# extras that only developers need
FOR_DEVELOPERS = ("test", "docs")
USES = {
    "flower": "runs over sites that keep their data (fedkin serve, fedkin join)",
    "hf": "data sets of the Hugging Face hub",
    "onnx": "exporting models as ONNX",
    "privacy": "differential privacy (--dp-epsilon)",
    "tensorboard": "curves in TensorBoard",
}
SMALL = {
    "method": "fedavg-local",
    "rounds": 1,
    "strategy": "stacked",
    "data": {"name": "digits", "num_clients": 3},
}
# a requirement such as `flwr==1.41.0; extra == "flower"`
REQUIREMENT = re.compile(r"(?P<package>[\w.-]+)[^;]*(;.*extra == [\"'](?P<extra>[\w-]+)[\"'])?")


@dataclass(frozen=True)
class Finding:
    """One line of the table, and a sentence where something is missing."""

    about: str
    found: str
    advice: str = ""
    broken: bool = False  # nothing works without it


def doctor(data_dir: str | None) -> None:
    """Print what was found, then a sentence for each thing missing; exit code 1 if broken."""
    findings = list(examine(data_dir))
    console.print(plain_table(("", "found"), [[f.about, f.found] for f in findings]))
    for finding in findings:
        if finding.advice:
            say(f"{'broken' if finding.broken else 'missing'}: {finding.advice}")
    if any(finding.broken for finding in findings):
        raise typer.Exit(1)
    say("fedkin works here: a model was trained for each of 3 clients")


def examine(data_dir: str | None) -> Iterator[Finding]:
    """All checks, in the order in which they are printed."""
    yield Finding("fedkin", __version__)
    yield Finding("python", f"{platform.python_version()} on {platform.system()}")
    yield from packages()
    yield Finding("cores", f"{_cores()}, of which torch uses {torch.get_num_threads()}")
    yield accelerator()
    yield compiler()
    yield from data_sets(data_dir)
    yield run_folders()
    yield training()


def packages() -> Iterator[Finding]:
    """The packages that fedkin needs and those of its extras, from its installed metadata."""
    try:
        listed = metadata.requires("fedkin") or []
    except metadata.PackageNotFoundError:
        advice = "fedkin was not installed (it runs from its sources): pip install . installs it"
        yield Finding("packages", "unknown", advice)
        return
    needed: dict[str, list[str]] = {}
    for requirement in listed:
        match = REQUIREMENT.match(requirement)
        if match and match["package"] != "fedkin":
            needed.setdefault(match["extra"] or "", []).append(match["package"])
    for package in needed.pop("", []):
        version = _version(package)
        advice = "" if version else f"{package} is not installed: pip install --upgrade fedkin"
        yield Finding(package, version or "not installed", advice, broken=not version)
    for extra, wanted in needed.items():
        if extra not in FOR_DEVELOPERS:
            yield extra_finding(extra, wanted)


def extra_finding(extra: str, wanted: list[str]) -> Finding:
    """Whether all packages of an extra are installed."""
    versions = {package: _version(package) for package in wanted}
    if all(versions.values()):
        return Finding(f"extra {extra}", ", ".join(f"{p} {v}" for p, v in versions.items()))
    purpose = f", for {USES[extra]}" if extra in USES else ""
    advice = f"the extra {extra}{purpose}: pip install 'fedkin[{extra}]'"
    return Finding(f"extra {extra}", "not installed", advice)


def accelerator() -> Finding:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    return Finding("accelerator", names or "none, so models are trained on the processor")


def compiler() -> Finding:
    """A C++ compiler, which only torch.compile needs, as on an exported model."""
    path = shutil.which(os.environ.get("CXX", "g++"))
    return Finding("C++ compiler", path or "none, and fedkin needs none (torch.compile does)")


def data_sets(data_dir: str | None) -> Iterator[Finding]:
    """Where the known data sets are. What is not on disk is downloaded when it is first used."""
    for folder in roots(data_dir):
        if not folder.is_dir():
            advice = f"the data folder {folder} (from --data-dir or FEDKIN_DATA) does not exist"
            yield Finding("data folder", str(folder), advice)
    absent = []
    for name in REMOTE:
        place = on_disk(name, data_dir)
        absent += [] if place else [name]
        yield Finding(f"data {name}", str(place or "not on disk"))
    if absent:
        advice = (
            f"data sets {', '.join(absent)}: the first run that names one downloads it to "
            f"{cache_dir()}, or put it into a folder and set FEDKIN_DATA to that folder"
        )
        yield Finding("data cache", str(cache_dir()), advice)


def run_folders() -> Finding:
    """Whether run folders can be made here."""
    here = RUNS.resolve()
    place = here if here.is_dir() else here.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free / 1e9
    except OSError as error:
        advice = f"run folders cannot be written to {here} ({error.strerror}): choose with --out"
        return Finding("run folders", f"{here}: {error.strerror}", advice)
    return Finding("run folders", f"{here}, {free:.1f} GB free")


def training() -> Finding:
    """Train on three clients with the digits of scikit-learn: what is installed works together."""
    try:
        config = make_config(SMALL)
        problem = config.make_problem(config.make_data())
        Trainer(problem, config.make_method(), config.settings()).run()
    except Exception as error:  # any failure is reported, and the other checks still run
        reason = f"{type(error).__name__}: {error}"
        advice = f"training fails ({reason}): install fedkin again in a new environment"
        return Finding("training", reason, advice, broken=True)
    return Finding("training", "works")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    """The cores this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
