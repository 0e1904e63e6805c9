"""Service files, Dockerfile and compose file say what the commands understand."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fedkin.command.cli import app

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMANDS: Any = typer.main.get_command(app)
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD", "ENV", "ARG"}


def understood(words: list[str]) -> None:
    """A command line whose command and options there are."""
    command = COMMANDS.get_command(None, words[0])
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    given = {word for word in words[1:] if word.startswith("--")}
    assert given
    assert given <= known, given - known


@pytest.mark.parametrize("name", ["fedkin-server.service", "fedkin-site.service"])
def test_service_files_are_read_and_their_commands_understood(name: str):
    unit = ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / name)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    start = unit["Service"]["ExecStart"]
    lines = re.findall(r"fedkin ((?:serve|join) [^;']+)", start)
    assert lines
    for line in lines:
        understood(line.split())
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", DEPLOY / name], capture_output=True, text=True
        )
        assert "Unknown" not in done.stderr


def test_the_compose_file_is_read_and_its_commands_understood():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "site"}
    for service in services.values():
        understood(service["command"])
        assert (DEPLOY.parent / service["build"]["dockerfile"]).is_file()


def test_the_dockerfile_copies_what_there_is():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    steps = [line.split() for line in lines if line and not line.startswith("#")]
    assert {step[0] for step in steps} <= INSTRUCTIONS
    for step in steps:
        if step[0] == "COPY":
            assert all((DEPLOY.parent / source).exists() for source in step[1:-1])
