"""`fedkin doctor` and `fedkin --version`: what is installed, what is missing, what is broken."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from fedkin.command import doctor
from fedkin.data.places import REMOTE, on_disk
from fedkin.version import __version__
from tests.run_command import Fedkin


def test_the_version_is_the_packages(fedkin: Fedkin) -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert f'\nversion = "{__version__}"\n' in pyproject.read_text()
    assert fedkin("--version").out == f"fedkin {__version__}\n"


def test_python_m_fedkin_is_the_command() -> None:
    command = [sys.executable, "-m", "fedkin", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == f"fedkin {__version__}\n"


def test_a_healthy_installation_is_described_and_ends_with_zero(fedkin: Fedkin) -> None:
    said = fedkin("doctor")
    assert (said.code, said.err) == (0, "")
    for fact in (__version__, torch.__version__, metadata.version("numpy"), *REMOTE):
        assert fact in said.out
    assert "broken:" not in said.out
    assert "fedkin works here" in said.out


def test_a_missing_extra_gets_a_sentence_and_is_no_failure(
    fedkin: Fedkin, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = metadata.version

    def version(name: str) -> str:
        if name == "flwr":
            raise metadata.PackageNotFoundError
        return found(name)

    monkeypatch.setattr(metadata, "version", version)
    said = fedkin("doctor")
    assert said.code == 0
    assert "missing: the extra flower" in said.out
    assert "pip install 'fedkin[flower]'" in said.out


def test_what_training_needs_and_cannot_have_is_a_failure(
    fedkin: Fedkin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("numpy is not available")

    monkeypatch.setattr(doctor, "make_config", broken)
    said = fedkin("doctor")
    assert said.code == 1
    assert "broken: training fails (RuntimeError: numpy is not available)" in said.out
    assert "fedkin works here" not in said.out


def test_a_required_package_that_is_gone_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ["torch>=2", "no-such-thing>=1"])
    findings = {finding.about: finding for finding in doctor.packages()}
    assert not findings["torch"].broken
    assert findings["no-such-thing"].broken


def test_data_folders_that_are_not_there_are_named(fedkin: Fedkin, tmp_path: Path) -> None:
    said = fedkin("doctor", "--data-dir", tmp_path / "nowhere")
    assert said.code == 0
    assert f"missing: the data folder {tmp_path / 'nowhere'}" in said.out


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "MNIST"),
        ("fashion-mnist", "FashionMNIST"),
        ("cifar10", "cifar-10-batches-py"),
        ("cifar100", "cifar100"),
    ],
)
def test_data_sets_are_found_under_the_names_they_are_read_by(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDKIN_DATA", raising=False)
    (tmp_path / folder).mkdir()
    assert on_disk(name, str(tmp_path)) is None  # an empty folder holds no data set
    (tmp_path / folder / "file").touch()
    assert on_disk(name, str(tmp_path)) == tmp_path / folder
    assert [other for other in REMOTE if on_disk(other, str(tmp_path))] == [name]
