"""
On a Ray cluster
================

The same run with clients in two shards of a Ray cluster, here one that is started on this
machine, and the embedded engine's numbers beside it. With ``ray_address="auto"`` it would use the
cluster that this machine is part of. Needs ``pip install 'fedkin[ray]'``.
"""

import fedkin
from fedkin.models import build

data = fedkin.load(fedkin.DataConfig(name="perm-synthetic", num_clients=12, samples=60), seed=0)
problem = fedkin.Problem(build("logistic", data.input_shape, data.num_classes), data)
settings = {"rounds": 10, "eval_every": 10, "seed": 0}

# %%
# One line differs: the engine. Each shard holds six clients' data and what they remember.
here = fedkin.train(problem, "scaffold", **settings)
there = fedkin.train(problem, "scaffold", engine="ray", shards=2, **settings)
print(f"embedded {here.accuracy:.4f}, two shards {there.accuracy:.4f}")

# %%
# Bytes and gradients are counted alike, and every client's model is there as before.
for run in (here, there):
    last = run.metrics.iloc[-1]
    print(int(last["bytes_up"]), "bytes up,", int(last["gradients"]), "gradients")
print(there.personal["0"])

# %%
# The shards stay until they are closed, so that models can be asked for.
there.trainer.cluster.close()
