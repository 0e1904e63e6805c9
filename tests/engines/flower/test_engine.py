"""The engine over a transport that loses, delays and spoils requests; no network needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkin.core.federation import Federation
from fedkin.core.memory import Memory
from fedkin.core.privacy import Privacy
from fedkin.core.problem import Problem
from fedkin.engines import Wire
from fedkin.engines.flower.engine import Flower, SiteRequest
from fedkin.engines.wire import Message, Site
from fedkin.errors import DivergedError
from fedkin.methods import FedAvg, Scaffold
from fedkin.runs.evaluation import score_model
from tests.helpers import blobs, run
from tests.zoo import zoo_problem

SITES = ("a", "b", "c", "d")
Spoil = Callable[[str, Message], Message | str | None]


class Boys:
    """A transport in this process; `spoil` does what it likes with each answer (None: loses it)."""

    def __init__(self, problem: Problem, spoil: Spoil) -> None:
        self.site = Site(problem, Memory(problem.num_clients))
        self.spoil, self.requests = spoil, list[SiteRequest]()

    def exchange(
        self, requests: Sequence[SiteRequest], everyone: bool = False
    ) -> dict[int, Message | str]:
        self.everyone = everyone
        self.requests += requests
        answers = {}
        for i, request in enumerate(requests):
            tensors = {**request.shared, **request.own}
            answer = self.spoil(request.site, self.site.answer(tensors, dict(request.facts)))
            if answer is not None:
                answers[i] = answer
        return answers


def problem() -> Problem:
    torch.manual_seed(0)
    return Problem(nn.Linear(5, 3), blobs(clients=len(SITES)))


def federation(spoil: Spoil, given: Problem | None = None) -> tuple[Federation, list[str]]:
    p, said = given or problem(), list[str]()
    boys = Boys(p, spoil)
    engine = Flower(boys, SITES, "x", "method", 1, torch.device("cpu"), said.append)
    return Federation(p, engine), said


def without(*gone: int) -> Tensor:
    """FedAvg over the other clients alone, by the wire engine."""
    p = problem()
    fed = Federation(p, Wire(p))
    others = torch.tensor([i for i in range(len(SITES)) if i not in gone])
    fed.sample = lambda: others  # type: ignore[method-assign]
    return run(FedAvg(lr=0.1), fed, 3).x


@pytest.mark.parametrize("method", [FedAvg(lr=0.1), Scaffold(lr=0.1)])
def test_a_sound_post_gives_the_wires_numbers(method: Any):
    fed, said = federation(lambda _, answer: answer)
    p = problem()
    assert run(method, fed, 3).x.equal(run(method, Federation(p, Wire(p)), 3).x)
    assert not said


@pytest.mark.parametrize("name", ["dropout", "batch-norm-1d", "lstm", "embedding", "together"])
def test_models_of_many_kinds_give_the_wires_numbers(name: str) -> None:
    fed, said = federation(lambda _, answer: answer, zoo_problem(name))
    other = zoo_problem(name)
    method = FedAvg(lr=0.1, local_steps=3)
    assert run(method, fed, 2).x.equal(run(method, Federation(other, Wire(other)), 2).x)
    assert not said


def reshape(_: str, answer: Message) -> Message:
    return {name: value[:, :-1] for name, value in answer[0].items()}, answer[1]


BAD: dict[str, Callable[[Message], Message | str | None]] = {
    "lost": lambda answer: None,
    "no use": lambda answer: "it cannot be read",
    "an error": lambda answer: ({}, {"error": "no such column"}),
    "another shape": lambda answer: reshape("", answer),
    "another type": lambda answer: ({k: v.double() for k, v in answer[0].items()}, answer[1]),
    "another name": lambda answer: ({"other": torch.zeros(1, 1)}, answer[1]),
    "two rows": lambda answer: ({k: v.repeat(2, 1) for k, v in answer[0].items()}, answer[1]),
    "nothing": lambda answer: ({}, answer[1]),
    "NaN": lambda answer: ({k: v * torch.nan for k, v in answer[0].items()}, answer[1]),
    "counts": lambda answer: (answer[0], {**answer[1], "gradients": True}),
    "no counts": lambda answer: (answer[0], {"good": True}),
    "endless work": lambda answer: (answer[0], {**answer[1], "gradients": 2**61}),
    "more work than others": lambda answer: (answer[0], {**answer[1], "samples": 10**7}),
    "a huge update": lambda answer: ({k: v + 1e6 for k, v in answer[0].items()}, answer[1]),
    "escape codes": lambda answer: ({}, {"error": "\x1b[2J\nround 9: all is well" * 10**5}),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_a_bad_answer_is_left_out_and_its_site_named(kind: str):
    fed, said = federation(lambda site, answer: BAD[kind](answer) if site == "c" else answer)
    assert run(FedAvg(lr=0.1), fed, 3).x.equal(without(2))
    if kind == "NaN":
        assert fed.not_finite == [2]
    if kind != "lost":
        assert len(said) == 3
        assert all("the answer of 'c' is left out" in sentence for sentence in said)
        assert all(sentence.isprintable() and len(sentence) < 500 for sentence in said)


def test_most_sites_say_what_an_answer_looks_like():
    fed, said = federation(lambda site, answer: reshape(site, answer) if site == "a" else answer)
    assert run(FedAvg(lr=0.1), fed, 3).x.equal(without(0))
    assert "float32[1, 17] where others' are dx float32[1, 18]" in said[0]


def test_when_all_are_lost_the_model_stays():
    fed, _ = federation(lambda site, answer: None)
    assert run(FedAvg(), fed, 2).x.equal(fed.initial_model())


def test_when_all_answers_are_nan_the_run_has_diverged():
    fed, _ = federation(lambda site, answer: BAD["NaN"](answer))
    with pytest.raises(DivergedError):
        run(FedAvg(), fed, 1)


def test_an_evaluation_waits_for_everyone_and_a_round_as_agreed():
    fed, _ = federation(lambda _, answer: answer)
    run(FedAvg(), fed, 1)
    assert fed.engine.transport.everyone is False  # type: ignore[attr-defined]
    score_model(fed, fed.initial_model())
    assert fed.engine.transport.everyone is True  # type: ignore[attr-defined]


def test_letters_tell_their_place_and_name_a_registered_step():
    fed, _ = federation(lambda _, answer: answer)
    run(FedAvg(), fed, 2)
    requests = fed.engine.transport.requests  # type: ignore[attr-defined]
    assert [request.site for request in requests] == list(SITES) * 2
    assert [request.facts["place"] for request in requests] == [
        [1, number, 0, i] for number in (1, 2) for i in range(4)
    ]
    assert {request.facts["step"] for request in requests} == {"fedkin.methods.fedavg:local_sgd"}


def test_a_site_clips_its_answer_before_it_leaves() -> None:
    """And the server adds noise that nobody can compute again."""
    lengths = []

    def measured(_: str, answer: Message) -> Message:
        lengths.append(float(answer[0]["dx"].norm()))
        return answer

    fed, said = federation(measured)
    fed.privacy = Privacy({"": 0.01}, 1.0, len(SITES), secret=True)
    first = run(FedAvg(lr=0.1), fed, 1).x
    assert max(lengths) <= 0.01
    assert min(lengths) > 0.009
    assert not torch.equal(first, run(FedAvg(lr=0.1), fed, 1).x)
    assert not said
