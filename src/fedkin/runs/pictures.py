"""Final tables of a run as csv and as pictures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from torch import Tensor

from fedkin.data.clients import ClientData
from fedkin.runs.cluster_map import draw_cluster_map
from fedkin.runs.who import SHARING, write_mixing


def write_results(folder: Path, results: dict[str, Tensor], data: ClientData) -> None:
    """Write a method's final tables, one csv each, clients by name, and their pictures."""
    for name, table in results.items():
        if name == "mixing":
            write_mixing(folder, table, data.names)
            continue
        frame = pd.DataFrame(table.cpu().numpy(), index=pd.Index(data.names, name="client"))
        frame.columns = pd.Index(SHARING) if name == "sharing" else frame.columns
        frame.to_csv(folder / f"{name}.csv")
    draw_cluster_map(folder)
