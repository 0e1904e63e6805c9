"""Modules of all kinds: repeatable, the same however they are computed, and right when used."""

from __future__ import annotations

import random
import warnings
from functools import partial
from itertools import cycle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedkin.core.kernels.noise import Noise
from fedkin.core.kernels.recurrent import stackable
from fedkin.core.kernels.spec import model_errors
from fedkin.core.problem import Problem
from fedkin.core.rng import key
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg, FedBN, Method, PFedMe, Submodel, SubmodelDitto, SubmodelPerm
from fedkin.runs.evaluation import score_model
from fedkin.runs.folder import RunFolder
from fedkin.runs.models import load_model
from fedkin.runs.training import Settings, Trainer
from tests.helpers import blobs, federation, run
from tests.zoo import ZOO, zoo_data, zoo_problem

every_module = pytest.mark.parametrize("name", ZOO)


def trained(
    problem: Problem, strategy: str, engine: str = "embedded", method: Method | None = None
):
    fed = federation(problem, engine, strategy, fraction=0.75, seed=3)
    method = method or FedAvg(lr=0.1, local_steps=5)
    model = run(method, fed, 2).x
    return model, score_model(fed, model).loss


@pytest.mark.parametrize(("name", "reshuffle"), list(zip(ZOO, cycle([False, True]))))
def test_the_same_model_stacked_one_by_one_and_over_the_wire(name: str, reshuffle: bool) -> None:
    problem = zoo_problem(name, reshuffle=reshuffle)
    assert problem.stacks
    expected = trained(problem, "autograd:1:1x1")
    for found in (
        trained(problem, "vmap:3:1x1"),
        trained(problem, "autograd:2:2x1"),
        trained(problem, "", "wire"),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert torch.equal(trained(problem, "autograd:1:1x1")[0], expected[0])


@pytest.mark.parametrize("name", ["dropout", "batch-norm-1d", "lstm", "transformer"])
def test_second_derivatives_of_all_kinds_are_those_of_finite_differences(name: str) -> None:
    problem = zoo_problem(name)
    torch.manual_seed(0)
    v, u = problem.initial, torch.randn_like(problem.initial)
    x, y = problem.train.x[None, :6], problem.train.y[None, :6]
    keys = key(5) if problem.spec.random else None
    for kernel in (problem.kernel("vmap"), problem.kernel("autograd")):
        slopes = [kernel.grad(v + h * u, x, y, None, keys) for h in (1e-5, -1e-5)]
        torch.testing.assert_close(
            kernel.hvp(v, u, x, y, None, keys), (slopes[0] - slopes[1]) / 2e-5, rtol=1e-4, atol=1e-5
        )


# dropout -----------------------------------------------------------------------------------


def test_dropout_keeps_its_share_and_its_mean_and_differs_between_layers_and_keys() -> None:
    x = torch.ones(4000, 25)
    with Noise(key(1)):
        first, second = F.dropout(x, 0.2), F.dropout(x, 0.2)
    with Noise(key(2)):
        other = F.dropout(x, 0.2)
    with Noise(key(1)):
        again = F.dropout(x, 0.2)
    assert torch.equal(first, again)
    for mask in (first, second, other):
        assert set(mask.unique().tolist()) == {0.0, 1.25}
        assert abs((mask == 0).float().mean() - 0.2) < 4 * (0.16 / 1e5) ** 0.5
    # where two masks are independent, both drop 4 in 100
    for a, b in ((first, second), (first, other), (first[1:], first[:-1])):
        both = ((a == 0) & (b == 0)).float().mean()
        assert abs(both - 0.04) < 4 * (0.04 / 1e5) ** 0.5


def test_noise_of_other_kinds_has_its_distribution() -> None:
    with Noise(key(3)):
        u, z = torch.rand(50_000), torch.randn(50_000) * 2 + 1
        z2 = torch.empty(50_000).normal_(1, 2)
    assert abs(u.mean() - 0.5) < 0.01
    assert abs(u.var() - 1 / 12) < 0.002
    for normal in (z, z2):
        assert abs(normal.mean() - 1) < 0.05
        assert abs(normal.std() - 2) < 0.05


def noisy_gradients(client, v: Tensor) -> dict[str, Tensor]:
    batch = client.next_batch()
    other = client.next_batch()
    return {
        "same": client.grad(v, batch) - client.grad(v, batch),
        "differ": client.grad(v, batch) - client.grad(v, other),
        "loss": client.loss(v, batch) - client.loss(v, batch),
        "full": client.full_grad(v),
    }


def test_two_gradients_on_a_batch_meet_the_same_dropout_and_full_gradients_none() -> None:
    problem = zoo_problem("dropout", batch_size=60, reshuffle=True)
    fed = federation(problem, strategy="vmap:1:1x1")
    found = fed.map(noisy_gradients, shared={"v": problem.initial[0]})
    assert found["same"].abs().max() == 0
    assert found["differ"].abs().max() > 1e-3  # the same samples, other dropout
    module = problem.module(problem.initial[0])
    x, y = problem.data.train[1]
    F.cross_entropy(module(x.double()), y).backward()
    slopes = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(found["full"][1], slopes)


def test_models_are_judged_without_dropout() -> None:
    problem = zoo_problem("transformer")
    fed = federation(problem)
    module = problem.module(problem.initial[0])
    x, y = problem.data.test[0]
    expected = F.cross_entropy(module(x.double()), y).item()
    assert score_model(fed, problem.initial[0]).loss[0].item() == pytest.approx(expected)


# norms -------------------------------------------------------------------------------------


def statistics(module: nn.Module) -> Tensor:
    return torch.cat([module[2].running_mean, module[2].running_var])


def bn_run(norm: str, **options: object):
    settings = Settings(rounds=3, eval_every=1, baseline=False, **options)
    return Trainer(zoo_problem("batch-norm-1d", norm=norm), FedAvg(lr=0.1), settings).run()


@pytest.mark.parametrize("norm", ["shared", "local", "averaged"])
def test_modules_with_batch_norm_give_in_eval_mode_what_was_judged(norm: str) -> None:
    result = bn_run(norm)
    last = result.clients[result.clients["round"] == 3]
    for client in range(4):
        module, (x, y) = result.personal[client], result.problem.data.test[client]
        assert not module.training
        with torch.no_grad():
            loss = F.cross_entropy(module(x.double()), y).item()
        assert last["personal_loss"].iloc[client] == pytest.approx(loss, rel=1e-9)


def test_where_statistics_and_weights_of_batch_norm_are_shared_and_where_not() -> None:
    modules = {norm: bn_run(norm).personal for norm in ("shared", "local", "averaged")}
    for norm, personal in modules.items():
        same_weights = torch.equal(personal[0][2].weight, personal[1][2].weight)
        same_statistics = torch.equal(statistics(personal[0]), statistics(personal[1]))
        assert same_weights == (norm != "local")
        assert same_statistics == (norm == "averaged")
        assert torch.equal(personal[0][1].weight, personal[1][1].weight)
    # averaged: the mean of what every client finds in its own data, by its samples
    sizes = modules["shared"].problem.train.sizes.double()
    own = torch.stack([statistics(modules["shared"][i]) for i in range(4)])
    torch.testing.assert_close(statistics(modules["averaged"][0]), sizes @ own / sizes.sum())


def test_fedbn_is_the_textbook_loop() -> None:
    """FedAvg whose clients load all but their own norms, written with torch's own optimiser."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()
    data = blobs(clients=3, samples=8)
    sizes = data.train.sizes.tolist()
    problem = Problem(module, data, batch_size=max(sizes), reshuffle=True, dtype=torch.float64,
                      norm="local")  # fmt: skip
    method, fed = FedAvg(lr=0.2, local_steps=3), federation(problem)
    state = run(method, fed, 2)
    shared = {k: v.clone() for k, v in module.state_dict().items() if not k.startswith("1.")}
    own = [{k: v.clone() for k, v in module[1].state_dict().items()} for _ in sizes]
    for _ in range(2):
        sums = {k: torch.zeros_like(v) for k, v in shared.items()}
        for i in range(3):
            module.load_state_dict(shared, strict=False)
            module[1].load_state_dict(own[i])
            optimiser, (x, y) = torch.optim.SGD(module.parameters(), 0.2), data.train[i]
            for _ in range(3):
                optimiser.zero_grad()
                F.cross_entropy(module.train()(x.double()), y).backward()
                optimiser.step()
            own[i] = {k: v.clone() for k, v in module[1].state_dict().items()}
            for k in sums:
                sums[k] += module.state_dict()[k] / 3
        shared = sums
    torch.testing.assert_close(
        problem.layout.split(state.x[None]), {k: v[None] for k, v in shared.items()}
    )
    home = torch.stack([torch.cat([o["weight"], o["bias"]]) for o in own])
    torch.testing.assert_close(fed.engine.memory.tables["own_norms"].values, home)


@pytest.mark.parametrize("name", ["batch-norm-1d", "batch-norm-2d"])
def test_the_method_fedbn_is_fedavg_with_norms_at_home(name: str) -> None:
    """Two ways to the same: a method that splits models, and a problem that keeps norms back."""
    found = []
    for method, norm in ((FedBN(lr=0.1, local_steps=3), "shared"),
                         (FedAvg(lr=0.1, local_steps=3), "local")):  # fmt: skip
        problem = zoo_problem(name, norm=norm)
        settings = Settings(rounds=2, baseline=False, fraction=0.75, strategy="stacked", seed=3)
        result = Trainer(problem, method, settings).run()
        found.append([dict(result.personal.at(i).state_dict()) for i in range(4)])
        assert len({tuple(own["2.weight"].tolist()) for own in found[-1]}) > 1
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("method", [FedBN(), Submodel(), SubmodelDitto(), SubmodelPerm()])
def test_methods_that_need_the_norms_in_the_model_say_so(method: Method) -> None:
    fed = federation(zoo_problem("batch-norm-1d", norm="local"))
    with pytest.raises(FedkinError, match="norm = 'shared'"):
        run(method, fed, 1)


def test_own_norms_do_not_travel() -> None:
    bytes_down = []
    for norm in ("shared", "local"):
        fed = federation(zoo_problem("batch-norm-1d", norm=norm))
        run(FedAvg(), fed, 1)
        bytes_down.append(fed.accounts.total("bytes_down"))
    assert bytes_down[0] - bytes_down[1] == 4 * 16 * 8  # four clients, 8 weights and 8 biases


@pytest.mark.parametrize("norm", ["local", "averaged"])
def test_own_norms_are_the_same_in_every_engine_and_with_several_models(norm: str) -> None:
    problem = zoo_problem("batch-norm-1d", norm=norm)
    for method in (FedAvg(lr=0.1, local_epochs=2), PFedMe(lr=0.05, local_steps=2)):
        expected = trained(problem, "autograd:1:1x1", method=method)
        for found in (
            trained(problem, "vmap:4:1x1", method=method),
            trained(problem, "", "wire", method),
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_a_frozen_backbone_stays_as_it_is_and_only_the_head_travels() -> None:
    problem = zoo_problem("frozen")
    assert problem.size == 27
    result = Trainer(problem, FedAvg(), Settings(rounds=2, baseline=False)).run()
    before, after = problem.spec.module, result.personal[0]
    for part in (1, 2):
        for name, value in before[part].state_dict().items():
            assert torch.equal(after[part].state_dict()[name], value)
    assert not torch.equal(before[-1].weight, after[-1].weight)


@every_module
def test_a_run_resumes_exactly_and_its_files_answer_as_was_judged(name: str, tmp_path) -> None:
    settings = Settings(rounds=2, checkpoint_every=1, eval_every=2, baseline=False,
                        strategy="stacked")  # fmt: skip
    method = FedAvg(lr=0.1, local_steps=2)
    norm = "local" if name == "batch-norm-1d" else None

    def trainer(folder: str) -> Trainer:
        kept = RunFolder.create(tmp_path / folder, 'method = "fedavg"\n')
        return Trainer(zoo_problem(name, norm=norm), method, settings, kept)

    whole, halted = trainer("whole"), trainer("halted")
    judged = whole.run().clients.query("round == 2")["personal_loss"].tolist()
    halted.step()
    again = Trainer(halted.problem, method, settings, halted.folder)
    assert again.resume() == []
    assert again.round == 1
    again.run()
    for path in (tmp_path / "whole" / "models").iterdir():
        assert path.read_bytes() == (tmp_path / "halted" / "models" / path.name).read_bytes()
    problem = zoo_problem(name, norm=norm)
    for client, (x, y) in enumerate(problem.data.test):
        saved = load_model(tmp_path / "whole" / "models", problem, client, str(client))[1]
        module = problem.module(saved)
        with torch.no_grad():
            loss = F.cross_entropy(module(x.to(problem.input_dtype)), y).item()
        assert judged[client] == pytest.approx(loss, rel=1e-9)


# bad input ---------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self, forward) -> None:
        super().__init__()
        self.a = nn.Linear(5, 3)
        self.register_buffer("count", torch.zeros(1))
        self.rule = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.rule(self, x)


class TwoArguments(nn.Linear):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * mask


def changing(self, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.a.weight.add_(1)
    return self.a(x)


def counting(self, x: Tensor) -> Tensor:
    self.count += 1
    return self.a(x)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (TwoArguments(5, 3), "needs 2 arguments .'x', 'mask'."),
        (Own(lambda m, x: (m.a(x), x)), "returns a tuple"),
        (Own(lambda m, x: {"out": m.a(x)}), "returns a dict"),
        (Own(changing), "changes its own parameter 'a.weight'"),
        (Own(counting), "changes its own buffer 'count'"),
        (nn.Flatten(), "no trainable parameters"),
        (nn.Linear(5, 3).requires_grad_(False), "all are frozen"),
        (Own(lambda m, x: m.a(x)[(x[:, 0] > x[:1, 0]) | (x[:, 1] > 0)]), "one row per example"),
        (Own(lambda m, x: m.a(x) * random.random()), "Python's random"),
        (Own(lambda m, x: m.a(x) * np.random.rand()), "numpy.random"),
        (Own(lambda m, x: m.a(x)[torch.randperm(len(x))]), "torch.randperm"),
        (Own(lambda m, x: F.dropout(m.a(x), 0.3)), "training=self.training"),
        (nn.LazyLinear(3), "has no shape yet"),
        (Own(lambda m, x: m.a(x) / m.gone), "cannot take inputs of shape .5,.*gone"),
        (Own(lambda m, x: m.a(x).detach()), "outputs have no gradients"),
        (Own(lambda m, x: F.one_hot(m.a(x).argmax(1), 3).float()), "outputs have no gradients"),
        (nn.Linear(5, 3, dtype=torch.complex64), "parameter 'weight' has complex numbers"),
    ],
)  # fmt: skip
def test_modules_that_cannot_be_trained_are_refused_with_a_sentence(module, sentence: str) -> None:
    with pytest.raises(FedkinError, match=sentence) as found:
        Problem(module, blobs())
    assert "\n" not in str(found.value)
    assert found.value.exit_code == 2


def test_what_fails_later_is_told_in_a_sentence_and_never_by_torch() -> None:
    data = zoo_data("embedding")
    data.train.x[5] = 99  # a word that the embedding does not have
    for strategy in ("auto", "stacked", "autograd"):
        problem = Problem(ZOO["embedding"](), data, batch_size=50, reshuffle=True)
        fed = federation(problem, strategy=strategy)
        with pytest.raises(FedkinError, match="fails on a batch"):
            run(FedAvg(), fed, 1)


@pytest.mark.parametrize(
    ("error", "told"), [(ValueError("no word\nin line 3"), "no word"), (KeyError(), "KeyError")]
)
def test_the_reason_told_is_the_errors_first_line_or_its_kind(error: Exception, told: str) -> None:
    words = rf"a batch of shape 2x3 \(torch\.float32\): {told}$"
    with pytest.raises(FedkinError, match=words), model_errors(torch.zeros(2, 3)):
        raise error


class Branching(nn.Module):
    """What vmap cannot stack: it looks at numbers to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if self.a.weight.sum() > -1e9 else self.a(-x)


def test_what_cannot_be_stacked_runs_one_by_one() -> None:
    problem = Problem(Branching(), blobs(), dtype=torch.float64)
    assert not problem.stacks
    expected = trained(problem, "autograd:1:1x1")
    for strategy, engine in (("auto", "embedded"), ("stacked", "embedded"), ("", "wire")):
        torch.testing.assert_close(trained(problem, strategy, engine), expected)
    with pytest.raises(FedkinError, match="cannot be stacked"):
        federation(problem, strategy="vmap")


def test_examples_of_common_modules_do_not_meet_in_use() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "an example's output depends")
        assert not any(zoo_problem(name).manners.mixes_in_use for name in ZOO)


