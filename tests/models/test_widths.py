"""Hidden widths: found, declared, cut, and mapped to and from the whole model."""

import pytest
import torch
from torch import nn

from fedkin.errors import FedkinError
from fedkin.models import build
from fedkin.models.layout import Layout
from fedkin.models.widths import Widths, narrow


class Block(nn.Module):
    """A residual block that may change the number of channels."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(before, track_running_stats=False)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else None

    def forward(self, x):
        out = torch.relu(self.norm(x))
        short = x if self.shortcut is None else self.shortcut(out)
        return self.second(torch.relu(self.first(out))) + short


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), Block(4, 4), Block(4, 8), Block(8, 8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


MODELS = {
    "mlp": (lambda: build("mlp:8,6", (5,), 3), (5,)),
    "cnn": (lambda: build("cnn:4,6,10", (1, 12, 12), 3), (1, 12, 12)),
    "residual": (residual, (3, 8, 8)),
    "norms": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.GroupNorm(8, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
            nn.PReLU(8), nn.Flatten(), nn.BatchNorm1d(32, track_running_stats=False),
            nn.Linear(32, 6), nn.GELU(), nn.Linear(6, 2),
        ),
        (1, 6, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.3])
def test_a_sub_model_computes_what_the_whole_does_when_other_channels_are_zero(name, rate):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    module = make()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(7, *shape)
    widths = Widths.of(module, x[:2])
    channels = [
        torch.randperm(size)[:count].sort().values[None]
        for size, count in zip(widths.sizes, widths.kept(rate), strict=True)
    ]
    index = widths.index(channels)[0]
    small = narrow(module, widths, rate)
    layout = Layout.of(small)
    assert layout.size == len(index) == len(index.unique())
    whole = widths.layout.flatten(module)
    layout.fill(small, whole[index])
    zeroed = torch.zeros_like(whole)
    zeroed[index] = whole[index]
    widths.layout.fill(module, zeroed)
    torch.testing.assert_close(small(x), module(x), rtol=1e-4, atol=1e-4)


def test_channels_added_together_are_one_group():
    widths = Widths.of(residual(), torch.zeros(2, 3, 8, 8))
    assert widths.sizes == (4, 4, 8, 8, 8)
    stem, last = widths.axes["0.weight"][0], widths.axes["1.second.weight"][0]
    assert stem == last == widths.axes["2.norm.weight"][0]
    assert widths.axes["2.second.weight"][0] == widths.axes["6.weight"][1]


def test_a_layer_has_the_ceiling_of_its_share_of_channels():
    module = build("mlp:10,30", (5,), 3)
    widths = Widths.of(module, torch.zeros(2, 5))
    assert widths.kept(0.1) == (1, 3)
    assert widths.kept(1 / 16) == (1, 2)
    assert widths.kept(1e-300) == (1, 1)
    small = narrow(module, widths, 0.25)
    assert [m.weight.shape for m in small if isinstance(m, nn.Linear)] == [(3, 5), (8, 3), (3, 8)]
    assert small[1].in_features == 5
    assert small[3].out_features == 8


def test_index_rows_are_one_per_client():
    module = build("mlp:3", (2,), 1)
    widths = Widths.of(module, torch.zeros(2, 2))
    index = widths.index([torch.tensor([[0, 2], [1, 2]])])
    # weights [3, 2] at 0..5, biases at 6..8, output weights [1, 3] at 9..11, its bias at 12
    assert index.tolist() == [[0, 1, 4, 5, 6, 8, 9, 11, 12], [2, 3, 4, 5, 7, 8, 10, 11, 12]]


def test_a_linear_model_has_nothing_to_cut():
    widths = Widths.of(build("logistic", (5,), 3), torch.zeros(2, 5))
    assert widths.sizes == ()
    assert widths.index([]).tolist() == [list(range(18))]


class Own(nn.Module):
    """A layer nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(6, 3))
        self.down = nn.Parameter(torch.randn(2, 6))

    def forward(self, x):
        return torch.tanh(x @ self.up.T) @ self.down.T


def test_widths_can_be_declared():
    module = Own()
    with pytest.raises(FedkinError, match="'up'"):
        Widths.of(module, torch.zeros(2, 3))
    module.widths = {"up": ("hidden", None), "down": (None, "hidden")}
    widths = Widths.of(module, torch.zeros(2, 3))
    assert (widths.names, widths.sizes) == (("hidden",), (6,))
    assert narrow(module, widths, 0.5)(torch.zeros(4, 3)).shape == (4, 2)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"upp": ("hidden", None)}, "did you mean 'up'"),
        ({"up": ("hidden",)}, "None for each of its 2 dimensions"),
        ({"up": "ab"}, "None for each of its 2 dimensions"),
        ({"up": 3}, "None for each of its 2 dimensions"),
        ({"up": ("hidden", None), "down": (None, ("hidden", 4))}, "'down' cannot be cut"),
        ({"up": (("hidden", 0), None)}, "say .'hidden', 0. of a dimension"),
        ({"up": (("hidden", 1, 2), None)}, "say .'hidden', 1, 2. of a dimension"),
        ({"up": (7, None)}, "say 7 of a dimension"),
    ],
)
def test_wrong_declarations_are_explained(declared, message):
    with pytest.raises(FedkinError, match=message):
        Widths.declared(Layout.of(Own()), declared)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2)), "'0'"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.RNN(4, 2)), "'2'"),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(2), nn.Linear(4, 2)), "'1'"),
        (Branching(), "'Branching'"),
    ],
)
def test_a_model_that_cannot_be_cut_names_the_layer(module, named):
    with pytest.raises(FedkinError, match=f"cannot be cut at {named}.*declare"):
        Widths.of(module, torch.zeros(2, 4, 4, 4))


class KnowsItsSize(nn.Module):
    """Code that knows how many features there are, as many write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).view(-1, 16))


def test_a_model_that_fails_with_fewer_channels_is_refused():
    with pytest.raises(FedkinError, match=r"with fewer channels it fails \(.*\); take sizes"):
        Widths.of(KnowsItsSize(), torch.zeros(2, 1, 4, 4))
    module = Own()
    module.widths = {"up": ("hidden", None)}
    with pytest.raises(FedkinError, match="declare all its widths"):
        Widths.of(module, torch.zeros(2, 3))
    module.widths = {"up": ("hidden", None), "down": ("outputs", "hidden")}
    with pytest.raises(FedkinError, match=r"outputs have shape \(1,\) instead of \(2,\)"):
        Widths.of(module, torch.zeros(2, 3))


def test_the_scaler_refuses_layers_that_it_does_not_know():
    module = Own()
    module.widths = {"up": ("hidden", None), "down": (None, "hidden")}
    widths = Widths.of(module, torch.zeros(2, 3))
    with pytest.raises(FedkinError, match=r"scaler does not know what gives .* 'hidden'"):
        widths.scaler(module, 0.5)
