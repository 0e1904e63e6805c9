"""Models that users bring: a class or function that makes a module."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from fedkin.errors import FedkinError
from fedkin.models.basic import Shape

# what a maker is told about the data if it has arguments of these names
TOLD = ("input_shape", "outputs")


def make(
    maker: Any, name: str, input_shape: Shape, outputs: int, seed: int, args: Mapping[str, Any]
) -> nn.Module:
    """The module that a class or function makes of `args`, initialised from the seed alone.

    If it has arguments `input_shape` and `outputs` that are not among args, it is told the
    shape of an input and the number of outputs that the data ask for.
    """
    if isinstance(maker, nn.Module) or not callable(maker):
        raise FedkinError(
            f"model '{name}' must be a class or a function that makes a torch.nn.Module, not "
            f"{'a module made already' if isinstance(maker, nn.Module) else repr(maker)[:60]}"
        )
    try:
        known = signature(maker).parameters
    except ValueError:  # some builtin classes have none
        known = {}  # type: ignore[assignment]
    told = {"input_shape": tuple(input_shape), "outputs": outputs}
    given = {key: value for key, value in told.items() if key in known} | dict(args)
    try:
        signature(maker).bind(**given)
    except (TypeError, ValueError) as error:
        kinds = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
        takes = ", ".join(key for key, part in known.items() if part.kind not in kinds)
        raise FedkinError(
            f"model '{name}' cannot be made: {error}; it takes ({takes}), given as model.args"
        ) from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = maker(**given)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise FedkinError(
                f"model '{name}' cannot be made: {type(error).__name__}: {reason}"
            ) from None
    if not isinstance(module, nn.Module):
        raise FedkinError(f"model '{name}' gives a {type(module).__name__}, not a torch.nn.Module")
    return module
