"""What the commands over Flower have in common."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from fedkin.errors import FedkinError
from fedkin.runs.limits import LONGEST_WAIT

Certs = Annotated[Path | None, typer.Option(help="folder of certificates: see `fedkin certs`")]
Patience = Annotated[
    float, typer.Option(min=0, max=LONGEST_WAIT, help="seconds to wait for the others to connect")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="allow plain connections beyond loopback")
]
LogLevel = Annotated[
    str, typer.Option(help="what log files take: debug (every request), info, warning or error")
]


def need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise FedkinError("this needs Flower: pip install 'fedkin[flower]'")
