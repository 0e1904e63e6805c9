"""A scaled kernel is the plain one of f(scale*v): its derivatives by the chain rule."""

import torch
from torch import nn
from torch.func import functional_call, hessian

from fedkin.core.kernels import ModelSpec, make_kernel
from fedkin.core.kernels.scaled import Scaled
from fedkin.core.losses import get_loss
from fedkin.models.layout import Layout


def test_products_with_the_hessian_are_those_of_the_scaled_function():
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    layout = Layout.of(module)
    spec = ModelSpec(module, layout, get_loss("cross-entropy"))
    g = torch.Generator().manual_seed(0)
    v, u = torch.randn(2, 1, layout.size, generator=g, dtype=torch.float64)
    scale = 0.5 + torch.rand(layout.size, generator=g, dtype=torch.float64)
    x = torch.randn(1, 4, 3, generator=g, dtype=torch.float64)
    y = torch.randint(0, 2, (1, 4), generator=g)

    def value(flat):
        own = {name: rows[0] for name, rows in layout.split((scale * flat)[None]).items()}
        return nn.functional.cross_entropy(functional_call(module, own, (x[0],)), y[0])

    found = Scaled(make_kernel("vmap", spec), scale).hvp(v, u, x, y, None)
    torch.testing.assert_close(found[0], hessian(value)(v[0]) @ u[0])
