"""
Different architectures
=======================

Clients bring networks of their own: some a convolutional network, some a wide one, the others a
small one. A small common model, which everybody can carry, tells who is like whom; then each
client's own network trains at those of its kin that can carry it.
"""

from math import prod

import matplotlib.pyplot as plt
import pandas as pd
from torch import nn

import fedkin
from fedkin.models import build


class Wide(nn.Module):
    """A network of your own."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 96), nn.Tanh())
        self.head = nn.Linear(96, outputs)

    def forward(self, x):
        return self.head(self.body(x))


data = fedkin.load(fedkin.DataConfig(name="rotated-digits", num_clients=9), seed=0)
own = [Wide, "cnn:4,8,32", None]  # a class, a name, or nothing: then the common model
models = {name: own[i % 3] for i, name in enumerate(data.names) if own[i % 3]}
common = build("mlp:16", data.input_shape, data.num_classes)
problem = fedkin.Problem(common, data, models=models)
run = fedkin.train(problem, "perm", rounds=30, warm_up=8, trial=8)

# %%
# Accuracy on held-out data by network, and of the same network trained alone.

last = run.clients[run.clients["round"] == 30].set_index("client")
last["parameters"] = [sum(p.numel() for p in run.personal[n].parameters()) for n in data.names]
by_size = last.groupby("parameters")[["personal_accuracy", "local_accuracy"]].mean()
print(by_size.round(3).to_string())

# %%
# Who learns from whom: nobody from a client whose network is smaller than its own.

order = last["parameters"].argsort(kind="stable").tolist()
weights = pd.DataFrame(run.mixing[order][:, order].numpy(), columns=[data.names[i] for i in order])
plt.figure(figsize=(4.5, 4))
plt.imshow(weights, cmap="Blues")
plt.xlabel("learns from (small networks first)")
plt.ylabel("client (small networks first)")
plt.tight_layout()
plt.show()
