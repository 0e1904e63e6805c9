"""Clipping, noise and their sizes; what one client can change in what is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor

from fedkin.core import gaussian, rng
from fedkin.core.client import Client
from fedkin.core.federation import Federation
from fedkin.core.guard import BELOW, Guard, guard_of
from fedkin.core.privacy import Privacy, _signal_to_noise
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg, Method
from fedkin.methods.registry import all_methods, get_method
from fedkin.runs import checks
from fedkin.runs.contender import Contender
from tests.helpers import federation, least_squares, run

ALLOWED = [name for name, cls in all_methods().items()
           if not cls.not_private and cls.releases == (1, 0)]  # fmt: skip
LIMIT = 0.3


def private(clients: float, noise: float = 0.0, **more: Any) -> Privacy:
    return Privacy({"": LIMIT}, noise, clients, **more)


# sensitivity -----------------------------------------------------------------------------


def other_data(problem: Problem, client: int, generator: torch.Generator) -> Problem:
    """The same problem in which one client's data are quite different."""
    data = problem.data
    own = slice(*data.train.offsets[client : client + 2].tolist())
    x, y = data.train.x.clone(), data.train.y.clone()
    x[own] = 30 * torch.randn(x[own].shape, generator=generator)
    y[own] = y[own].flip(0)
    return problem.with_data(replace(data, train=replace(data.train, x=x, y=y)), "cpu")


def released(contender: Contender, number: int) -> list[dict[str, Tensor]]:
    """The sums that a round is about to add noise to."""
    found: list[dict[str, Tensor]] = []
    privacy = contender.fed.privacy
    assert privacy is not None
    release = type(privacy).release

    def spy(sums: dict[str, Tensor], *rest: Any) -> Any:
        found.append({name: value.double().clone() for name, value in sums.items()})
        return release(privacy, sums, *rest)

    privacy.release = spy  # type: ignore[method-assign]
    contender.step(number)
    del privacy.release  # type: ignore[method-assign]
    return found


def contender_of(method: Method, problem: Problem, without: int | None = None) -> Contender:
    fed = federation(problem, privacy=private(problem.num_clients))
    if without is not None:
        others = torch.tensor([i for i in range(fed.size) if i != without])
        fed.sample = lambda: others  # type: ignore[method-assign]
    return Contender(method, fed, method.init(fed))


