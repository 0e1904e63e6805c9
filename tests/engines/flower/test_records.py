"""Messages survive the way through Flower's records; what does not tell the truth is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedkin.engines.flower.records import from_records, to_records, to_tensor
from fedkin.errors import FedkinError


def test_a_message_comes_back_as_it_was():
    tensors = {
        "x": torch.randn(1, 3, 2),
        "d": torch.randn(2, dtype=torch.float64),
        "n": torch.tensor([[2**40]]),
        "yes": torch.tensor([True, False]),
        "alone": torch.tensor(1.5),
    }
    facts = {"key": 2**64 - 1, "hyper": {"lr": 0.1, "batches": None}, "step": "a:b"}
    found, about = from_records(to_records(facts, shared=tensors, own={}))
    assert about == facts
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert found[name].equal(value)


def array(data: bytes) -> Array:
    return Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=data)


def lying(shape: tuple[int, ...]) -> bytes:
    """An array's header that promises more than comes."""
    honest = Array(np.zeros(1, np.float32)).data
    return honest.replace(b"(1,)", str(shape).encode())


@pytest.mark.parametrize(
    "bad",
    [
        array(b""),
        array(b"garbage"),
        array(lying((536870912,))),
        array(Array(np.zeros(3)).data[:-1]),
        Array(np.array(["words"])),
        Array(np.zeros(2, np.complex64)),
    ],
)
def test_arrays_that_are_not_what_they_say_are_refused(bad: Array):
    content = RecordDict({"facts": ConfigRecord({"json": "{}"}), "x": ArrayRecord({"x": bad})})
    with pytest.raises(FedkinError, match="cannot be read"):
        from_records(content)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"facts": ConfigRecord({})},
        {"facts": ConfigRecord({"json": "{"})},
        {"facts": ConfigRecord({"json": "[1]"})},
        {"facts": ConfigRecord({"json": 3})},
    ],
)
def test_facts_that_are_no_table_are_refused(content: dict[str, ConfigRecord]):
    with pytest.raises(FedkinError, match="cannot be read"):
        from_records(RecordDict(content))


def test_one_array_under_many_names_counts_many_times():
    one = Array(np.zeros(1000, np.float32))
    record = ArrayRecord({str(i): one for i in range(100)})
    content = RecordDict({"facts": ConfigRecord({"json": "{}"}), "reply": record})
    assert len(from_records(content)[0]) == 100
    with pytest.raises(FedkinError, match="cannot be read"):
        from_records(content, limit=100_000)


def test_a_tensor_does_not_share_memory_with_its_message():
    source = Array(np.zeros(2, np.float32))
    to_tensor(source).add_(1)
    assert to_tensor(source).eq(0).all()
