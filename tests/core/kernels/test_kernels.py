"""Every kernel gives the gradients that plain autograd gives."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedkin.core.kernels import ModelSpec, UnsupportedLayerError, make_kernel
from fedkin.core.kernels.functional import OneByOne, Stacked
from fedkin.core.kernels.native import Native
from fedkin.core.kernels.tangents import NativeTwice
from fedkin.core.losses import LOSSES, get_loss
from fedkin.models.layout import Layout

ROWS, EXAMPLES = 3, 4


class Residual(nn.Module):
    """A small network with everything the native kernel leaves to autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.first(x)))
        h = h + self.second(h)
        return self.head(h.mean((2, 3)))


MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(5, 3), (5,)),
    "mlp": (
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3)),
        (5,),
    ),
    "tabular": (
        nn.Sequential(
            nn.LayerNorm(5), nn.Linear(5, 4), nn.LayerNorm(4, bias=False), nn.GELU(),
            nn.Linear(4, 4), nn.LayerNorm(4, elementwise_affine=False), nn.SiLU(), nn.Linear(4, 3),
        ),
        (5,),
    ),
    "tokens": (
        nn.Sequential(
            nn.Linear(4, 5), nn.LayerNorm((2, 5)), nn.GELU(), nn.Linear(5, 3), nn.Flatten(),
            nn.Linear(6, 3),
        ),
        (2, 4),
    ),
    "no-bias": (nn.Sequential(nn.Flatten(), nn.Linear(6, 3, bias=False)), (2, 3)),
    "grey-cnn": (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3),
        ),
        (1, 8, 8),
    ),
    "colour-cnn": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, bias=False), nn.ReLU(),
            nn.MaxPool2d(3, stride=1, padding=1), nn.Flatten(), nn.Linear(36, 3),
        ),
        (3, 8, 8),
    ),
    "residual": (Residual(), (2, 6, 6)),
}  # fmt: skip


