"""
Your own module
===============

The model can be any ``torch.nn.Module`` that takes a batch. This one has a skip connection, batch
norm and dropout. Every client ends with an ordinary module, ready for use.
"""

import torch
from torch import Tensor, nn

import fedkin
from fedkin.methods import LocalizedFedAvg


class SkipNet(nn.Module):
    """Two hidden layers, the second added to the first."""

    def __init__(self, inputs: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.1)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x.flatten(1)))
        return self.last(self.dropout(self.norm(h + torch.relu(self.second(h)))))


torch.manual_seed(0)
data = fedkin.load(fedkin.DataConfig(name="digits", num_clients=10, alpha=0.3), seed=0)
problem = fedkin.Problem(SkipNet(64, 10), data)
print(f"{problem.size:,} parameters, {problem.num_clients} clients")

run = fedkin.train(problem, LocalizedFedAvg(lr=0.1, local_steps=10), rounds=10)
print(f"mean personal accuracy {run.accuracy:.1%}")

# %%
# A client's personal model is a plain module: use it, save its ``state_dict``, export it.

model = run.personal.at(3)
x, y = data.test[3]
with torch.no_grad():
    predicted = model(x).argmax(1)
print(f"client 3: {int((predicted == y).sum())} of {len(y)} held-out digits are right")

# %%
# What cannot be trained or repeated is refused, with the reason.


class TwoAnswers(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)), x


try:
    fedkin.Problem(TwoAnswers(64, 10), data)
except fedkin.FedkinError as error:
    print(f"refused: {error}")
