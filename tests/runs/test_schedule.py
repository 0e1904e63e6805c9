"""Learning rates over rounds, against torch's schedulers."""

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR

from fedkin.core.federation import parts
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import ACD, L2SGD, Ditto, FedAvg, Scaffold
from fedkin.models import build
from fedkin.runs.folder import RunFolder
from fedkin.runs.schedule import rate
from fedkin.runs.settings import Settings
from fedkin.runs.train import train
from fedkin.runs.training import Trainer
from tests.helpers import blobs, least_squares, quadratic

ROUNDS = 24


def torch_rates(kind: str, warm: int) -> list[float]:
    optimiser = SGD([torch.zeros(1, requires_grad=True)], 1.0)
    main = {
        "constant": lambda: LinearLR(optimiser, 1.0, 1.0, 1),
        "cosine": lambda: CosineAnnealingLR(optimiser, ROUNDS - warm),
        "step": lambda: StepLR(optimiser, 7, 0.3),
    }[kind]
    if warm:
        rising = LinearLR(optimiser, 1 / (warm + 1), 1.0, warm)
        plan = SequentialLR(optimiser, [rising, main()], [warm])
    else:
        plan = main()
    found = []
    for _ in range(ROUNDS):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        plan.step()
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [0, 4])
@pytest.mark.parametrize("kind", ["constant", "cosine", "step"])
def test_rates_are_those_of_torch(kind: str, warm: int) -> None:
    settings = Settings(rounds=ROUNDS, lr_schedule=kind, lr_warm_up=warm, lr_every=7, lr_factor=0.3)
    ours = [rate(settings, number) for number in range(1, ROUNDS + 1)]
    assert ours == pytest.approx(torch_rates(kind, warm), abs=1e-12)


def test_rounds_are_taken_with_the_rate_of_the_round() -> None:
    problem = quadratic([1.0], [1.0])
    run = train(problem, FedAvg(lr=0.5, local_steps=1), rounds=4, eval_every=4, baseline=True,
                lr_schedule="step", lr_every=2, lr_factor=0.5)  # fmt: skip
    v = 0.0
    for lr in (0.5, 0.5, 0.25, 0.25):
        v -= lr * (v - 1)
    assert run.personal[0].weight.item() == pytest.approx(v)
    assert run.metrics["lr"].tolist() == [0.5, 0.5, 0.25, 0.25]
    alone = run.trainer.contenders["local"]  # the baseline gets the same schedule
    (asked,) = parts(alone.models(4))
    assert alone.fed.look(asked)["model"].item() == pytest.approx(v)


@pytest.mark.parametrize("state", ["fresh", "kept"])
@pytest.mark.parametrize("kind", ["cosine", "step"])
def test_one_client_is_a_loop_of_torchs_optimiser_and_scheduler(kind: str, state: str) -> None:
    """AdamW with clipping and weight decay, warm-up and a schedule, a scheduler's step a round."""
    problem, rounds, steps, warm = blob_alone(), 6, 3, 2
    how = {"momentum": 0.8, "beta2": 0.95, "weight_decay": 0.1, "clip": 0.3}
    method = FedAvg(lr=0.05, local_steps=steps, optimiser="adamw", optimiser_state=state, **how)
    run = train(problem, method, rounds=rounds, baseline=False, lr_schedule=kind, lr_warm_up=warm,
                lr_every=2, lr_factor=0.5)  # fmt: skip

    module, (x, y) = problem.module(problem.initial[0]), problem.data.train[0]
    optimiser = AdamW(module.parameters(), 0.05, betas=(0.8, 0.95), weight_decay=0.1)
    rising = LinearLR(optimiser, 1 / (warm + 1), 1.0, warm)
    falls = {"cosine": lambda: CosineAnnealingLR(optimiser, rounds - warm),
             "step": lambda: StepLR(optimiser, 2, 0.5)}  # fmt: skip
    plan = SequentialLR(optimiser, [rising, falls[kind]()], [warm])
    for _ in range(rounds):
        if state == "fresh":
            optimiser.state.clear()
        for _ in range(steps):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x.double()), y).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3)
            optimiser.step()
        plan.step()
    for ours, theirs in zip(run.personal.at(0).parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def blob_alone() -> Problem:
    """One client, whose minibatch is all of its data."""
    data = blobs(clients=1, samples=12)
    whole = {"batch_size": 12, "reshuffle": True, "dtype": torch.float64}
    return Problem(build("mlp:4", (5,), 3, seed=2), data, **whole)


@pytest.mark.parametrize("method", [Scaffold(lr=0.1), L2SGD(lr=0.1)])
def test_methods_that_are_sgd_by_definition_take_schedules(method) -> None:
    quick = {"rounds": 3, "baseline": False}
    plain, slowed = (
        train(least_squares(), method, **quick, lr_warm_up=warm).personal[0].weight
        for warm in (0, 2)
    )
    assert not torch.equal(plain, slowed)


def test_a_method_without_lr_says_so() -> None:
    with pytest.raises(FedkinError, match="method 'acd' has no lr"):
        train(least_squares(), ACD(), rounds=1, lr_schedule="cosine")
    with pytest.raises(FedkinError, match=r"did you mean 'cosine'"):
        train(least_squares(), FedAvg(), rounds=1, lr_schedule="cosin")


def test_kept_optimisers_and_schedules_resume_exactly(tmp_path) -> None:
    def trainer(folder: RunFolder) -> Trainer:
        settings = Settings(
            rounds=6, checkpoint_every=3, eval_every=3, lr_schedule="cosine", lr_warm_up=2,
            fraction=0.5, strategy="native:3:1x1",
        )  # fmt: skip
        method = Ditto(lr=0.05, optimiser="adam", optimiser_state="kept", server_optimiser="yogi")
        return Trainer(least_squares(), method, settings, folder)

    whole, halted = (
        trainer(RunFolder.create(tmp_path / name, 'method = "ditto"\n'))
        for name in ("whole", "halted")
    )
    whole.run()
    for _ in range(4):  # one more than the checkpoint has
        halted.step()
    assert halted.folder is not None
    again = trainer(halted.folder)
    assert again.resume() == []
    again.run()
    for file in ("metrics.csv", "clients.csv", "models/client-0003.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "halted" / file).read_bytes()
