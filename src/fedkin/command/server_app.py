"""The ServerApp, for a SuperLink that was not started by `fedkin serve`.

Its folder is made with `fedkin serve --prepare` and named in the run's configuration:
`flwr run FOLDER/app NAME --run-config 'folder="FOLDER"'`.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkin.command.runs import finish
from fedkin.command.screen import say
from fedkin.engines.flower.private import (
    HttpGrid,
)
from fedkin.errors import FedkinError
from fedkin.runs.folder import RunFolder
from fedkin.runs.sites.plan import read_serve_config
from fedkin.runs.sites.served import make_trainer

app = ServerApp()
PATIENCE = 24 * 3600.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    if not isinstance(grid, HttpGrid):
        raise FedkinError("this app needs a SuperLink; simulate with `fedkin run` instead")
    folder = RunFolder.open(Path(str(context.run_config["folder"])).expanduser())
    config, _ = read_serve_config(folder.path / "config.toml")
    finish(make_trainer(grid, folder, config, False, PATIENCE, say), quiet=True)
