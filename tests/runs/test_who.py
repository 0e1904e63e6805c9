"""Who helps whom: the table, the file and the picture."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedkin.errors import FedkinError
from fedkin.methods import Perm
from fedkin.runs.train import train
from fedkin.runs.who import (
    draw_mixing,
    like_beside_like,
    read_mixing,
    read_sharing,
    sharing_summary,
    who_helps,
    write_mixing,
)
from tests.helpers import least_squares

NAMES = ("north", "south", "7")
ALPHA = torch.tensor([[0.6, 0.0, 0.4], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)


def mixed_groups(clients=12, groups=3, seed=0):
    """Weights inside groups of equal size whose members are scattered, and who is in which."""
    random = np.random.default_rng(seed)
    group = random.permutation(clients) % groups
    alpha = random.uniform(0.5, 1, (clients, clients)) * (group[:, None] == group)
    return torch.from_numpy(alpha / alpha.sum(1, keepdims=True)), group


def test_the_table_lists_helpers_heaviest_first_and_nobody_without_weight():
    table = who_helps(ALPHA, NAMES, 0)
    assert table["client"].tolist() == ["north", "7"]
    assert table["weight"].tolist() == [0.6, 0.4]
    assert who_helps(ALPHA, NAMES, 1)["client"].tolist() == ["south"]
    assert who_helps(ALPHA, NAMES, 2)["client"].tolist() == ["7", "north", "south"]


def test_what_is_written_is_read_back(tmp_path):
    alpha, _ = mixed_groups()
    names = [f"site, {i}" for i in range(12)]
    write_mixing(tmp_path, alpha, names)
    again, read_names = read_mixing(tmp_path)
    torch.testing.assert_close(again, alpha, rtol=1e-14, atol=0)
    assert list(read_names) == names
    assert Image.open(tmp_path / "who_helps_whom.png").size[0] > 500


def test_a_folder_without_weights_says_which_methods_have_them(tmp_path):
    with pytest.raises(FedkinError, match="perm and its forms"):
        read_mixing(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_groups_stand_side_by_side_in_the_picture(seed):
    alpha, group = mixed_groups(seed=seed)
    ordered = group[like_beside_like(alpha)]
    assert (np.diff(ordered) != 0).sum() == 2


@pytest.mark.parametrize("clients", [1, 2, 3, 70])
def test_any_number_of_clients_can_be_drawn(clients, tmp_path):
    alpha = torch.full((clients, clients), 1 / clients)
    assert sorted(like_beside_like(alpha)) == list(range(clients))
    draw_mixing(tmp_path / "map.png", alpha, [str(i) for i in range(clients)])
    assert (tmp_path / "map.png").stat().st_size > 0


def test_a_run_leaves_its_weights_behind(tmp_path):
    run = train(least_squares(), Perm(warm_up=0), folder=tmp_path / "run", rounds=3, baseline=False)
    alpha, names = read_mixing(tmp_path / "run")
    torch.testing.assert_close(alpha, run.mixing)
    assert names == ("0", "1", "2", "3")
    assert (tmp_path / "run" / "who_helps_whom.png").exists()


def test_the_command_tells_the_rates_of_those_who_help(tmp_path, fedkin):
    write_mixing(tmp_path, ALPHA, NAMES)
    assert "rate" not in fedkin("who", tmp_path, "--client", "north").out
    (tmp_path / "rates.csv").write_text("client,0\nnorth,1.0\nsouth,0.5\n7,0.25\n")
    said = fedkin("who", tmp_path, "--client", "north").out
    rows = [[word for word in line.split() if word.isascii()] for line in said.splitlines()]
    assert ["north", "60.0%", "1"] in rows
    assert ["7", "40.0%", "0.25"] in rows


def test_an_unknown_client_is_refused_and_never_another_one(tmp_path, fedkin):
    names = [str(i) for i in range(1, 62) if i != 54]
    write_mixing(tmp_path, torch.eye(60, dtype=torch.float64), names)
    said = fedkin("who", tmp_path, "--client", "54")
    assert said.code == 2
    assert "no client '54'" in said.err
    assert "'53' and '55'" in said.err
    assert "client 55 learns from" in fedkin("who", tmp_path, "--client", "55").out
    assert "client 55 learns from" in fedkin("who", tmp_path, "--client-number", "53").out
    assert fedkin("who", tmp_path, "--client-number", "60").code == 2
    assert fedkin("who", tmp_path).code == 2


def test_the_command_says_how_widely_a_client_shares_and_how_sure_that_is(tmp_path, fedkin):
    write_mixing(tmp_path, ALPHA, NAMES)
    table = (
        "client,lam_rel,home_steps,sure\nnorth,0.5,10.0,0.97\nsouth,0.0,0.0,0.6\n7,inf,0.0,0.8\n"
    )
    (tmp_path / "sharing.csv").write_text(table)
    said = fedkin("who", tmp_path, "--client", "north").out
    assert "shares with lam_rel 0.5, then 10 steps at home: better than alone, 97% sure" in said
    assert "trains alone" in fedkin("who", tmp_path, "--client", "south").out
    assert (
        "one model for all: better than alone, 80%" in fedkin("who", tmp_path, "--client", "7").out
    )
    assert "lam_rel 0.5: 1" in sharing_summary(read_sharing(tmp_path))


def test_of_very_many_clients_the_command_reads_pairs(tmp_path, fedkin):
    alpha = ALPHA.clone()
    alpha[1] = 0  # south uses the one model for all: no weights of its own
    write_mixing(tmp_path, alpha.to_sparse(), NAMES)
    (tmp_path / "sharing.csv").write_text(
        "client,lam_rel,home_steps,sure\nnorth,1.0,0.0,0.9\nsouth,inf,0.0,0.6\n7,1.0,0.0,0.8\n"
    )
    lines = (tmp_path / "helpers.csv").read_text().split()
    assert lines == [
        "client,helper,weight",
        "north,north,0.6", "north,7,0.4", "7,north,0.25", "7,south,0.25", "7,7,0.5",
    ]  # fmt: skip
    said = fedkin("who", tmp_path, "--client", "7").out
    shares = [word for word in said.split() if word in (*NAMES, "50.0%", "25.0%")]
    assert shares == ["7", "7", "50.0%", "north", "25.0%", "south", "25.0%"]
    assert "the one model for all" in fedkin("who", tmp_path, "--client", "south").out

    (tmp_path / "helpers.csv").write_text("client,helper,weight\nnorth,east,1\n")
    said = fedkin("who", tmp_path, "--client", "north")
    assert said.code == 2
    assert "it names clients that sharing.csv does not" in said.err
