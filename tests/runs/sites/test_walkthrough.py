"""The commands of docs/guides/flower.md, as people at three clinics would type them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedkin.data.site import load_site
from fedkin.engines.flower.processes import free_port
from fedkin.engines.flower.store import Store
from fedkin.runs.sites.plan import Plan, read_serve_config
from tests.runs.sites.world import NAMES, Process, Recorder, all_ended, digits, fedkin, site

DOCS = Path(__file__).parents[3] / "docs" / "guides" / "flower.md"


def documented_config(folder: Path) -> Path:
    """The config that the docs show, with fewer rounds."""
    found = re.search(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    path = folder / "config.toml"
    path.write_text(found[1].replace("rounds = 50", "rounds = 3"))
    return path


def write_table(path: Path, seed: int, **changes: object) -> pd.DataFrame:
    """Patients with unmistakable names and numbers."""
    rng = np.random.default_rng(seed)
    age, bmi = rng.normal(50, 15, 60).round(9), rng.normal(25, 4, 60).round(9)
    sick = np.where(age / 15 + bmi / 4 + rng.normal(size=60) > 9.6, "yes", "no")
    names = [f"Patient-{seed}-{i}" for i in range(60)]
    sex = rng.choice(["f", "m"], 60)
    table = pd.DataFrame({"name": names, "age": age, "bmi": bmi, "sex": sex, "outcome": sick})
    table.assign(**changes).to_csv(path, index=False)
    return table


def leaks(table: pd.DataFrame, sent: bytes) -> list[str | bytes]:
    """Which of a table's values are among the bytes, as text or as numbers of either width."""
    pairs = table[["age", "bmi"]].to_numpy()
    found: list[str | bytes] = [name for name in table["name"] if name.encode() in sent]
    for age, bmi in pairs:
        numbers = [np.array([age, bmi], width).tobytes() for width in (np.float32, np.float64)]
        found += [text for text in (digits(age), digits(bmi), *numbers) if text in sent]
    return found


def model_inputs(config_path: Path, path: Path) -> np.ndarray:
    """A site's samples as its models see them, to train and to test."""
    config, agreement = read_serve_config(config_path)
    shared = config.data.model_dump(exclude_none=True)
    data = load_site(path, path.stem, shared, agreement, config.seed)
    return np.concatenate([part[0][0].numpy() for part in (data.train, data.test)])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_clinics_train_and_strangers_are_told_why_they_cannot(tmp_path: Path):
    tables = {name: write_table(tmp_path / f"{name}.csv", i) for i, name in enumerate(NAMES)}
    bad = write_table(tmp_path / "bad.csv", 7, outcome="unheard-of")
    run, port = tmp_path / "run", free_port()
    begin = ["serve", documented_config(tmp_path), "--clients", 3, "--out", run, "--port", port]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        processes.append(server)
        server.says("waiting for 3 sites")
        ours, theirs = Recorder(f"127.0.0.1:{port}"), Recorder(f"127.0.0.1:{port}")

        def join(name: str, file: str, through: Recorder, home: str = "") -> Process:
            where = ("--home", tmp_path / home) if home else ()
            allowed = ("--columns", "age,bmi,sex", "--target", "outcome", *where)
            process = site(tmp_path, name, tmp_path / f"{file}.csv", through.address, *allowed)
            processes.append(process)
            return process

        first = join(NAMES[0], NAMES[0], ours)
        misfit = join("clinic-x", "bad", theirs)
        server.says(f"site '{NAMES[0]}' is here")
        namesake = join(NAMES[0], NAMES[1], theirs, "elsewhere")
        assert [misfit.ends(), namesake.ends()] == [2, 2]
        others = [join(name, name, theirs) for name in NAMES[1:]]
        assert server.ends() == 0, server.text()
        assert [process.ends() for process in (first, *others)] == [0, 0, 0]
        ours.close()
        theirs.close()
    assert "'clinic-x' cannot take part: unknown class 'unheard-of'" in misfit.text()
    assert (
        f"another site that is connected is called '{NAMES[0]}'"
        in (tmp_path / f"{NAMES[0]}.log").read_text()
    )
    assert "Traceback" not in misfit.text() + namesake.text() + server.text()
    assert "site 'clinic-x' cannot take part: its data do not fit" in server.text()
    for text in (theirs.up, server.text().encode()):
        assert b"unheard-of" not in text  # a value of the data, though it is a wrong one
        assert str(tmp_path / "bad.csv").encode() not in text

    assert sorted(path.name for path in (run / "models").iterdir()) == ["global.safetensors"]
    for name in NAMES:
        assert (tmp_path / name / "model.safetensors").exists()
    memory = tmp_path / NAMES[0] / "memory" / Plan.read(run).experiment / "method"
    kept = Store(memory).now().answer[0]
    assert kept["dx"].numpy().tobytes() in ours.up  # what was recorded can be read
    for row in model_inputs(tmp_path / "config.toml", tmp_path / f"{NAMES[0]}.csv"):
        assert row[:2].tobytes() not in ours.up
    assert not leaks(tables[NAMES[0]], ours.up)
    assert not leaks(tables[NAMES[1]], theirs.up)
    assert not leaks(bad, theirs.up)