def test_a_model_whose_examples_meet_is_told_and_computed_alike_everywhere() -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="depends on the other examples"):
        problem = Problem(Own(lambda m, x: m.a(x - x.mean(0))), blobs(clients=4), batch_size=7,
                          reshuffle=True, dtype=torch.float64)  # fmt: skip
    expected = trained(problem, "autograd:1:1x1")
    for strategy, engine in (("vmap:3:1x1", "embedded"), ("", "wire")):
        torch.testing.assert_close(trained(problem, strategy, engine), expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_stackable_recurrent_layers_are_torchs(kind: type[nn.RNNBase], options) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, batch_first=True, **options).double()
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    start = torch.randn(2 * layer.num_layers if layer.bidirectional else 1, 5, 4).double()
    started = (start, -start) if kind is nn.LSTM else start
    expected = [layer(x), layer(x, started), layer(x[0])]
    stackable(layer)
    for found, wanted in zip([layer(x), layer(x, started), layer(x[0])], expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_stacked_lstm_gradients_are_autograds(options) -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4, **options).double()
    rows = {n: torch.randn(2, *p.shape).double() for n, p in layer.named_parameters()}
    x = torch.randn(2, 6, 5, 3, dtype=torch.float64)

    def total(module: nn.Module, named: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs, (h, c) = functional_call(module, named, (x,))
        return outputs.square().sum() + h.sum() + (c**3).sum()

    wanted = [
        torch.autograd.grad(total(layer, own, x[i]), list(own.values()))
        for i in range(2)
        for own in [{n: p[i].clone().requires_grad_() for n, p in rows.items()}]
    ]
    leaves = [p.requires_grad_() for p in rows.values()]
    totals = vmap(partial(total, stackable(layer)))(rows, x)
    found = torch.autograd.grad(totals.sum(), leaves)
    for i in range(2):
        torch.testing.assert_close([slope[i] for slope in found], list(wanted[i]))


def test_padding_of_an_embedding_is_never_trained_in_any_row() -> None:
    torch.manual_seed(0)
    layer, ids = nn.Embedding(5, 3, padding_idx=1), torch.tensor([[0, 1, 2], [1, 1, 4], [3, 3, 1]])
    tables = torch.randn(3, 5, 3)
    wanted = torch.zeros_like(tables)  # of a sum of squares: 2 v for each time it is looked up
    for i, row in enumerate(ids.tolist()):
        for word in row:
            wanted[i, word] += 0 if word == 1 else 2 * tables[i, word]

    def total(table: Tensor, x: Tensor) -> Tensor:
        return functional_call(layer, {"weight": table}, (x,)).square().sum()

    stackable(layer)
    vmap(total)(tables.requires_grad_(), ids).sum().backward()
    torch.testing.assert_close(tables.grad, wanted)


def test_batch_norm_needs_two_samples() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(FedkinError, match="batches of at least 2"):
        Problem(module, blobs(), batch_size=1)
    problem = Problem(module, blobs(clients=2, samples=9), batch_size=8, reshuffle=True)
    run(FedAvg(local_steps=4), federation(problem), 1)  # the last batch of a pass has one sample
    with pytest.raises(FedkinError, match="single training sample"):
        Problem(module, blobs(clients=2, samples=1))
    with pytest.raises(FedkinError, match="the model has none"):
        Problem(nn.Linear(5, 3), blobs(), norm="local")
