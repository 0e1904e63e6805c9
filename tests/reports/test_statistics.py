"""Numbers worked out by hand from runs whose scores the tests choose."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedkin.errors import FedkinError
from fedkin.reports.statistics import (
    choose,
    cost_to,
    estimate,
    holm,
    paired,
    paired_p,
    summarise,
    worst_tenth,
)
from fedkin.runs.groups import Group, find_runs, group
from fedkin.runs.measures import ACCURACY
from tests.runs.folders import write_run


def groups_in(folder: Path) -> list[Group]:
    return group(find_runs([folder]))[0]


def test_an_interval_is_student_t_over_seeds_and_one_seed_has_none() -> None:
    # 0.6, 0.7, 0.8: s = 0.1, and t for 2 degrees of freedom at 97.5 % is 4.30265
    found = estimate([0.6, 0.7, 0.8])
    assert found is not None
    assert found.mean == pytest.approx(0.7)
    assert found.high is not None
    assert found.high - found.mean == pytest.approx(4.30265 * 0.1 / math.sqrt(3), rel=1e-5)
    one = estimate([0.6])
    assert one is not None
    assert (one.mean, one.low, one.high, one.count) == (0.6, None, None, 1)
    assert estimate([None, math.nan]) is None


def test_a_summary_is_what_the_clients_scores_say(tmp_path: Path) -> None:
    first = [[0.1] * 10, [0.2, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.8]]
    second = [[0.1] * 10, [0.3, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.7, 0.9]]
    alone = [0.5] * 10
    write_run(tmp_path / "a", "ditto", 0, first, alone, shared=[0.1, 0.3])
    write_run(tmp_path / "b", "ditto", 1, second, alone, shared=[0.1, 0.5])
    (found,) = summarise(groups_in(tmp_path))
    assert found.seeds == 2
    assert found.last.mean == pytest.approx(0.55)
    assert found.worst_tenth.mean == pytest.approx(0.25)
    assert found.percentiles[50] == pytest.approx(0.55)
    # deviations from 0.5: 0.3, 0.1, 0.1, 0.3 and six zeros; the second run is the first plus 0.1
    assert found.spread.mean == pytest.approx(math.sqrt(0.2 / 10))
    assert found.better_than_alone is not None
    assert found.better_than_alone.mean == pytest.approx((0.2 + 0.8) / 2)
    assert found.mean_gain is not None
    assert found.mean_gain.mean == pytest.approx(0.05)
    assert found.shared_model is not None
    assert found.shared_model.mean == pytest.approx(0.4)
    assert found.megabytes == pytest.approx(60)
    assert found.seconds == pytest.approx(10)
    assert found.gradients == 100


def test_the_best_round_is_chosen_on_validation_and_never_on_test(tmp_path: Path) -> None:
    # validation prefers the first evaluation, where the test score is worse
    write_run(tmp_path / "a", "fedavg", 0, [[0.4, 0.4], [0.9, 0.9]], validation=[0.8, 0.7])
    (found,) = summarise(groups_in(tmp_path))
    assert found.best is not None
    assert (found.best.mean, found.best_round) == (pytest.approx(0.4), 10)
    assert found.last.mean == pytest.approx(0.9)


def test_without_validation_there_is_the_last_round_only(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[0.9, 0.9], [0.4, 0.4]])
    (found,) = summarise(groups_in(tmp_path))
    assert found.best is None
    assert found.last.mean == pytest.approx(0.4)


def test_gains_without_a_baseline_come_from_a_local_run_on_the_same_clients(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[0.6, 0.4]])
    write_run(tmp_path / "b", "local", 0, [[0.5, 0.5]])
    write_run(tmp_path / "c", "fedavg", 1, [[0.9, 0.9]])
    write_run(tmp_path / "d", "local", 1, [[0.1, 0.1]], data="other clients")
    by_label = {s.label: s for s in summarise(groups_in(tmp_path))}
    gain = by_label["fedavg"].mean_gain
    assert gain is not None
    assert (gain.mean, gain.count) == (pytest.approx(0), 1)
    assert by_label["local"].mean_gain is None


def test_cost_to_a_target_is_a_median_in_which_seeds_that_never_get_there_count(
    tmp_path: Path,
) -> None:
    for seed, scores in enumerate(([0.5, 0.8, 0.9], [0.3, 0.5, 0.8], [0.1, 0.2, 0.3])):
        write_run(tmp_path / str(seed), "fedavg", seed, [[s, s] for s in scores])
    (one,) = groups_in(tmp_path)
    cost = cost_to(one, ACCURACY, 0.8)
    # reached after 20, 30 and never: the median seed needs 30 rounds
    assert (cost.rounds, cost.megabytes, cost.seconds, cost.gradients) == (30, 90, 15, 150)
    assert (cost.reached, cost.count) == (2, 3)
    assert cost_to(one, ACCURACY, 0.85).rounds == math.inf


def test_methods_are_compared_seed_by_seed_on_the_same_clients(tmp_path: Path) -> None:
    ends = {"a": [0.60, 0.70, 0.80], "b": [0.58, 0.66, 0.74]}
    for method, label in (("ditto", "a"), ("fedavg", "b")):
        for seed, end in enumerate(ends[label]):
            write_run(tmp_path / label / str(seed), method, seed, [[end, end]])
    write_run(tmp_path / "b" / "3", "fedavg", 3, [[0.1, 0.1]])
    (pair,) = paired(groups_in(tmp_path))
    # differences 0.02, 0.04, 0.06: t = 0.04 / (0.02 / sqrt(3)) = 3.4641, p = 0.0742 (2 degrees)
    assert (pair.first, pair.second, pair.seeds) == ("ditto", "fedavg", 3)
    assert pair.advantage is not None
    assert pair.advantage.mean == pytest.approx(0.04)
    assert pair.p == pytest.approx(0.07418, abs=1e-5)
    assert not pair.certain


def test_one_seed_makes_no_claim(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "ditto", 0, [[0.9, 0.9]])
    write_run(tmp_path / "b", "fedavg", 0, [[0.1, 0.1]])
    (pair,) = paired(groups_in(tmp_path))
    assert pair.seeds == 1
    assert pair.p is None
    assert not pair.certain


def test_differences_without_any_noise_are_not_tested() -> None:
    assert paired_p([0.1, 0.1]) is None
    assert paired_p([0.0, 0.0]) == 1.0


def test_holm_multiplies_the_smallest_most_and_never_falls() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [
        pytest.approx(0.03),
        None,
        pytest.approx(0.06),
        pytest.approx(0.06),
    ]


def test_where_only_losses_are_known_lower_is_better(tmp_path: Path) -> None:
    alone = [2.0, 2.0]
    write_run(tmp_path / "a", "ditto", 0, [[1.0, 3.0]], alone, score="loss")
    write_run(tmp_path / "b", "fedavg", 0, [[4.0, 4.0]], alone, score="loss")
    ditto, _ = summarise(groups_in(tmp_path))
    assert ditto.worst_tenth.mean == 3
    assert ditto.better_than_alone is not None
    assert ditto.better_than_alone.mean == 0.5
    (pair,) = paired(groups_in(tmp_path))
    assert pair.advantage is not None
    assert pair.advantage.mean == 2


def test_the_worst_tenth_has_at_least_one_client() -> None:
    import numpy as np

    assert worst_tenth(np.array([0.5, 0.2, 0.9]), ACCURACY) == 0.2
    assert worst_tenth(np.arange(20) / 20, ACCURACY) == pytest.approx(0.025)


def test_settings_are_chosen_on_validation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[0.9, 0.9]], validation=[0.5], lr=0.1)
    write_run(tmp_path / "b", "fedavg", 0, [[0.1, 0.1]], validation=[0.6], lr=0.01)
    write_run(tmp_path / "c", "local", 0, [[0.1, 0.1]])
    assert [g.label for g in choose(groups_in(tmp_path))] == ["fedavg lr=0.01", "local"]


def test_settings_are_not_chosen_without_validation(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [[0.9, 0.9]], lr=0.1)
    write_run(tmp_path / "b", "fedavg", 0, [[0.1, 0.1]], lr=0.01)
    with pytest.raises(FedkinError, match="--validation-fraction"):
        choose(groups_in(tmp_path))


def test_settings_that_diverged_for_a_seed_are_chosen_last(tmp_path: Path) -> None:
    for seed in (0, 1):
        for lr, score in ((1.0, 0.9), (0.1, 0.5)):
            write_run(
                tmp_path / f"{lr} {seed}", "fedavg", seed, [[score]] * 2, validation=[score] * 2,
                done=1 if lr == 1.0 and seed == 1 else 2, lr=lr,
            )  # fmt: skip
    assert [g.label for g in choose(groups_in(tmp_path))] == ["fedavg lr=0.1"]


def test_settings_are_chosen_for_each_data_set_anew(tmp_path: Path) -> None:
    for alpha, lr, held in ((0.1, 1, 0.3), (0.1, 2, 0.2), (9.0, 1, 0.8), (9.0, 2, 0.9)):
        run = write_run(tmp_path / f"{alpha} {lr}", "fedavg", 0, [[0.5]], validation=[held], lr=lr)
        config = (run / "config.toml").read_text()
        (run / "config.toml").write_text(config.replace("[data]", f"[data]\nalpha = {alpha}"))
    labels = [g.label for g in choose(groups_in(tmp_path))]
    assert labels == ["fedavg data.alpha=0.1 lr=1", "fedavg data.alpha=9.0 lr=2"]