def gap(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> float:
    assert len(one) == len(other) == 1
    squares = [(one[0][name] - other[0][name]).square().sum() for name in one[0] if name != BELOW]
    return float(torch.stack(squares).sum().sqrt())


@pytest.mark.parametrize("name", ALLOWED)
def test_one_client_changes_a_sum_by_no_more_than_the_limit(name: str) -> None:
    """Federations in the same state, but for one client: gone, or with other data."""
    cls = get_method(name)
    problem, g = checks.problem(checks.usual(cls)), torch.Generator().manual_seed(len(name))
    here = contender_of(checks.make(cls), problem)
    largest = 0.0
    for number in (1, 2):
        tensors = {k: v.clone() for k, v in here.tensors().items()}
        numbers, client = here.numbers(), int(torch.randint(5, (), generator=g))
        whole = released(here, number)
        for changed, without, most in (
            (problem, client, LIMIT),
            (other_data(problem, client, g), None, 2 * LIMIT),
        ):
            there = contender_of(checks.make(cls), changed, without)
            there.restore(tensors, numbers)
            found = gap(whole, released(there, number))
            assert found <= most * (1 + 1e-5)
            largest = max(largest, found)
    assert largest > 0.1 * LIMIT  # the limit is one that matters


@given(st.integers(1, 5), st.floats(1e-3, 1e3), st.integers(0, 2**31), st.booleans())
@settings(max_examples=20, deadline=None)
def test_rows_of_any_size_are_clipped(count: int, scale: float, seed: int, each: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    rows = {f"t{i}": scale * torch.randn(4, 2 + i, 3, generator=g) for i in range(count)}
    limits = {name: 0.5 + i for i, name in enumerate(rows)} if each else {"": LIMIT}
    guard = Guard(tuple(limits.items()))
    found = guard.protect(rows, {}, rng.key(np.arange(4)))
    units = guard.units(rows)
    lengths = torch.stack([
        (v.double() / units[name]).flatten(1).square().sum(1) for name, v in found.items()
    ]).sum(0).sqrt()  # fmt: skip
    assert bool((lengths <= 1).all())
    for name, v in found.items():  # directions stay
        cosine = torch.cosine_similarity(v.flatten(1), rows[name].flatten(1))
        torch.testing.assert_close(cosine, torch.ones(4), atol=1e-4, rtol=0)


# noise -----------------------------------------------------------------------------------


@dataclass
class Silent(FedAvg):
    """Clients answer zeros under two names."""

    def round(self, fed: Federation, s: Any) -> None:
        s.mean = fed.mean(zeros, at=fed.sample(), weights=self.weights(fed))


def zeros(client: Client) -> dict[str, Tensor]:
    return {"a": torch.zeros(1, 20_000), "b": torch.zeros(1, 10_000)}


def noise_of(privacy: Privacy, rounds: int = 1, **options: Any) -> Any:
    fed = federation(least_squares(clients=10), privacy=privacy, **options)
    return run(Silent(), fed, rounds).mean


@pytest.mark.parametrize("secret", [False, True])
def test_the_noise_of_a_mean_has_the_size_that_is_accounted_for(secret: bool) -> None:
    mean = noise_of(private(10, 2.0, secret=secret))
    for name in "ab":
        assert float(mean[name].std()) == pytest.approx(2 * LIMIT / 10, rel=0.03)
        assert abs(float(mean[name].mean())) < 4 * 2 * LIMIT / 10 / 100
    assert mean.answered == 10


def test_noise_with_a_limit_for_each_tensor_costs_as_much() -> None:
    """sum over tensors of (limit/noise)^2 is 1/z^2: the same Gaussian mechanism."""
    mean = noise_of(Privacy({"a": 1.0, "b": 4.0}, 2.0, 10))
    sizes = {name: 10 * float(mean[name].std()) for name in "ab"}
    assert (1 / sizes["a"]) ** 2 + (4 / sizes["b"]) ** 2 == pytest.approx(1 / 2**2, rel=0.05)
    assert sizes["b"] == pytest.approx(4 * sizes["a"], rel=0.05)


def test_a_cohort_scales_the_noise_of_the_mean() -> None:
    mean = noise_of(private(10, 2.0, cohort=1000))
    assert float(mean["a"].std()) == pytest.approx(2 * LIMIT / 1000, rel=0.03)


def test_nobody_sampled_is_noise_like_any_other_round() -> None:
    """A round without clients must not look different."""
    mean = noise_of(private(1e-9 * 10, 2.0), sampling="poisson", fraction=1e-9)
    assert float((mean["a"] * 1e-8).std()) == pytest.approx(2 * LIMIT, rel=0.03)


def test_asking_for_the_quantile_costs_no_more_than_the_noise_allows() -> None:
    """Andrew et al., theorem 1: z^-2 = z_sum^-2 + (2 sigma_b)^-2."""
    privacy = private(10, 2.0, quantile=0.5)
    size = 10 * float(noise_of(privacy)["a"].std()) / LIMIT
    _, below = privacy._split()
    assert below is not None
    assert size**-2 + (2 * below) ** -2 == pytest.approx(2.0**-2, rel=0.05)


def test_the_limit_follows_the_quantile() -> None:
    """After many rounds about so many answers need no clipping as was asked for."""
    problem = checks.problem("logistic")
    privacy = Privacy({"": 1e-3}, 0.0, 5, quantile=0.6)
    fed = federation(problem, privacy=privacy)
    method = FedAvg(lr=0.05, local_steps=4)
    state = run(method, fed, 60)
    lengths = fed.look(fed.request(_steps(), shared={"x": state.x}, lr=0.05, local_steps=4))["dx"]
    short = (lengths.norm(dim=1) <= 1e-3 * privacy.factors["local_sgd"]).double().mean()
    assert 0.4 <= float(short) <= 0.8
    assert privacy.factors["local_sgd"] > 10


def _steps() -> Callable[..., dict[str, Tensor]]:
    from fedkin.methods.fedavg import local_sgd

    return local_sgd


@pytest.mark.parametrize("secret", [False, True])
def test_noise_is_gaussian(secret: bool) -> None:
    keys = rng.key(np.arange(3))
    numbers = gaussian.secret(3, 4000) if secret else gaussian.of_keys(keys, "test", 4000)
    assert kstest(numbers.ravel(), "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(numbers)[np.triu_indices(3, 1)]).max() < 0.08
    again = gaussian.secret(3, 4000) if secret else gaussian.of_keys(keys, "test", 4000)
    assert bool((again == numbers).all()) is not secret


def test_noise_is_new_in_every_round_and_the_same_in_every_repeat() -> None:
    one, two = noise_of(private(10, 1.0), 1), noise_of(private(10, 1.0), 2)
    again = noise_of(private(10, 1.0), 2)
    assert abs(float(torch.corrcoef(torch.stack([one["a"], two["a"]]))[0, 1])) < 0.05
    assert torch.equal(two["a"], again["a"])


# rows that travel alone ------------------------------------------------------------------


def test_an_answer_that_travels_alone_is_noised_by_its_client() -> None:
    """The change of what was given under its name is clipped; what was given is not."""
    guard = Guard((("", 1.0),), noise=0.5, alone=True)
    v = torch.full((2, 5000), 7.0)
    rows = {"v": v + torch.tensor([[0.0], [9.0]])}
    found = guard.protect(rows, {"v": v, "weight": torch.ones(2, 1)}, rng.key(np.arange(2)))["v"]
    change = (found - v).double()
    assert float(change[0].std()) == pytest.approx(0.5, rel=0.05)
    assert float(change[1].mean()) == pytest.approx(1 / 5000**0.5, abs=0.03)
    assert guard_of(guard.facts()) == guard


def test_parts_of_noise_that_clients_add_make_up_the_whole() -> None:
    """With k clients' shares in a sum its noise is z times the limit, whoever adds it."""
    guard = private(10, 2.0).guard_sum("step", shares=10)
    rows = {"a": torch.zeros(10, 20_000)}
    total = guard.protect(rows, {}, rng.key(np.arange(10)))["a"].sum(0)
    assert float(total.std()) == pytest.approx(2 * LIMIT, rel=0.03)


# refusals --------------------------------------------------------------------------------


@dataclass
class AllAtOnce(FedAvg):
    """Asks everybody, sampled or not."""

    def round(self, fed: Federation, s: Any) -> None:
        fed.mean(zeros)


@dataclass
class Twice(FedAvg):
    """Takes two means in a round."""

    def round(self, fed: Federation, s: Any) -> None:
        fed.mean(zeros, at=fed.sample())
        fed.mean(zeros, at=fed.sample())


@dataclass
class OneByOne(FedAvg):
    """Has single answers sent."""

    def round(self, fed: Federation, s: Any) -> None:
        fed.map(zeros, at=fed.sample())


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (AllAtOnce(), "other clients than those sampled"),
        (Twice(), "more than 1 sums in a round"),
        (OneByOne(), "single clients' answers"),
        (Silent(weighted=True), "dp_most_samples"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(method: Method, words: str) -> None:
    fed = federation(least_squares(clients=10), fraction=0.5, privacy=private(5, 1.0))
    with pytest.raises(FedkinError, match=words):
        run(method, fed, 1)


def test_a_tensor_without_a_limit_is_named() -> None:
    with pytest.raises(FedkinError, match="dp_clip has no limit for 'b'"):
        noise_of(Privacy({"a": 1.0}, 1.0, 10))


def test_weights_are_bounded() -> None:
    """w = min(n, cap)/cap, divided by what a round's clients weigh on average."""
    privacy = private(5, 0.0, weight_cap=20)
    w, expected = privacy.weights(torch.tensor([5, 10, 20, 400]), 0.5)
    assert w is not None
    assert w.tolist() == [0.25, 0.5, 1.0, 1.0]
    assert expected == pytest.approx(0.5 * 2.75)


@pytest.mark.parametrize("engine", ["embedded", "wire"])
def test_private_rounds_are_the_same_in_every_engine(engine: str) -> None:
    problem = checks.problem("logistic", torch.float64)
    found = []
    for name, strategy in (("embedded", "stacked"), (engine, "autograd")):
        privacy = private(5, 1.0, quantile=0.5)
        found.append(run(FedAvg(lr=0.05), federation(problem, name, strategy, privacy=privacy), 3))
    torch.testing.assert_close(found[0].x, found[1].x)


def test_signal_and_noise_of_a_release_are_told_apart_by_their_squares() -> None:
    # |s + z|^2 is |s|^2 + size^2 for each number, on average
    noisy = {"dx": torch.tensor([30.0, 40.0]), "dc": torch.tensor([5.0])}
    signal, noise = 30**2 + 40**2 + 5**2 - (2 * 3**2 + 0.5**2), 2 * 3**2 + 0.5**2
    found = _signal_to_noise(noisy, {"dx": 3.0, "dc": 0.5})
    assert found == pytest.approx((signal / noise) ** 0.5)
    assert _signal_to_noise({"dx": torch.ones(1)}, {"dx": 3.0}) == 0.0