def setup(model: str, loss: str = "cross-entropy") -> tuple[ModelSpec, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    module, shape = MODULES[model]
    module = module.double()
    spec = ModelSpec(module, Layout.of(module), LOSSES[loss])
    v = 0.5 * torch.randn(ROWS, spec.layout.size, dtype=torch.float64)
    x = torch.randn(ROWS, EXAMPLES, *shape, dtype=torch.float64)
    y = torch.randint(0, 3, (ROWS, EXAMPLES))
    w = torch.rand(ROWS, EXAMPLES, dtype=torch.float64)
    return spec, (v, x, y, w)


def reference(spec: ModelSpec, v: Tensor, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Row by row with a real module and loss.backward()."""
    values, slopes = [], []
    for i in range(ROWS):
        spec.layout.fill(spec.module, v[i])
        spec.module.zero_grad()
        value = (spec.loss.value(spec.module(x[i]), y[i]) * w[i]).sum()
        value.backward()
        values.append(value.detach())
        slopes.append(torch.cat([p.grad.reshape(-1) for p in spec.module.parameters()]))
    return torch.stack(values)[:, None], torch.stack(slopes)


def kernels_for(model: str) -> list[str]:
    return ["vmap", "autograd"] if model == "residual" else ["native", "vmap", "autograd"]


@pytest.mark.parametrize("model", MODULES)
@pytest.mark.parametrize("loss", ["cross-entropy", "hinge"])
def test_gradients_and_values_equal_autograd(model: str, loss: str) -> None:
    spec, (v, x, y, w) = setup(model, loss)
    value, slope = reference(spec, v, x, y, w)
    for name in kernels_for(model):
        kernel = make_kernel(name, spec)
        found = kernel.value_and_grad(v, x, y, w)
        torch.testing.assert_close(found, (value, slope), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(kernel.grad(v, x, y, w), slope, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("examples", [1, EXAMPLES])
@pytest.mark.parametrize(
    ("model", "make"),
    [(name, Native) for name in MODULES if name != "residual"]
    + [("residual", OneByOne), ("residual", Stacked)],
)
def test_a_step_in_place_is_the_step_along_autograds_gradient(model, make, examples: int) -> None:
    spec, (v, x, y, w) = setup(model)
    kernel = make(spec)
    x, y, w, rates = x[:, :examples], y[:, :examples], w[:, :examples], torch.rand(ROWS, 1).double()
    _, slope = reference(spec, v, x, y, w)
    _, even = reference(spec, v, x, y, torch.full_like(w, 1 / examples))
    for lr, weights, expected in ((0.3, w, slope), (rates, w, slope), (rates, None, even)):
        own, other = v.clone(), torch.randn_like(v)
        assert kernel.descend_(own, lr, x, y, weights, own) is own
        torch.testing.assert_close(own, v - lr * expected, rtol=1e-10, atol=1e-12)
        into = other.clone()
        assert kernel.descend_(v, lr, x, y, weights, into) is into
        torch.testing.assert_close(into, other - lr * expected, rtol=1e-10, atol=1e-12)


def test_the_hinge_is_that_of_pytorch() -> None:
    outputs, targets = torch.randn(20, 4), torch.randint(0, 4, (20,))
    expected = nn.functional.multi_margin_loss(outputs, targets, reduction="none")
    torch.testing.assert_close(LOSSES["hinge"].value(outputs, targets), expected)


@pytest.mark.parametrize("model", MODULES)
def test_without_weights_every_example_counts_the_same(model: str) -> None:
    spec, (v, x, y, w) = setup(model)
    even = torch.full_like(w, 1 / EXAMPLES)
    for name in kernels_for(model):
        kernel = make_kernel(name, spec)
        torch.testing.assert_close(kernel.grad(v, x, y, None), kernel.grad(v, x, y, even))


@pytest.mark.parametrize("model", MODULES)
def test_outputs_are_those_of_the_module(model: str) -> None:
    spec, (v, x, _, _) = setup(model)
    for name in kernels_for(model):
        outputs = make_kernel(name, spec).outputs(v, x)
        for i in range(ROWS):
            expected = spec.layout.fill(spec.module, v[i])(x[i])
            torch.testing.assert_close(outputs[i], expected)


@pytest.mark.parametrize("name", ["native", "vmap", "autograd"])
@pytest.mark.parametrize("model", ["mlp", "tabular", "tokens"])
def test_hessian_products_equal_the_explicit_hessian(name: str, model: str) -> None:
    spec, (v, x, y, w) = setup(model)
    u = torch.randn_like(v)
    kernel = make_kernel(name, spec)

    def loss(vector: Tensor, i: int) -> Tensor:
        named = {k: p[0] for k, p in spec.layout.split(vector[None]).items()}
        outputs = torch.func.functional_call(spec.module, named, (x[i],))
        return (spec.loss.value(outputs, y[i]) * w[i]).sum()

    expected = [
        torch.autograd.functional.hessian(lambda z, i=i: loss(z, i), v[i]) @ u[i]
        for i in range(ROWS)
    ]
    torch.testing.assert_close(kernel.hvp(v, u, x, y, w), torch.stack(expected))


def test_squared_error_is_half_the_square() -> None:
    spec, (v, x, _, w) = setup("linear", "squared-error")
    y = torch.randn(ROWS, EXAMPLES, 3, dtype=torch.float64)
    value, slope = reference(spec, v, x, y, w)
    torch.testing.assert_close(
        make_kernel("native", spec).value_and_grad(v, x, y, w), (value, slope)
    )
    residual = torch.einsum("bnd,bcd->bnc", x, v[:, :15].view(ROWS, 3, 5)) + v[:, None, 15:] - y
    by_hand = (0.5 * residual.square().sum(2) * w).sum(1, keepdim=True)
    torch.testing.assert_close(value, by_hand)


def test_the_native_kernel_refuses_what_it_cannot_read() -> None:
    spec, _ = setup("residual")
    with pytest.raises(UnsupportedLayerError):
        make_kernel("native", spec)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("loss", ["cross-entropy", "logistic", "squared-error", "hinge"])
def test_second_derivatives_written_out_are_those_of_autograd(activation, loss) -> None:
    outputs = 1 if loss in ("logistic", "squared-error") else 3
    conv = [nn.Conv2d(2, 3, 3, padding=1), activation(), nn.MaxPool2d(2), nn.Flatten()]
    module = nn.Sequential(*conv, nn.Linear(12, 6), activation(), nn.Linear(6, outputs)).double()
    spec = ModelSpec(module, Layout.of(module), get_loss(loss))
    g = torch.Generator().manual_seed(0)
    v, u = torch.randn(2, 3, spec.layout.size, generator=g, dtype=torch.float64)
    x = torch.randn(3, 5, 2, 4, 4, generator=g, dtype=torch.float64)
    y = torch.randint(0, 2, (3, 5), generator=g)
    for w in (None, torch.rand(3, 5, generator=g, dtype=torch.float64)):
        found, expected = (make_kernel(k, spec).hvp(v, u, x, y, w) for k in ("native", "vmap"))
        torch.testing.assert_close(found, expected)
        slope, turn = NativeTwice(spec).turning(v, x, y, w)
        torch.testing.assert_close(slope, make_kernel("vmap", spec).grad(v, x, y, w))
        torch.testing.assert_close(turn(u), expected)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU])
@pytest.mark.parametrize("loss", ["cross-entropy", "logistic", "squared-error", "hinge"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_through_a_step_is_that_of_autograd(activation, loss, bias) -> None:
    outputs = 1 if loss in ("logistic", "squared-error") else 12
    layers = [nn.Linear(20, 15, bias), activation(), nn.Linear(15, 13, bias), activation()]
    module = nn.Sequential(nn.Flatten(), *layers, nn.Linear(13, outputs, bias)).double()
    spec = ModelSpec(module, Layout.of(module), get_loss(loss))
    g = torch.Generator().manual_seed(0)
    v = torch.randn(3, spec.layout.size, generator=g, dtype=torch.float64)
    x = torch.randn(3, 4, 4, 5, generator=g, dtype=torch.float64)
    y, a = torch.randint(0, 2, (3, 4), generator=g), 0.3
    for w in (None, torch.rand(3, 4, generator=g, dtype=torch.float64)):
        found = make_kernel("native", spec).through_step(v, torch.tensor(a, dtype=v.dtype), x, y, w)
        expected = torch.stack([
            through_a_step(spec, a, v[i], x[i], y[i], torch.full((4,), 0.25) if w is None else w[i])
            for i in range(3)
        ])  # fmt: skip
        torch.testing.assert_close(found, expected)


def through_a_step(spec: ModelSpec, a: float, v: Tensor, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """The gradient of v -> f(v - a*grad f(v)), by differentiating twice."""

    def loss(vector: Tensor) -> Tensor:
        named = {k: p[0] for k, p in spec.layout.split(vector[None]).items()}
        outputs = torch.func.functional_call(spec.module, named, (x,))
        return (spec.loss.value(outputs, y) * w.double()).sum()

    return torch.func.grad(lambda vector: loss(vector - a * torch.func.grad(loss)(vector)))(v)


@pytest.mark.parametrize("sizes", [(784, 200, 200, 10), (60, 64, 10), (60, 10)])
def test_the_gradient_through_a_step_takes_at_most_the_work_of_three(sizes) -> None:
    layers = [layer for p, q in pairwise(sizes) for layer in (nn.Linear(p, q), nn.ReLU())]
    module = nn.Sequential(*layers[:-1])
    spec = ModelSpec(module, Layout.of(module), get_loss("cross-entropy"))
    v, x = torch.randn(4, spec.layout.size), torch.randn(4, 20, sizes[0])
    y, kernel, work = torch.zeros(4, 20, dtype=torch.int64), make_kernel("native", spec), []
    for once in (
        lambda: kernel.grad(v, x, y, None), lambda: kernel.through_step(v, 0.1, x, y, None)
    ):  # fmt: skip
        with FlopCounterMode(display=False) as counter:
            once()
        work.append(counter.get_total_flops())
    assert work[1] <= 3 * work[0]


def test_many_examples_go_through_a_step_by_gradients_which_is_less_work() -> None:
    module = nn.Sequential(nn.Linear(60, 10))
    spec = ModelSpec(module, Layout.of(module), get_loss("cross-entropy"))
    kernel, v = make_kernel("native", spec), torch.randn(2, spec.layout.size)
    x, y = torch.randn(2, 500, 60), torch.zeros(2, 500, dtype=torch.int64)
    assert kernel.through_step(v, 0.1, x, y, None) is None


def test_a_hessian_product_takes_about_the_work_of_two_gradients() -> None:
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    spec = ModelSpec(module, Layout.of(module), get_loss("cross-entropy"))
    v, u = torch.randn(2, 4, spec.layout.size)
    x, y = torch.randn(4, 20, 64), torch.zeros(4, 20, dtype=torch.int64)
    kernel, work = NativeTwice(spec), []

    def through_a_step() -> None:
        """What a step of MAML takes."""
        slope, turn = kernel.turning(v, x, y, None)
        turn(kernel.grad(v - slope, x, y, None))

    for once in (
        lambda: kernel.grad(v, x, y, None), lambda: kernel.hvp(v, u, x, y, None), through_a_step
    ):  # fmt: skip
        with FlopCounterMode(display=False) as counter:
            once()
        work.append(counter.get_total_flops())
    assert work[1] <= 2 * work[0]
    assert work[2] <= 3.4 * work[0]  # 4 in layers between two others, 3 in the first
