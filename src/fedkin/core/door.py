"""What a module must be to be trained here, found out by running it a few times."""

from __future__ import annotations

import copy
import inspect
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fedkin.core import rng
from fedkin.core.kernels import forms
from fedkin.core.kernels.noise import Noise
from fedkin.core.kernels.spec import as_outputs
from fedkin.core.losses import Loss
from fedkin.data.clients import ClientData
from fedkin.errors import FedkinError

KEY = rng.key("door")


@dataclass(frozen=True)
class Manners:
    """What a module does: draws random numbers in training, lets the examples of a batch meet in
    training or even in use; the smallest batch it can be trained on; an example's outputs."""

    random: bool
    mixes: bool
    mixes_in_use: bool
    least: int
    output: Tensor


def own_copy(module: nn.Module) -> nn.Module:
    """A copy to keep, of a module that can be copied and called with one argument."""
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise FedkinError(
                f"the model's parameter '{name}' has no shape yet: call the model once, on a "
                "batch, before it is trained"
            )
        if parameter.is_complex():
            raise FedkinError(
                f"the model's parameter '{name}' has complex numbers, and real ones are averaged "
                "here: keep its real and imaginary parts as two parameters"
            )
    try:
        needed = [
            p.name
            for p in inspect.signature(module.forward).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = ["x"]
    if len(needed) > 1:
        listed = ", ".join(f"'{name}'" for name in needed)
        raise FedkinError(
            f"the model's forward needs {len(needed)} arguments ({listed}) but gets one, a batch "
            "of inputs: put them together in one tensor, or give the others default values"
        )
    # attributes that every forward computes anew, as torch.nn.utils.weight_norm does
    computed = (
        value
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, Tensor) and not value.is_leaf
    )
    try:
        return copy.deepcopy(module, {id(value): value.detach() for value in computed})
    except Exception as error:
        raise FedkinError(f"the model cannot be copied: {_first_line(error)}") from None


def fitting(module: nn.Module, x: Tensor, dtype: torch.dtype, known: bool) -> Tensor:
    """Inputs in the type that the module takes: whole numbers stay so where it takes them.

    Inputs that are not known (`known`), only their shape, may be of either kind.
    """
    first = x.to(dtype) if x.is_floating_point() else x
    reason = _refusal(module, first)
    if reason is None or (x.is_floating_point() and known):
        return first
    second = x.to(dtype) if not x.is_floating_point() else x.long()
    return second if _refusal(module, second) is None else first


def _refusal(module: nn.Module, x: Tensor) -> str | None:
    try:
        with torch.no_grad():
            forms.still(module)(x[:2])
    except Exception as error:
        return _first_line(error)
    return None


def manners(module: nn.Module, x: Tensor) -> Manners:
    """Run a module on a few examples, and refuse what could not be repeated or averaged."""
    still, trained = forms.still(module), forms.training(module)
    shape = tuple(x.shape[1:])
    try:
        with torch.no_grad():
            output = as_outputs(still(x[:2]))
    except FedkinError:
        raise
    except Exception as error:
        raise FedkinError(
            f"the model cannot take inputs of shape {shape}: {_first_line(error)}"
        ) from None
    with _unchanged(module), torch.no_grad(), Noise(KEY):
        trained(x[:2])
    _check_slopes(trained, x[:2])
    with torch.no_grad():
        stirred = _stirred(module)
        draws = _run_twice(trained, stirred, x[:2], "")
        if _run_twice(still, stirred, x[:2], " in eval mode too"):
            raise FedkinError(
                "the model draws random numbers in eval mode too: give F.dropout and the like "
                "training=self.training"
            )
        _check_shapes(still, x, output)
        norms = bool(forms.batch_norms(module))
        in_use = not norms and _mixes(still, stirred, x)
        mixes = norms or in_use or _mixes(trained, stirred, x)
        least = 2 if norms and _fails(trained, stirred, x[:1]) else 1
    if in_use:
        warnings.warn(
            "an example's output depends on the other examples of its batch, also in eval mode: "
            "where that is not meant, look for batch_first or a mean over the wrong dimension",
            stacklevel=4,
        )
    return Manners(draws > 0, mixes, in_use, least, output)


def _check_slopes(trained: nn.Module, x: Tensor) -> None:
    """Refuse a module whose outputs are cut off from its parameters."""
    with torch.enable_grad(), Noise(KEY):
        try:
            attached = as_outputs(trained(x)).requires_grad
        except RuntimeError as error:
            raise FedkinError(f"the model cannot be trained: {_first_line(error)}") from None
    if not attached:
        raise FedkinError(
            "the model's outputs have no gradients: its forward must not use torch.no_grad, detach "
            "or argmax on the way to them"
        )


