"""
Frozen backbone, personal head
==============================

A backbone that was trained before on other data stays as it is; every client trains a head of its
own with the help of the others. Only the head travels.
"""

import torch
from torch import nn

import fedkin
from fedkin.methods import Ditto

# %%
# A backbone that has learnt to read half of the digits, with batch norm. Its own norms keep the
# statistics of that time.

torch.manual_seed(0)
before = fedkin.load(fedkin.DataConfig(name="digits", num_clients=1, partition="iid"), seed=1)
x, y = before.train[0]
backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
first = nn.Sequential(backbone, nn.Linear(32, 10))
optimiser = torch.optim.Adam(first.parameters(), 0.01)
for _ in range(60):
    optimiser.zero_grad()
    nn.functional.cross_entropy(first(x[y < 5]), y[y < 5]).backward()
    optimiser.step()
backbone.requires_grad_(False)

# %%
# Ten clients with all the digits, in different shares.

data = fedkin.load(fedkin.DataConfig(name="digits", num_clients=10, alpha=0.3), seed=0)
problem = fedkin.Problem(nn.Sequential(backbone, nn.Dropout(0.1), nn.Linear(32, 10)), data)
print(f"{problem.size} of {sum(p.numel() for p in first.parameters())} parameters travel")

run = fedkin.train(problem, Ditto(lr=0.1, local_steps=10), rounds=10)
last = run.clients[run.clients["round"] == 10]
print(f"personal heads: {last['personal_accuracy'].mean():.1%} on held-out digits")
print(f"trained alone:  {last['local_accuracy'].mean():.1%}")
