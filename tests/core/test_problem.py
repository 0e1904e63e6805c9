"""Problems: clients of very different sizes, refusals at the door."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedkin.core.client import Client
from fedkin.core.problem import Problem
from fedkin.data.clients import ClientData, Examples
from fedkin.errors import FedkinError
from fedkin.models import build
from tests.helpers import blobs, federation, quadratic


def full(client: Client, v: Tensor) -> dict[str, Tensor]:
    return {"g": client.full_grad(v), "f": client.full_loss(v), "n": client.n}


def uneven() -> ClientData:
    torch.manual_seed(0)
    sizes = [1, 10_000, 3, 700, 20]
    parts = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in sizes]
    return ClientData(Examples.of(parts), Examples.of(parts), 3)


@pytest.mark.parametrize(
    "strategy", ["native:5:1x1", "native:2:1x1", "vmap:5:1x1", "autograd:1:1x1"]
)
def test_clients_of_1_to_10000_samples_in_one_block_give_their_own_mean_gradients(
    strategy: str,
) -> None:
    data = uneven()
    model = build("logistic", (4,), 3)
    problem = Problem(model, data, l2=0.1, dtype=torch.float64)
    fed = federation(problem, strategy=strategy)
    v = torch.randn(problem.size, dtype=torch.float64)
    found = fed.map(full, shared={"v": v})
    for i in range(5):
        x, y = data.train[i]
        module = problem.module(v)
        value = nn.functional.cross_entropy(module(x.double()), y) + 0.05 * v @ v
        module.zero_grad()
        nn.functional.cross_entropy(module(x.double()), y).backward()
        slope = torch.cat([p.grad.reshape(-1) for p in module.parameters()]) + 0.1 * v
        torch.testing.assert_close(found["g"][i], slope, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found["f"][i, 0], value)


def one_pass(client: Client, v: Tensor) -> dict[str, Tensor]:
    """The mean over a whole pass of batches, each weighted by its own size."""
    total, steps = torch.zeros_like(v), client.steps(local_epochs=1)

    def add(total: Tensor) -> Tensor:
        batch = client.next_batch()
        sizes = torch.as_tensor(batch.sizes).reshape(-1, 1)
        return total + sizes * client.grad(v, batch)

    return {"g": client.repeat(steps, add, total) / client.n}


def test_a_reshuffled_pass_sees_every_sample_once() -> None:
    data = uneven()
    problem = Problem(
        build("logistic", (4,), 3), data, batch_size=7, reshuffle=True, dtype=torch.float64
    )
    fed = federation(problem, strategy="native:5:1x1")
    v = torch.randn(problem.size, dtype=torch.float64)
    torch.testing.assert_close(
        fed.map(one_pass, shared={"v": v})["g"], fed.map(full, shared={"v": v})["g"]
    )
    assert fed.accounts.column("samples").tolist() == [2 * n for n in (1, 10_000, 3, 700, 20)]


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.Linear(5, 2), "last layer needs 3 outputs"),
        (nn.Linear(6, 3), "cannot take inputs of shape"),
        (nn.ReLU(), "no trainable parameters"),
    ],
)
def test_models_that_do_not_fit_are_refused_with_a_sentence(
    module: nn.Module, sentence: str
) -> None:
    with pytest.raises(FedkinError, match=sentence):
        Problem(module, blobs())


def test_batch_norm_without_running_statistics_is_welcome() -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    Problem(nn.Sequential(nn.Linear(5, 4), norm, nn.Linear(4, 3)), blobs())


def test_frozen_parameters_stay_out_of_the_vector() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    problem = Problem(module, blobs())
    assert problem.size == 15
    fed = federation(problem)
    assert fed.map(full, shared={"v": fed.initial_model()})["g"].shape == (6, 15)


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).abs()


def test_a_users_own_loss_is_differentiated() -> None:
    problem = quadratic([2.0, 3.0], [1.0, -1.0], start=0.1, loss=own_loss)
    fed = federation(problem)
    g = fed.map(full, shared={"v": fed.initial_model()})["g"]
    assert g[:, 0].tolist() == [-2.0, 3.0]


def test_embeddings_take_whole_numbers() -> None:
    torch.manual_seed(0)
    parts = [(torch.randint(0, 9, (12, 4)), torch.randint(0, 2, (12,))) for _ in range(3)]
    data = ClientData(Examples.of(parts), Examples.of(parts), 2)
    module = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))
    for strategy in ("vmap:2:1x1", "autograd:1:1x1"):
        fed = federation(Problem(module, data), strategy=strategy)
        assert torch.isfinite(fed.map(full, shared={"v": fed.initial_model()})["g"]).all()