def _stirred(module: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters moved a little at random, so that nothing hides behind zeros."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            moves = torch.randn(parameter.shape, generator=generator).to(parameter)
            found[name] = parameter.detach() + 0.1 * moves
    return found


def _run_twice(form: nn.Module, named: dict[str, Tensor], x: Tensor, when: str) -> int:
    """How many random tensors a module draws; an error if they are not ours to give."""
    before = random.getstate(), np.random.get_state(legacy=False)
    outputs = []
    for _ in range(2):
        with Noise(KEY) as noise:
            outputs.append(as_outputs(functional_call(form, named, (x,))))
        if noise.strange:
            raise FedkinError(
                f"the model draws random numbers with torch.{next(iter(noise.strange))}{when}, so "
                "a run could not be repeated: dropout, torch.rand, torch.randn and torch.bernoulli "
                "can be"
            )
    culprit = _moved(before)
    if culprit or not torch.equal(*(torch.nan_to_num(o) for o in outputs)):
        raise FedkinError(
            f"the model gives other outputs for the same inputs{when}, as it "
            + (f"draws random numbers with {culprit}" if culprit else "has a state of its own")
            + ": use torch's dropout or torch.rand, which fedkin can repeat"
        )
    draws: int = noise.draws
    return draws


def _moved(before: tuple[Any, Any]) -> str | None:
    """Whose random numbers were used since."""
    if random.getstate() != before[0]:
        return "Python's random"
    was, now = before[1]["state"], np.random.get_state(legacy=False)["state"]
    same = was["pos"] == now["pos"] and np.array_equal(was["key"], now["key"])
    return None if same else "numpy.random"


def _check_shapes(still: nn.Module, x: Tensor, output: Tensor) -> None:
    """An example's output has one shape, and every example has one."""
    for examples in (x[:2], x[-2:], x[:3], x[: len(x) // 2][-2:]):
        if len(examples) < 2:  # too few for batch norm
            continue
        try:
            shape = tuple(as_outputs(still(examples)).shape)
        except FedkinError:
            raise
        except Exception as error:
            raise FedkinError(
                f"the model takes some inputs but not others: {_first_line(error)}"
            ) from None
        wanted = (len(examples), *output.shape[1:])
        if shape != wanted:
            raise FedkinError(
                f"the model gives outputs of shape {shape} for {len(examples)} examples, where "
                f"{wanted} was expected: one row per example, of the same shape for all inputs"
            )


def _mixes(form: nn.Module, named: dict[str, Tensor], x: Tensor) -> bool:
    """Whether the outputs of two examples change when a third joins them."""
    if len(x) < 3:
        return False
    found = []
    for count in (2, 3):
        with Noise(KEY):
            found.append(as_outputs(functional_call(form, named, (x[:count],)))[:2])
    a, b = found
    size = float(a.abs().max()) if a.numel() else 0.0
    return not torch.allclose(a, b, rtol=1e-3, atol=1e-4 * size, equal_nan=True)


def _fails(form: nn.Module, named: dict[str, Tensor], x: Tensor) -> bool:
    try:
        with Noise(KEY):
            functional_call(form, named, (x,))
    except ValueError:
        return True
    return False


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Refuse a module whose forward changes its own parameters or buffers."""
    tensors = {"parameter": module.named_parameters, "buffer": module.named_buffers}
    before = {(kind, n): t.detach().clone() for kind, of in tensors.items() for n, t in of()}
    yield
    for kind, of in tensors.items():
        for name, tensor in of():
            if not torch.equal(torch.nan_to_num(before[kind, name]), torch.nan_to_num(tensor)):
                raise FedkinError(
                    f"the model's forward changes its own {kind} '{name}', which clients could not "
                    "share: compute what it needs anew in every forward"
                )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_outputs(output: Tensor, target: Tensor, loss: Loss, classes: int | None) -> None:
    """Refuse a model that does not fit the data, by its outputs for two examples."""
    if loss.binary:
        if classes != 2 or output.shape[1:] != (1,):
            raise FedkinError(
                f"loss '{loss.name}' is for 2 classes and a model with 1 output, not "
                f"for {classes} classes and outputs of shape {tuple(output.shape[1:])}"
            )
    elif loss.classes and classes is not None:
        if output.dim() != 2 or output.shape[1] < classes:
            raise FedkinError(
                f"the model gives outputs of shape {tuple(output.shape[1:])} but the labels "
                f"have {classes} classes; its last layer needs {classes} outputs"
            )
    elif loss.name == "squared-error" and output.numel() != target.numel():
        raise FedkinError(
            f"the model gives outputs of shape {tuple(output.shape[1:])} but the targets "
            f"have shape {tuple(target.shape[1:]) or '(one number)'}"
        )
    if not torch.isfinite(output).all():
        raise FedkinError("the initial model gives outputs that are not finite")


def check_batches(least: int, batch_size: int, data: ClientData) -> None:
    """Refuse batches that are too small for batch norm."""
    if batch_size < least:
        raise FedkinError("batch norm needs batches of at least 2 samples: raise batch_size")
    small = (data.train.sizes < least).nonzero()[:, 0].tolist()
    if small and data.train.here:
        raise FedkinError(
            f"client '{data.names[small[0]]}' has a single training sample, too few for "
            "batch norm: leave such clients out, or use GroupNorm or LayerNorm"
        )
