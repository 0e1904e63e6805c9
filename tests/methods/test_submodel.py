"""Channel sub-models against FedAvg, rounds by hand, and exact accounts."""

from dataclasses import replace

import pytest
import torch

from fedkin.core.faults import Faults
from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.data.clients import ClientData, Examples
from fedkin.errors import FedkinError
from fedkin.methods import (
    FedAvg,
    Submodel,
    SubmodelMasks,
)
from fedkin.methods.base import State
from fedkin.methods.shared.masks import KINDS
from fedkin.methods.shared.outputs import note_output, output_of
from fedkin.methods.submodel import scattered
from fedkin.models import build
from fedkin.runs.evaluation import score
from tests.helpers import blobs, federation, run
from tests.methods.submodels import (
    RATES,
    SixParameters,
    X,
    Y,
    one_unit_step,
    six_parameter_federation,
    small_problem,
)


def images():
    return Problem(build("cnn:4,6,10", (1, 10, 10), 3), blobs(dimension=100, shape=(1, 10, 10)))


@pytest.mark.parametrize("aggregation", ["fill", "holders"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rate_one_for_all_is_exactly_fedavg(kind, weighted, aggregation):
    problem = small_problem()
    method = Submodel(rates=(1.0,), kind=kind, aggregation=aggregation, lr=0.1, weighted=weighted)
    cut = federation(problem, fraction=0.7, faults=Faults(drop=0.2))
    whole = federation(problem, fraction=0.7, faults=Faults(drop=0.2))
    a, b = run(method, cut, 4), run(FedAvg(lr=0.1, weighted=weighted), whole, 4)
    assert torch.equal(a.x, b.x)
    assert torch.equal(cut.accounts.table, whole.accounts.table)


@pytest.mark.parametrize("aggregation", ["fill", "holders"])
@pytest.mark.parametrize("kind", ["random", "rolling"])
def test_with_whole_masks_the_coordinate_algorithm_is_exactly_fedavg(kind, aggregation):
    method = SubmodelMasks(rates=(1.0,), kind=kind, aggregation=aggregation, lr=0.1)
    a = run(method, federation(small_problem(), fraction=0.7), 4)
    b = run(FedAvg(lr=0.1), federation(small_problem(), fraction=0.7), 4)
    assert torch.equal(a.x, b.x)


@pytest.mark.parametrize("aggregation", ["fill", "holders"])
def test_fill_and_holders_by_hand_on_six_parameters(aggregation):
    # client 0 holds both units, client 1 the second one only: in round 2 the window starts there
    fed = six_parameter_federation(device=["1", "1/2"])
    method = Submodel(
        lr=0.01, local_steps=1, capacity="device", aggregation=aggregation, kind="rolling",
        scaler=False,
    )  # fmt: skip
    s = method.init(fed)
    fed.begin_round(2)
    method.round(fed, s)
    x, y = X.double(), Y.double()
    A = torch.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=torch.float64)
    c = torch.tensor([1.0, -1.0], dtype=torch.float64)
    slope = c @ (A @ x[0]) - y[0]
    A0, c0 = A - 0.01 * slope * c[:, None] * x[0], c - 0.01 * slope * (A @ x[0])
    a1, c1 = one_unit_step(A[1], c[1], x[1], y[1], 0.01)
    first_unit = (
        (A0[0], c0[0]) if aggregation == "holders" else ((A0[0] + A[0]) / 2, (c0[0] + c[0]) / 2)
    )
    expected = torch.stack([
        *first_unit[0], *(A0[1] + a1) / 2, first_unit[1], (c0[1] + c1) / 2,
    ])  # fmt: skip
    torch.testing.assert_close(s.x, expected)


@pytest.mark.parametrize("aggregation", ["fill", "holders"])
def test_random_channels_by_hand_on_six_parameters(aggregation):
    fed = six_parameter_federation()
    method = Submodel(
        lr=0.01, local_steps=1, rates=(0.5,), kind="random", aggregation=aggregation, scaler=False
    )
    s = method.init(fed)
    fed.begin_round(1)
    unit = [int(row[0]) // 2 for row in method.part(fed, 0.5, 0, torch.arange(2))]
    before = s.x.clone()
    method.round(fed, s)
    new = [before.clone(), before.clone()]
    for i, u in enumerate(unit):
        entries = [2 * u, 2 * u + 1, 4 + u]
        a, c = one_unit_step(
            before[entries[:2]], before[entries[2]], X[i].double(), Y[i].double(), 0.01
        )
        new[i][entries] = torch.cat([a, c[None]])
    held = torch.stack(
        [torch.isin(torch.tensor([0, 0, 1, 1, 0, 1]), torch.tensor(u)) for u in unit]
    )
    if aggregation == "fill":
        expected = (new[0] + new[1]) / 2
    else:
        both = torch.stack(new)
        expected = torch.where(held, both, 0).sum(0) / held.sum(0).clamp(min=1)
        expected = torch.where(held.any(0), expected, before)
    torch.testing.assert_close(s.x, expected)


@pytest.mark.parametrize("make", [small_problem, images])
@pytest.mark.parametrize("kind", KINDS)
def test_mixed_capacities_agree_between_engines_and_count_exact_bytes(make, kind):
    problem = make()
    method = Submodel(rates=RATES, kind=kind, lr=0.05, local_steps=2)
    feds = [federation(problem), federation(problem, engine="wire")]
    states = [run(method, fed, 3) for fed in feds]
    torch.testing.assert_close(states[0].x, states[1].x, rtol=1e-4, atol=1e-5)
    assert torch.equal(feds[0].accounts.table, feds[1].accounts.table)
    sizes = [problem.variant(Variant(rate)).size for rate in states[0].rates.tolist()]
    assert sorted(set(sizes), reverse=True)[0] == problem.size
    assert feds[0].accounts.column("bytes_down").tolist() == [3 * 4 * size for size in sizes]
    assert feds[0].accounts.column("bytes_up").tolist() == [3 * 4 * size for size in sizes]
    assert feds[1].engine.payload_down == feds[0].accounts.total("bytes_down")


def test_the_masked_loss_is_a_softmax_over_a_clients_own_classes():
    data = blobs(clients=2, classes=3)
    train = replace(
        data.train,
        y=torch.where(torch.arange(len(data.train.y)) < 30, data.train.y.clamp(max=1), 2),
    )
    problem = Problem(build("mlp:8", (5,), 3), replace(data, train=train))
    masked = problem.variant(Variant(0.5, own_classes=True))
    x, y = masked.train.x[None, :9], masked.train.y[None, :9]
    v = masked.initial + 0.1
    logits = masked.kernel().outputs(v, x)[0]
    expected = torch.nn.functional.cross_entropy(logits[:, :2], train.y[:9])
    for kernel in ("native", "vmap", "autograd"):
        value, grad = masked.kernel(kernel).value_and_grad(v, x, y, None)
        torch.testing.assert_close(value.item(), expected.item())
        assert grad[0, -1] == 0  # the absent class's bias
    # the second client has one class only: nothing to learn
    x, y = masked.train.x[None, 40:50], masked.train.y[None, 40:50]
    assert masked.kernel().grad(v, x, y, None).abs().max() == 0


def test_zeroed_outputs_of_absent_classes_are_those_of_fedrolex():
    data = blobs(clients=2, classes=3)
    first = torch.arange(len(data.train.y)) < 30
    train_part = replace(data.train, y=torch.where(first, data.train.y.clamp(max=1), 2))
    problem = Problem(build("mlp:8", (5,), 3), replace(data, train=train_part))
    zeroed = problem.variant(Variant(0.5, own_classes="zeroed"))
    x, y = zeroed.train.x[None, :9], zeroed.train.y[None, :9]
    v = zeroed.initial + 0.1
    logits = zeroed.kernel().outputs(v, x)[0].clone()
    logits[:, 2] = 0
    expected = torch.nn.functional.cross_entropy(logits, train_part.y[:9])
    for kernel in ("native", "vmap", "autograd"):
        value, grad = zeroed.kernel(kernel).value_and_grad(v, x, y, None)
        torch.testing.assert_close(value.item(), expected.item())
        assert grad[0, -1] == 0
    # a client with one class still learns to raise it above the zeros of the others
    x, y = zeroed.train.x[None, 40:50], zeroed.train.y[None, 40:50]
    assert zeroed.kernel().grad(v, x, y, None).abs().max() > 0


def test_a_rate_that_cannot_be_had_is_recorded_as_what_it_is():
    fed = federation(small_problem("mlp:3,5"))
    run(Submodel(rates=(0.5,), local_steps=1), fed, 1)
    assert fed.records["rate"] == pytest.approx((2 + 3) / (3 + 5))
    run(SubmodelMasks(rates=(0.1,), kind="rolling", windows=16, local_steps=1), fed, 1)
    assert fed.records["rate"] == pytest.approx(2 / 16)


@pytest.mark.parametrize("cls", [Submodel, SubmodelMasks])
def test_the_output_is_the_last_model_the_mean_of_all_or_one_of_them(cls):
    options = {"rates": (0.5,), "lr": 0.1, "local_steps": 2}
    method, fed, models = cls(**options), federation(small_problem()), []
    state = method.init(fed)
    for number in range(1, 9):
        fed.begin_round(number)
        method.round(fed, state)
        models.append(state.x)
    assert torch.equal(method.global_model(state), models[-1])
    mean = cls(output="mean", **options)
    found = mean.global_model(run(mean, federation(small_problem()), 8))
    torch.testing.assert_close(found, torch.stack(models).mean(0))
    drawn = set()
    for seed in range(40):  # the same rounds: only the draw of the output has this seed
        one = State(x=models[0])
        for number, model in enumerate(models, 1):
            one.x = model
            fed.seed = seed
            fed.begin_round(number)
            note_output(fed, one, "random")
        drawn.add(next(k for k, model in enumerate(models) if torch.equal(output_of(one), model)))
    assert len(drawn) >= 6


def test_options_of_the_experiments_run_together():
    method = Submodel(
        rates=RATES, kind="shuffled", capacity="redrawn", scaler=True, own_classes=True, lr=0.1
    )
    fed = federation(small_problem(), fraction=0.5, faults=Faults(drop=0.2, nan=0.2))
    state = run(method, fed, 30)
    assert torch.isfinite(state.x).all()
    assert score(fed, method.personal(fed, state)).accuracy.mean() > 0.5


def test_rates_may_come_from_a_column_of_the_client_table():
    data = replace(blobs(), columns={"device": ["1", "1/2", "0.25", 1, 0.5, "1/4"]})
    fed = federation(Problem(build("mlp:8", (5,), 3), data))
    assert Submodel(capacity="device").init(fed).rates.tolist() == [1, 0.5, 0.25] * 2
    with pytest.raises(FedkinError, match="did you mean 'device'"):
        Submodel(capacity="devise").init(fed)


def test_redrawn_rates_change_from_round_to_round():
    fed = federation(small_problem())
    method = Submodel(rates=RATES, capacity="redrawn", local_steps=1)
    method.round(fed, method.init(fed))
    counts = fed.accounts.column("bytes_down").clone()
    fed.begin_round(1)
    method.round(fed, method.init(fed))
    assert not torch.equal(fed.accounts.column("bytes_down"), 2 * counts)


def test_entries_that_nobody_holds_stay():
    fed = federation(small_problem())
    method = Submodel(rates=(0.25,), kind="static", lr=0.1)
    before = method.init(fed).x
    after = run(method, fed, 3).x
    held = method.part(fed, 0.25, 0, torch.arange(6))[0]
    untouched = torch.ones(len(before), dtype=torch.bool)
    untouched[held] = False
    assert torch.equal(after[untouched], before[untouched])
    assert not torch.equal(after[held], before[held])
    assert fed.records["untrained"] == pytest.approx(untouched.double().mean().item())


def test_when_nobody_answers_the_model_stays():
    for kind in KINDS:
        fed = federation(small_problem(), faults=Faults(drop=1.0))
        method = Submodel(rates=RATES, kind=kind)
        assert torch.equal(run(method, fed, 2).x, method.init(fed).x)


@pytest.mark.parametrize("kind", ["static", "random"])
@pytest.mark.parametrize("aggregation", ["holders", "fill"])
def test_rows_of_classes_are_averaged_over_those_who_have_them(kind, aggregation):
    g = torch.Generator().manual_seed(1)
    pairs = [(torch.randn(8, 3, generator=g), torch.arange(8) % 2 + 2 * i) for i in range(2)]
    module = build("mlp:6", (3,), 4)

    def trained(clients):
        examples = Examples.of(clients)
        problem = Problem(module, ClientData(examples, examples, 4), dtype=torch.float64)
        rates = (1.0,) if kind == "static" else (0.5,)
        method = Submodel(
            rates=rates, kind=kind, own_classes=True, aggregation=aggregation, lr=0.5, local_steps=3
        )
        return problem, run(method, federation(problem), 1).x

    problem, both = trained(pairs)
    _, first = trained(pairs[:1])
    rows = (problem.served == 1) | (problem.served == 2)
    assert rows.sum() == 2 * (6 + 1)
    start = problem.initial[0]
    assert not torch.equal(first[rows], start[rows])
    share = 1.0 if aggregation == "holders" else 0.5
    torch.testing.assert_close(both[rows], start[rows] + share * (first - start)[rows])


@pytest.mark.parametrize("kind", ["rolling", "random"])
def test_an_entry_is_the_mean_of_its_holders_by_their_samples(kind):
    # clients of 1 and 3 samples: an entry that both hold is 1/4 and 3/4 of theirs
    x, y = torch.cat([X[:1], X[1:].repeat(3, 1)]), torch.cat([Y[:1], Y[1:].repeat(3)])
    examples = Examples.of([(x[:1], y[:1]), (x[1:], y[1:])])
    data = ClientData(examples, examples, None, columns={"device": ["1", "1/2"]})

    def trained(clients, **options):
        problem = Problem(SixParameters(), data.only(clients), batch_size=1, dtype=torch.float64)
        fed = federation(problem)
        method = Submodel(lr=0.01, local_steps=1, kind=kind, scaler=False, **options)
        s = method.init(fed)
        fed.begin_round(2)
        method.round(fed, s)
        return s.x

    sizes = {"rates": (1.0,)} if kind == "random" else {"capacity": "device"}
    small = {"rates": (1.0,)} if kind == "random" else {"rates": (0.5,)}
    start = Problem(SixParameters(), data, dtype=torch.float64).initial[0]
    found = trained([0, 1], weighted=True, aggregation="holders", **sizes)
    one = trained([0], rates=(1.0,))
    other = trained([1], **small)
    both = other != start
    assert both.any()
    torch.testing.assert_close(found[both], (one / 4 + 3 * other / 4)[both])
    torch.testing.assert_close(found[~both], one[~both])


def test_where_clients_hold_different_entries_each_counts_by_its_weight():
    x = torch.zeros(4, dtype=torch.float64)
    index, rows = torch.tensor([[0, 1], [1, 2]]), torch.tensor([[4.0, 8.0], [16.0, 2.0]]).double()
    w = torch.tensor([1.0, 3.0], dtype=torch.float64)
    found = scattered(x, index, rows, w, torch.ones(1, 1, dtype=torch.float64))
    assert found.weight.tolist() == [1, 4, 3, 0]
    assert found.mean.tolist() == [4, (8 + 3 * 16) / 4, 2, 0]
    assert found.total == 4
