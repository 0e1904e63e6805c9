"""Follow an input through a module and note which channels each parameter works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedkin.errors import FedkinError

WHOLE = 0  # the group of channels that are never cut: the model's inputs and outputs

ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Identity,
    nn.modules.dropout._DropoutNd,
)  # fmt: skip
POOLS = tuple(
    getattr(nn, f"{kind}Pool{n}d") for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax")
    for n in (1, 2, 3)
)  # fmt: skip
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)

# functions and tensor methods by name
KEEP_CHANNELS = {
    "relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "tanh",
    "sigmoid", "softplus", "hardswish", "hardsigmoid", "hardtanh", "dropout", "contiguous",
    "neg", "abs", "square", "exp", "clone", "float", "double", "to",
    "max_pool1d", "max_pool2d", "max_pool3d", "boolean_dispatch", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
}  # fmt: skip
COMBINE = {"add", "iadd", "add_", "sub", "isub", "mul", "imul", "mul_", "truediv", "div"}
RESHAPE = {"flatten", "view", "reshape"}


@dataclass(frozen=True)
class Axis:
    """One dimension of a parameter: its group of channels (None: whole), entries per channel."""

    group: str | None
    repeat: int = 1


@dataclass(frozen=True)
class Flow:
    """The channels of a tensor: their group, the dimension they lie in, entries per channel."""

    group: int
    axis: int = 1
    repeat: int = 1


def follow(module: nn.Module, example: Tensor) -> dict[str, tuple[Axis, ...]]:
    """The axes of every parameter that has hidden widths; FedkinError where it cannot be told."""
    try:
        traced = fx.symbolic_trace(module)
    except Exception as error:  # tracing runs the user's own code: anything may be raised
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _cannot(type(module).__name__, f"its forward cannot be followed ({reason})") from None
    follower = Follower(traced)
    with torch.no_grad():
        follower.run(example)
    return follower.axes()


def _cannot(layer: str, reason: str) -> FedkinError:
    return FedkinError(
        f"the model cannot be cut at '{layer}': {reason}; declare its widths "
        "(see fedkin.models.widths), or train without sub-models"
    )


class Follower(fx.Interpreter):
    """Runs the module on an example and carries the channels of every value along."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced)
        self.extra_traceback = False
        self.flows: dict[fx.Node, Flow | None] = {}
        self.parents = [WHOLE]  # a forest of groups: groups that are added become one
        self.names = ["the whole model"]
        self.parameters: dict[str, tuple[Flow | None, ...]] = {}

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        return {
            name: tuple(self._axis(flow) for flow in flows)
            for name, flows in self.parameters.items()
        }

    def _axis(self, flow: Flow | None) -> Axis:
        root = WHOLE if flow is None else self._find(flow.group)
        return Axis(None) if root == WHOLE or flow is None else Axis(self.names[root], flow.repeat)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.flows[n] = self._flow(n, value)
        return value

    # groups -------------------------------------------------------------------------

    def _new(self, name: str) -> int:
        self.parents.append(len(self.parents))
        self.names.append(name)
        return len(self.parents) - 1

    def _find(self, group: int) -> int:
        while self.parents[group] != group:
            group = self.parents[group]
        return group

    def _join(self, first: int, second: int) -> None:
        # the older root stays, and WHOLE before all others
        a, b = sorted((self._find(first), self._find(second)))
        self.parents[b] = a

    # values -------------------------------------------------------------------------

    def _flow(self, node: fx.Node, value: Any) -> Flow | None:
        inputs = [n for n in node.all_input_nodes if self.flows.get(n) is not None]
        flows = [flow for n in inputs if (flow := self.flows[n]) is not None]
        match node.op:
            case "placeholder":
                return Flow(WHOLE)
            case "output":
                for flow in flows:
                    self._join(flow.group, WHOLE)
                return None
            case "get_attr":
                if isinstance(value, nn.Parameter):
                    raise _cannot(str(node.target), "a parameter is used outside a known layer")
                return None
            case "call_module":
                return self._module_flow(str(node.target), flows, inputs)
        if not isinstance(value, Tensor) or not flows:
            return None
        name = getattr(node.target, "__name__", str(node.target))
        return self._function_flow(f"{name} ({node.name})", name, node, flows, inputs, value)

    def _function_flow(
        self, where: str, name: str, node: fx.Node, flows: list[Flow], inputs: list[fx.Node],
        value: Tensor,
    ) -> Flow:  # fmt: skip
        if all(self._find(flow.group) == WHOLE for flow in flows):
            return Flow(WHOLE)
        if name in COMBINE:
            return self._combined(where, flows, inputs, value)
        if len(flows) == 1 and name in KEEP_CHANNELS:
            return flows[0]
        if len(flows) == 1 and name in RESHAPE:
            return self._reshaped(where, flows[0], self.env[inputs[0]], value)
        if len(flows) == 1 and name == "mean":
            return self._averaged(where, node, flows[0], self.env[inputs[0]], value)
        raise _cannot(where, "what it does to channels is not known here")

    def _combined(
        self, where: str, flows: list[Flow], inputs: list[fx.Node], value: Tensor
    ) -> Flow:
        joined: list[Flow] = []
        for flow, node in zip(flows, inputs, strict=True):
            shape, hidden = self.env[node].shape, self._find(flow.group) != WHOLE
            if hidden and len(shape) != value.dim():
                raise _cannot(where, "it spreads channels over another dimension")
            # a single channel spread over all of another's stays a group of its own
            if len(shape) == value.dim() and shape[flow.axis] == value.shape[flow.axis]:
                joined.append(flow)
        hidden_ones = [flow for flow in joined if self._find(flow.group) != WHOLE]
        if not hidden_ones:
            return Flow(WHOLE)
        if len({(flow.axis, flow.repeat) for flow in hidden_ones}) > 1:
            raise _cannot(where, "it joins channels that lie in different dimensions")
        for flow in joined:
            self._join(hidden_ones[0].group, flow.group)
        return hidden_ones[0]

    def _reshaped(self, where: str, flow: Flow, before: Tensor, after: Tensor) -> Flow:
        same = after.shape == before.shape
        joined = flow.axis == 1 and after.shape == (len(before), before[0].numel())
        if not same and not joined:
            raise _cannot(where, "only [n, channels, ...] flattened to [n, features] is followed")
        return flow if same else Flow(flow.group, 1, flow.repeat * before[0, 0].numel())

    def _averaged(
        self, where: str, node: fx.Node, flow: Flow, before: Tensor, after: Tensor
    ) -> Flow:
        dims = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        dims = [dims] if isinstance(dims, int) else dims
        if not isinstance(dims, list | tuple) or any(
            int(d) % before.dim() <= flow.axis for d in dims
        ):
            raise _cannot(where, "a mean over channels or examples is not followed")
        return flow

    # layers -------------------------------------------------------------------------

    def _module_flow(self, name: str, flows: list[Flow], inputs: list[fx.Node]) -> Flow:
        layer = self.fetch_attr(name)
        if any(not p.requires_grad for p in layer.parameters()):
            raise _cannot(name, f"{_kind(layer)} is frozen")
        if len(flows) != 1:
            raise _cannot(name, f"{_kind(layer)} with {len(flows)} inputs is not known here")
        flow, before = flows[0], self.env[inputs[0]]
        hidden = self._find(flow.group) != WHOLE
        if isinstance(layer, ACTIVATIONS + POOLS):
            return flow
        if isinstance(layer, nn.Flatten):
            after: Tensor = layer(before)
            return self._reshaped(name, flow, before, after) if hidden else Flow(WHOLE)
        if isinstance(layer, nn.Linear):
            if hidden and flow.axis != before.dim() - 1:
                raise _cannot(name, "its input's last dimension does not hold the channels")
            out = Flow(self._new(name), before.dim() - 1)
            self._note(name, weight=(out, flow), bias=(out,))
            return out
        if isinstance(layer, CONVOLUTIONS):
            return self._convolution_flow(name, layer, flow)
        if isinstance(layer, NORMS) and flow.axis == 1 and (layer.affine or not hidden):
            self._note(name, weight=(flow,), bias=(flow,))
            return flow
        if isinstance(layer, nn.LayerNorm) and (layer.elementwise_affine or not hidden):
            start = before.dim() - len(layer.normalized_shape)
            own = tuple(flow if d == flow.axis else None for d in range(start, before.dim()))
            self._note(name, weight=own, bias=own)
            return flow
        if isinstance(layer, nn.PReLU):
            self._note(name, weight=(flow if layer.num_parameters > 1 else None,))
            return flow
        if not hidden and not list(layer.parameters()):
            return Flow(WHOLE)
        raise _cannot(name, f"{_kind(layer)} has no widths known here")

    def _convolution_flow(self, name: str, layer: Any, flow: Flow) -> Flow:
        rest = (None,) * len(layer.kernel_size)
        if layer.groups == 1:
            out = Flow(self._new(name))
            self._note(name, weight=(out, flow, *rest), bias=(out,))
            return out
        if not layer.groups == layer.in_channels == layer.out_channels:
            raise _cannot(name, f"{_kind(layer)} works in {layer.groups} groups of channels")
        self._note(name, weight=(flow, None, *rest), bias=(flow,))
        return flow

    def _note(self, layer: str, **parameters: tuple[Flow | None, ...]) -> None:
        """Remember the channels of a layer's parameters; a layer met twice joins its channels."""
        own = dict(self.fetch_attr(layer).named_parameters())
        for name, flows in parameters.items():
            if name not in own:
                continue
            before = self.parameters.setdefault(f"{layer}.{name}", flows)
            for old, new in zip(before, flows, strict=True):
                if old is not None and new is not None:
                    self._join(old.group, new.group)


def _kind(layer: nn.Module) -> str:
    return f"a layer of type {type(layer).__name__}"
