"""
Devices of different sizes
==========================

Some clients can carry the whole network, others a half, a quarter or an eighth of its hidden
units. Each trains a network that really is smaller, and keeps a model of its own size.
"""

import matplotlib.pyplot as plt

import fedkin
from fedkin.methods import SubmodelLocal
from fedkin.models import build

rates = [1.0, 0.5, 0.25, 0.125] * 5
pool = fedkin.load(fedkin.DataConfig(name="digits", num_clients=20, alpha=0.5), seed=0)
data = fedkin.from_arrays(
    [pool.train[i] for i in range(20)],
    test=[pool.test[i] for i in range(20)],
    columns={"device": rates},  # facts about clients; `capacity` names the one to use
)
problem = fedkin.Problem(build("mlp:128", data.input_shape, data.num_classes), data)
method = SubmodelLocal(lr=0.1, rates=(1.0, 0.5, 0.25, 0.125), capacity="device", kind="static")
run = fedkin.train(problem, method, rounds=30)

# %%
# Accuracy on held-out data by size, together and alone with a model of the same size.

last = run.clients[run.clients["round"] == 30].assign(rate=rates)
last["parameters"] = [sum(p.numel() for p in run.personal.at(i).parameters()) for i in range(20)]
table = last.groupby("rate")[["parameters", "personal_accuracy", "local_accuracy"]].mean()
print(table.round(3).to_string())

plt.figure(figsize=(6, 3.4))
plt.plot(table["parameters"], 100 * table["personal_accuracy"], "o-", label="together")
plt.plot(table["parameters"], 100 * table["local_accuracy"], "o--", label="alone")
plt.xscale("log")
plt.xlabel("parameters of the client's model")
plt.ylabel("accuracy on held-out data, %")
plt.legend()
plt.tight_layout()
plt.show()

# %%
# A model of the smallest size, as that device runs it:

print(run.personal.at(3))
