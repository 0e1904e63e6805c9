"""Augmentation: what images become, and that it depends on the client, the step and the seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkin.core import rng
from fedkin.core.augment import Augment
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg
from fedkin.models import build
from fedkin.runs.config import make_config
from tests.helpers import blobs, federation, personal_models, run

KEYS = rng.key(0, "test", np.arange(40))
IMAGE = torch.arange(1.0, 10.0).view(1, 3, 3)


def many(kind) -> list[Tensor]:
    x = IMAGE.expand(40, 30, 1, 3, 3)
    return list(Augment([kind])(x, KEYS, np.zeros(40, np.int64), 30).flatten(0, 1))


def test_a_flip_exchanges_left_and_right_for_half_of_the_images() -> None:
    found = many("flip")
    flipped = sum(torch.equal(x, IMAGE.flip(-1)) for x in found)
    assert flipped + sum(torch.equal(x, IMAGE) for x in found) == len(found)
    assert 500 < flipped < 700  # of 1200: six deviations


def test_a_crop_is_a_window_of_the_padded_image_and_all_windows_are_alike_likely() -> None:
    padded = torch.nn.functional.pad(IMAGE, [1] * 4)
    windows = {
        tuple(padded[0, i : i + 3, j : j + 3].flatten().tolist()): (i, j)
        for i in range(3)
        for j in range(3)
    }
    counts = Counter(windows[tuple(x.flatten().tolist())] for x in many("crop:1"))
    assert len(counts) == 9
    assert all(75 < count < 195 for count in counts.values())  # 133 each: five deviations


def test_numbers_follow_from_the_key_the_batch_and_the_place_alone() -> None:
    augment, x = Augment(["crop:2", "flip"]), torch.rand(3, 4, 1, 5, 5)
    batch = np.array([0, 5, 2])
    whole = augment(x, KEYS[:3], batch, 4)
    for i in range(3):
        alone = augment(x[i : i + 1, :2], KEYS[i : i + 1], batch[i : i + 1], 4)
        assert torch.equal(whole[i : i + 1, :2], alone)
    assert not torch.equal(whole, augment(x, KEYS[:3], batch + 1, 4))


def brighten(images: Tensor, numbers: Tensor) -> Tensor:
    return images * (0.5 + numbers[:, 0])[:, None, None, None]


@pytest.mark.parametrize("reshuffle", [False, True])
def test_augmented_runs_are_the_same_in_every_engine_and_block_size(reshuffle) -> None:
    data = blobs(clients=4, samples=7, dimension=64, shape=(1, 8, 8))

    def models(engine: str, strategy: str, augment=("flip", "crop:2", brighten)) -> Tensor:
        module = build("mlp:4", (1, 8, 8), 3, seed=1)
        options = {"batch_size": 5, "reshuffle": reshuffle, "dtype": torch.float64}
        problem = Problem(module, data, **options, augment=augment)
        fed, method = federation(problem, engine, strategy, fraction=0.75), FedAvg(local_steps=3)
        return personal_models(method, fed, run(method, fed, 3))

    expected = models("embedded", "native:4:1x1")
    for engine, strategy in (
        ("embedded", "native:1:1x1"),
        ("embedded", "vmap:3:1x1"),
        ("wire", ""),
    ):
        torch.testing.assert_close(models(engine, strategy), expected, rtol=0, atol=1e-10)
    assert not torch.allclose(models("embedded", "native:4:1x1", ()), expected)


def unseeded(images: Tensor, numbers: Tensor) -> Tensor:
    return images + torch.randn_like(images)


def smaller(images: Tensor, numbers: Tensor) -> Tensor:
    return images[..., 1:]


@pytest.mark.parametrize(
    ("augment", "shape", "sentence"),
    [
        (("flop",), (1, 8, 8), "unknown augment 'flop'.*flip"),
        (("crop",), (1, 8, 8), "say how many pixels"),
        (("flip:2",), (1, 8, 8), "flip takes no number"),
        (("flip",), (64,), "is for images"),
        ((unseeded,), (1, 8, 8), "two different results"),
        ((smaller,), (1, 8, 8), "augment 'smaller' fails"),
    ],
)
def test_what_cannot_work_is_refused_at_the_door(augment, shape, sentence) -> None:
    data = blobs(clients=2, dimension=64, shape=shape)
    with pytest.raises(FedkinError, match=sentence):
        Problem(build("mlp:4", shape, 3), data, augment=augment)


def test_the_option_takes_names_and_files(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def turn(x, u):\n    return x\n")
    config = make_config({"method": "local", "model": {"augment": f"flip, {path}:turn"}})
    assert config.model.augment == f"flip,{path}:turn"
    assert list(config.files) == [str(path)]
    with pytest.raises(FedkinError, match="unknown augment 'crap'"):
        make_config({"method": "local", "model": {"augment": "crap:4"}})
