"""Plans of visits: every wanted visit once, one visitor per client, no round too many."""

import numpy as np
import pytest
import torch

from fedkin.methods.shared.shuffling import cyclic, first_free, in_proportion, packed, together


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


def test_visits_are_in_proportion_to_weights_on_average_and_always_as_many():
    alpha = torch.tensor([[0.5, 0.3, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0] * 4, [0.25] * 4])
    random, total = np.random.default_rng(0), torch.zeros(4, 4)
    for _ in range(2000):
        counts = in_proportion(alpha, 3, random)
        assert counts.sum(1).tolist() == [3, 3, 0, 3]
        assert ((counts - 3 * alpha).abs() < 1).all()  # rounded up or down, never further
        total += counts
    torch.testing.assert_close(total / 2000, 3 * alpha, rtol=0, atol=0.05)


@pytest.mark.parametrize("plan_of", [packed, first_free])
def test_visits_wanted_several_times_are_made_so_often(plan_of):
    random = np.random.default_rng(1)
    wanted = torch.from_numpy(random.integers(0, 3, (9, 9)))
    plan = plan_of(wanted, random)
    busiest = max(int(wanted.sum(0).max()), int(wanted.sum(1).max()))
    assert busiest <= len(plan) <= (busiest if plan_of is packed else 2 * busiest)
    made = torch.zeros(9, 9, dtype=torch.int64)
    for hosts in plan:
        going = hosts >= 0
        assert len(hosts[going].unique()) == going.sum()
        made[torch.arange(9)[going], hosts[going]] += 1
    assert torch.equal(made, wanted)


def test_who_shares_rounds_with_whom_differs_from_plan_to_plan():
    # p_t(i) is the host of model i in round t; how p_s follows from p_t does not depend on the
    # names of hosts or the order of rounds, so that only an order of models can change it
    wanted, found, by_host = torch.ones(5, 5, dtype=torch.bool), set(), set()
    for seed in range(12):
        rounds = packed(wanted, np.random.default_rng(seed)).tolist()
        moves = [tuple(p.index(host) for host in q) for p in rounds for q in rounds]
        found.add(tuple(sorted(moves)))
        # where those go whom a host had before: here the names of models make no difference
        leave = [tuple(q[p.index(host)] for host in range(5)) for p in rounds for q in rounds]
        by_host.add(tuple(sorted(leave)))
    assert len(found) > 1
    assert len(by_host) > 1


def test_visits_that_take_what_is_free_come_in_a_random_order():
    # who is under way together, whatever the order of rounds
    wanted = torch.ones(4, 4, dtype=torch.bool)
    plans = [first_free(wanted, np.random.default_rng(seed)).tolist() for seed in range(6)]
    assert len({tuple(sorted(map(tuple, plan))) for plan in plans}) > 1


@pytest.mark.parametrize("draw", [packed, first_free])
def test_the_rounds_of_an_epoch_come_in_any_order(draw):
    # model 0 goes everywhere, the others stay at home: when they do is a matter of chance
    n, seeds = 4, 400
    wanted = torch.eye(n, dtype=torch.bool)
    wanted[0] = True
    times = np.zeros((n, n))
    for seed in range(seeds):
        plan = draw(wanted, np.random.default_rng(seed)).numpy()
        for model in range(1, n):
            times[model, np.flatnonzero(plan[:, model] == model)] += 1
    expected = seeds / n
    chi2 = ((times[1:] - expected) ** 2 / expected).sum(1)
    assert chi2.max() < 25  # of 3 degrees of freedom: a chance of 1 in 50,000


def test_lists_of_visits_side_by_side_have_each_its_rounds_in_a_random_order():
    rounds, seeds = 4, 400
    plans = [torch.tensor([[0, 5, 7], [2, 6, 7]]), torch.tensor([[0, 8, 9]])]
    times = np.zeros((2, rounds))
    for seed in range(seeds):
        found = together(plans, rounds, np.random.default_rng(seed)).tolist()
        assert [row[0] for row in found] == [0, 0, 1]
        assert [row[2:] for row in found] == [[5, 7], [6, 7], [8, 9]]
        assert found[0][1] != found[1][1]  # what was in different rounds still is
        times[[0, 1], [found[0][1], found[2][1]]] += 1
    chi2 = ((times - seeds / rounds) ** 2 / (seeds / rounds)).sum(1)
    assert chi2.max() < 25  # of 3 degrees of freedom: a chance of 1 in 50,000
