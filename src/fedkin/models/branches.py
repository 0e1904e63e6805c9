"""Two networks side by side, their outputs added: one for everybody, one of each client's own."""

from __future__ import annotations

from torch import Tensor, nn


class Branches(nn.Module):
    """shared(x[:, shared_features]) + own(x[:, own_features]); None means all features.

    For objective 'residual' with shared_parts = 'shared.' and own_parts = 'own.'.
    """

    def __init__(
        self,
        shared: nn.Module,
        own: nn.Module,
        shared_features: slice | None = None,
        own_features: slice | None = None,
    ) -> None:
        super().__init__()
        self.shared, self.own = shared, own
        self.features = [f or slice(None) for f in (shared_features, own_features)]

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.features
        outputs: Tensor = self.shared(x[:, one]) + self.own(x[:, other])
        return outputs
