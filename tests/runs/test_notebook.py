"""A real notebook: progress while a run trains, and what runs show of themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CELLS = (
    """
import fedkin
from fedkin.models import build
data = fedkin.load(fedkin.DataConfig(name="linear", num_clients=3, samples=20), seed=0)
problem = fedkin.Problem(build("linear", data.input_shape, 1), data)
run = fedkin.train(problem, "fedavg", rounds=5)
""",
    "run",
    "run.plot()",
    """
fedkin.compare(["local", "fedavg"], problem, rounds=2, progress=False)
""",
)


@pytest.mark.slow
def test_a_notebook_shows_progress_tables_and_pictures(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    client = nbclient.NotebookClient(
        notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**os.environ})
    trained, shown, plotted, compared = (
        [output.get("data", {}) for output in cell.outputs] for cell in notebook.cells
    )
    assert len(trained) == 1  # one bar, drawn over itself
    assert '<progress value="5" max="5">' in trained[0]["text/html"]
    assert "Run fedavg: 3 clients, 5 rounds" in shown[0]["text/html"]
    assert plotted[0]["image/png"].startswith("iVBOR")
    assert "<progress" not in compared[0]["text/html"]
    assert "<table" in compared[0]["text/html"]
