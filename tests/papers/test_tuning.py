"""Options chosen on validation data before the runs that count."""

import json
from threading import Event
from types import SimpleNamespace

from fedkin.papers import tuning
from fedkin.papers.claims import MOST_SEEDS
from fedkin.papers.item import Line
from fedkin.papers.tuning import CHOSEN, choices, tuned
from fedkin.runs.config import read_config
from tests.papers.helpers import panel


def test_the_value_that_is_best_on_held_back_samples_is_chosen_once(tmp_path):
    lines = (Line("FedAvg", "fedavg", {"local_steps": 5}, tune={"lr": (1e-6, 0.1)}),
             Line("plain", "fedavg", {"lr": 0.02}))  # fmt: skip

    def choose():
        return tuned(panel(lines=lines), tmp_path, lambda config, data: config.to_toml(),
                     lambda label: None, Event()).lines  # fmt: skip

    first, second = choose()
    assert first.options == {"local_steps": 5, "lr": 0.1}
    assert not first.tune
    assert second == lines[1]
    place = tmp_path / "digits" / "fedavg" / CHOSEN
    facts = json.loads(place.read_text())
    assert facts["accuracy"]["0.1"] > facts["accuracy"]["1e-06"]
    (tried,) = (tmp_path / "digits" / "fedavg").glob("tune-lr=0.1/*/config.toml")
    assert read_config(tried).data.validation_fraction > 0
    assert not (tried.parent / "checkpoint").exists()  # nor models: nobody needs them any more
    assert [model.stem for model in (tried.parent / "models").glob("*.safetensors")] == ["global"]
    place.write_text(json.dumps({**facts, "value": 1e-6}))  # kept: it is not chosen again
    assert choose()[0].options["lr"] == 1e-6
    assert choices(panel(lines=lines), tmp_path) == {"FedAvg": "lr = 1e-06"}


def test_choices_are_made_after_few_rounds_of_a_long_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_ROUNDS", 2)
    line = Line("FedAvg", "fedavg", tune={"lr": (0.1,)})
    tuned(panel(lines=(line,)), tmp_path, lambda config, data: config.to_toml(),
          lambda label: None, Event())  # fmt: skip
    (tried,) = (tmp_path / "digits" / "fedavg").glob("tune-lr=0.1/*/config.toml")
    assert (panel().rounds, read_config(tried).rounds) == (4, 2)


def test_no_test_sample_and_no_seed_that_is_reported_has_a_part_in_it(tmp_path, monkeypatch):
    looked_at = []

    def score(path, part):
        looked_at.append((part, read_config(path / "config.toml").seed))
        return SimpleNamespace(accuracy=0.5)

    monkeypatch.setattr(tuning, "score_global", score)
    line = Line("FedAvg", "fedavg", tune={"lr": (0.1, 0.2)})
    tuned(panel(lines=(line,)), tmp_path, lambda config, data: config.to_toml(),
          lambda label: None, Event())  # fmt: skip
    assert [part for part, _ in looked_at] == ["validation"] * 2
    assert all(seed >= MOST_SEEDS for _, seed in looked_at)
