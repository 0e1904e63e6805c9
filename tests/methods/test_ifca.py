"""IFCA against a round by hand, FedAvg, and planted clusters."""

import torch
from sklearn.metrics import adjusted_rand_score

from fedkin.core.faults import Faults
from fedkin.methods import IFCA, FedAvg
from fedkin.runs.evaluation import score
from tests.helpers import federation, least_squares, personal_models, quadratic, run
from tests.methods.truth import column, planted, planted_digits

# f_i = (v - y_i)^2/2: two clients near 1, one at -1
XS, YS = [1.0, 1.0, 1.0], [1.0, 1.2, -1.0]


def start_at(method, fed, *models):
    state = method.init(fed)
    state.models = column(*models)
    fed.begin_round(1)
    return state


def test_a_round_by_hand():
    method, fed = IFCA(lr=0.1, local_steps=2, clusters=3), federation(quadratic(XS, YS))
    state = start_at(method, fed, 0.5, -0.3, 9.0)
    method.round(fed, state)

    def trained(v, y):
        for _ in range(2):
            v = v - 0.1 * (v - y)
        return v

    # clients 0 and 1 are nearest to 0.5, client 2 to -0.3, nobody to 9
    expected = column((trained(0.5, 1.0) + trained(0.5, 1.2)) / 2, trained(-0.3, -1.0), 9.0)
    torch.testing.assert_close(state.models, expected)
    assert fed.records["cluster"].tolist() == [0, 0, 1]
    personal = personal_models(method, fed, state)
    torch.testing.assert_close(personal, expected[[0, 0, 1]])


def test_the_models_are_all_sent_and_one_comes_back():
    fed = federation(quadratic(XS, YS))
    run(IFCA(clusters=3), fed, 1)
    assert fed.accounts.column("bytes_down").tolist() == [3 * 8] * 3
    assert fed.accounts.column("bytes_up").tolist() == [8 + 8] * 3  # the model and its number


def test_one_cluster_that_starts_at_the_initial_model_is_fedavg():
    options = {"batch_size": 3, "reshuffle": False}
    a, b = (federation(least_squares(**options), fraction=0.5) for _ in range(2))
    ours, theirs = run(IFCA(lr=0.05, clusters=1, spread=0.0), a, 5), run(FedAvg(lr=0.05), b, 5)
    torch.testing.assert_close(ours.models[0], theirs.x)


def test_clients_that_do_not_answer_keep_their_cluster():
    method, fed = IFCA(lr=0.1, clusters=2), federation(quadratic(XS, YS))
    state = start_at(method, fed, 0.5, -0.3)
    method.round(fed, state)
    state.models, models = -state.models, -state.models  # everybody would choose otherwise now
    fed.faults = Faults(nan=1.0)
    fed.begin_round(2)
    method.round(fed, state)
    assert state.cluster.tolist() == [0, 0, 1]
    assert torch.equal(state.models, models)


def test_it_recovers_three_planted_clusters():
    """From random starts two clusters may share a model for ever: the best of five runs counts."""
    problem, truth = planted()
    method, losses, found = IFCA(lr=0.05, local_steps=5, clusters=3), [], []
    for seed in range(5):
        fed = federation(problem, seed=seed)
        state = run(method, fed, 30)
        scores = score(fed, method.personal(fed, state), "train")
        losses.append(scores.overall(scores.loss))
        found.append(method.results(state)["cluster"])
    assert adjusted_rand_score(truth, found[losses.index(min(losses))]) == 1.0


def test_it_recovers_clients_that_permute_their_labels_alike():
    problem, truth = planted_digits()
    state = run(IFCA(lr=0.05, clusters=3), federation(problem), 8)
    assert adjusted_rand_score(truth, state.cluster) == 1.0
