"""Fixed-point numbers: the stated error, and no overflow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.engines.secure.fixed import (
    COUNT_BITS,
    FRACTION_BITS,
    decode,
    encode,
    largest,
    layout_of,
    read_layout,
)
from fedkin.errors import FedkinError


@pytest.mark.parametrize("bits", [FRACTION_BITS, COUNT_BITS])
@pytest.mark.parametrize("sites", [2, 3, 10, 30, 1000])
def test_a_sum_is_the_plain_one_to_the_stated_error(bits: int, sites: int):
    g = torch.Generator().manual_seed(sites)
    rows = [{"dx": torch.randn(1, 200, generator=g, dtype=torch.float64)} for _ in range(sites)]
    total = np.sum([encode(row, 0.5, bits, sites) for row in rows], axis=0, dtype=np.uint64)
    found = decode(total, bits, layout_of(rows[0]))["dx"]
    plain = torch.stack([row["dx"][0] * 0.5 for row in rows]).sum(0)
    assert float((found - plain).abs().max()) <= sites * 2.0 ** -(bits + 1) + 1e-12


@pytest.mark.parametrize("sites", [2, 3, 7, 30, 1000])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_of_all_sites_do_not_overflow(sites: int, sign: int):
    x = {"x": torch.full((1, 1), sign * largest(32, sites), dtype=torch.float64)}
    words = encode(x, 1.0, 32, sites)
    exact = sum(int(words.view(np.int64)[0]) for _ in range(sites))
    total = np.sum([words] * sites, axis=0, dtype=np.uint64)
    assert int(total.view(np.int64)[0]) == exact
    for wrong in (1.001 * x["x"], x["x"] * torch.nan, x["x"] * torch.inf):
        with pytest.raises(FedkinError, match="a number beyond"):
            encode({"x": wrong}, 1.0, 32, sites)


def test_tensors_come_back_under_their_names_and_in_their_types():
    rows = {
        "b": torch.tensor([[1.5, -2.0]]),
        "a": torch.tensor([[[3.0], [4.0]]], dtype=torch.float64),
        "n": torch.tensor([[7]]),
    }
    layout = layout_of(rows)
    assert read_layout([[n, k, s] for n, k, s in layout]) == layout
    found = decode(encode(rows, 1.0, 32, 2), 32, layout)
    assert found["b"].tolist() == [1.5, -2.0]
    assert found["b"].dtype == torch.float32
    assert found["a"].tolist() == [[3.0], [4.0]]
    assert found["a"].dtype == torch.float64
    assert found["n"].tolist() == [7.0]


@pytest.mark.parametrize(
    "wrong",
    [None, [["x", "float32"]], [["x", "nn", [1]]], [["x", "float32", [-1]]],
     [["x", "float32", [10**9]]], [["x", "float32", ["a"]]]],
)  # fmt: skip
def test_a_layout_that_makes_no_sense_is_refused(wrong: object):
    with pytest.raises(FedkinError, match="layout"):
        read_layout(wrong)
