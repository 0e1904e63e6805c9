"""Examples held out of training: a fifth, never trained on, and the same everywhere."""

import torch

from fedkin.core.variants import HELD_OUT, hold_out
from fedkin.engines.lockstep import MergedProblem
from tests.helpers import federation, least_squares, quadratic
from tests.methods.test_perm import classification


def test_every_example_is_either_trained_on_or_held_out():
    problem = classification()
    held = problem.variant(HELD_OUT)
    for client, size in enumerate(problem.train.sizes.tolist()):
        parts = []
        for part in (held.train, held.validation):
            start = int(part.starts[client])
            parts.append(part.x[start : start + int(part.sizes[client])])
        assert len(parts[1]) == round(0.2 * size)
        start = int(problem.train.starts[client])
        whole = problem.train.x[start : start + size]
        both = torch.cat(parts)
        assert torch.equal(both.unique(dim=0), whole.unique(dim=0))
        assert len(both) == size


def test_gradients_are_those_of_the_examples_left():
    fed = federation(least_squares(samples=10, batch_size=8))
    held = fed.problem.variant(HELD_OUT)
    g = fed.map(slope, shared={"x": fed.initial_model()}, variant=HELD_OUT)["g"]
    for client in range(4):
        rows = slice(int(held.train.starts[client]), int(held.train.starts[client]) + 8)
        x, y = held.train.x[rows], held.train.y[rows]
        torch.testing.assert_close(g[client], -(x.T @ y) / 8)


def slope(client, x):
    return {"g": client.full_grad(x)}


def test_a_single_example_is_not_held_out():
    train, held = hold_out(quadratic([1.0, 2.0], [1.0, 2.0]).train, 1)
    assert train.sizes.tolist() == [1, 1]
    assert held.sizes.tolist() == [0, 0]


def test_a_client_holds_out_the_same_wherever_it_is():
    whole = classification()
    alone = whole.with_data(whole.data, "cpu")
    merged = MergedProblem([whole, alone]).variant(HELD_OUT)
    part, more = whole.variant(HELD_OUT).validation, merged.validation
    for client in range(5):
        for other in (client, client + 5):
            a, b = int(part.starts[client]), int(more.starts[other])
            n = int(part.sizes[client])
            assert torch.equal(part.x[a : a + n], more.x[b : b + n])


def test_batch_norms_keep_two_examples():
    train, _ = hold_out(classification().train, 30)
    assert (train.sizes >= torch.minimum(classification().train.sizes, torch.tensor(30))).all()
