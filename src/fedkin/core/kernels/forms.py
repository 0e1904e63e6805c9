"""A module as it is trained, held still and used: modes, norms, and what cannot be stacked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from fedkin.models.layout import Layout, Slot

BatchNorm = nn.modules.batchnorm._BatchNorm
InstanceNorm = nn.modules.instancenorm._InstanceNorm
Norm = nn.modules.batchnorm._NormBase

STATISTICS = ("running_mean", "running_var")


def is_frozen(part: Norm, root: nn.Module) -> bool:
    """Whether a norm keeps the statistics it came with: its own parameters are frozen, or the
    user put it, but not the model, into eval mode."""
    if part.running_mean is None:
        return False
    own = list(part.parameters(recurse=False))
    frozen = bool(own) and not any(parameter.requires_grad for parameter in own)
    return frozen or (root.training and not part.training)


def norms(module: nn.Module) -> dict[str, Norm]:
    """Batch norms (and instance norms with running statistics) that learn, by name."""
    return {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, BatchNorm | InstanceNorm)
        and (isinstance(part, BatchNorm) or part.track_running_stats)
        and not is_frozen(part, module)
    }


def norms_in(form: nn.Module, module: nn.Module) -> list[Norm]:
    """The norms that learn in a copy of a module, whose modes may be others."""
    return [cast(Norm, form.get_submodule(name)) for name in norms(module)]


def batch_norms(module: nn.Module) -> dict[str, Norm]:
    """Those by which an example's output depends on the other examples of its batch."""
    return {name: part for name, part in norms(module).items() if isinstance(part, BatchNorm)}


def statistics_of(module: nn.Module) -> Layout:
    """Where each norm's running mean and variance lie in a row of statistics."""
    slots, start = [], 0
    for name, part in norms(module).items():
        for which in STATISTICS:
            slots.append(Slot(f"{name}.{which}" if name else which, (part.num_features,), start))
            start += part.num_features
    return Layout(tuple(slots))


def track(part: Norm, like: Tensor) -> None:
    """Let a norm go by running statistics when it is used."""
    part.track_running_stats = True
    part.running_mean = torch.zeros(part.num_features, dtype=like.dtype, device=like.device)
    part.running_var = torch.ones(part.num_features, dtype=like.dtype, device=like.device)
    part.num_batches_tracked = torch.tensor(0, device=like.device)


# forms ------------------------------------------------------------------------------------


def training(module: nn.Module) -> nn.Module:
    """As it is trained: norms go by the batch, whose statistics are not collected."""
    form = _lend(module)
    if not module.training:
        form.train()
    for part, original in zip(form.modules(), module.modules(), strict=True):
        if isinstance(original, Norm) and is_frozen(original, module):
            part.eval()
    return _by_batch(form, module)


def still(module: nn.Module) -> nn.Module:
    """Without dropout and the like; norms go by the batch."""
    return _by_batch(_used(module), module)


def used(module: nn.Module) -> nn.Module:
    """As it is used: norms go by statistics, which are to be filled in."""
    form = _used(module)
    like = next(module.parameters())
    for part in norms_in(form, module):
        track(part, like)
    return form


FORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "training": training,
    "still": still,
    "used": used,
}


def _lend(module: nn.Module) -> nn.Module:
    """A module with modes and attributes of its own and the same tensors: callers bring theirs."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def _used(module: nn.Module) -> nn.Module:
    form = _lend(module).eval()
    for part in form.modules():
        # in eval mode torch takes a short cut through attention that cannot be stacked
        if isinstance(part, nn.MultiheadAttention):
            part.dropout, part.training = 0.0, True
        elif isinstance(part, nn.TransformerEncoderLayer):
            part.training = True
    return form


def _by_batch(form: nn.Module, module: nn.Module) -> nn.Module:
    for part in norms_in(form, module):
        part.track_running_stats = False
        part.running_mean = part.running_var = part.num_batches_tracked = None
    return form
