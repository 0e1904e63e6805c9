"""
Personal models with a privacy guarantee
========================================

Two dozen clients train Ditto: one shared model, and beside it a model of their own. What leaves a
client is the change of the shared model, clipped; the server adds noise to the sum. What is
personal never leaves, so the guarantee of the shared model is all there is to account for.
"""

import json
from pathlib import Path

from matplotlib import pyplot as plt

import fedkin
from fedkin.models import build

data = fedkin.load(fedkin.DataConfig(name="rotated-digits"), seed=0)
problem = fedkin.Problem(build("logistic", data.input_shape, data.num_classes), data)
settings = {"rounds": 30, "eval_every": 5, "lr": 0.1}

# %%
# Once without noise and once with epsilon 8, as if 2,000 clients took part in every round: with
# only two dozen, that much noise would hide what they have in common.

plain = fedkin.train(problem, "ditto", **settings)
private = fedkin.train(
    problem, "ditto", folder="private", dp_clip=0.3, dp_epsilon=8, dp_delta=1e-5, dp_cohort=2000,
    **settings,
)  # fmt: skip
for name, run in (("without noise", plain), ("epsilon 8", private)):
    last = run.metrics.iloc[-1]
    print(f"{name}: personal {last.personal_accuracy:.1%}, shared {last.global_accuracy:.1%}")

# %%
# The run folder says what the number rests on, and what it does not cover.

told = json.loads(Path("private/privacy.json").read_text())
print(f"epsilon {told['epsilon']:.2f}, delta {told['delta']:g}: {told['adjacency']}")
for assumption in told["assumptions"]:
    print("assumed:", assumption)

# %%
# Epsilon grows with every round; the run would end by itself where it reaches dp_epsilon.

private.metrics.plot(x="round", y="dp_epsilon", ylabel="epsilon spent", legend=False)
plt.show()
