"""Plans of visits: every wanted visit once, one visitor per client, no round too many."""

import numpy as np
import pytest
import torch

from fedkin.methods.shared.shuffling import cyclic, packed


def visits_of(plan):
    """How often each model visits each client in an epoch [N, N]."""
    n = plan.shape[1]
    counts = torch.zeros(n, n, dtype=torch.int64)
    for host in plan:
        going = host >= 0
        counts[torch.arange(n)[going], host[going]] += 1
        assert len(host[going].unique()) == going.sum(), "two models at one client"
    return counts


@pytest.mark.parametrize("clients", [1, 2, 5, 12, 40])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_every_wanted_visit_is_made_once_and_no_other(clients, density):
    for seed in range(5):
        random = np.random.default_rng(seed)
        wanted = torch.from_numpy(random.random((clients, clients)) < density)
        wanted.fill_diagonal_(True)
        for draw in (cyclic, packed):
            assert torch.equal(visits_of(draw(wanted, random)), wanted.long())


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_a_packed_epoch_is_as_long_as_the_busiest_has_visits(density):
    for seed in range(5):
        random = np.random.default_rng(seed)
        wanted = torch.from_numpy(random.random((15, 15)) < density).fill_diagonal_(True)
        assert len(packed(wanted, random)) == max(wanted.sum(0).max(), wanted.sum(1).max())


def test_a_cyclic_plan_is_the_papers():
    plan = cyclic(torch.ones(6, 6, dtype=torch.bool), np.random.default_rng(0))
    sigma = np.random.default_rng(0).permutation(6)
    for j in range(6):
        assert plan[j].tolist() == [sigma[(i + j) % 6] for i in range(6)]


def test_two_groups_take_a_group_s_size_of_rounds():
    wanted = torch.block_diag(*[torch.ones(5, 5)] * 2).bool()
    assert len(packed(wanted, np.random.default_rng(0))) == 5
    assert len(cyclic(wanted, np.random.default_rng(0))) == 10


def test_plans_differ_from_epoch_to_epoch():
    wanted = torch.ones(8, 8, dtype=torch.bool)
    random = np.random.default_rng(0)
    for draw in (cyclic, packed):
        assert not torch.equal(draw(wanted, random), draw(wanted, random))
