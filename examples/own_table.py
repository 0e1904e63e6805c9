"""
Your own table
==============

A table with a row per patient, a column that names the hospital and a column to predict is a
data set. Here it is scikit-learn's breast cancer data, divided among eight hospitals whose
patients differ. Each hospital gets a model of its own and learns what taking part is worth.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

import fedkin
from fedkin.methods import Ditto
from fedkin.models import build

# the table, as it might come out of a database
table = load_breast_cancer(as_frame=True).frame
rng = np.random.default_rng(0)
severity = table["mean radius"].rank(pct=True) + rng.normal(0, 0.4, len(table))
number = (severity.rank(pct=True) * 7.99).astype(int)
table["hospital"] = ["hospital-" + "abcdefgh"[i] for i in number]
table.to_csv("patients.csv", index=False)

# %%
# On the command line this is ``fedkin run ditto --data patients.csv --client-column hospital
# --target-column target``. In Python:

config = fedkin.DataConfig(
    name="patients.csv", client_column="hospital", target_column="target", test_fraction=0.4
)
data = fedkin.load(config, seed=0)
problem = fedkin.Problem(build("logistic", data.input_shape, data.num_classes), data)
run = fedkin.train(problem, Ditto(lr=0.1, lam=0.5), rounds=30)

last = run.clients[run.clients["round"] == 30].set_index("client")
print(last[["train_samples", "local_accuracy", "personal_accuracy"]].round(3).to_string())

# %%
# What did each hospital gain over training alone, on patients that were held out?

gain = 100 * (last["personal_accuracy"] - last["local_accuracy"])
plt.figure(figsize=(7, 3.2))
plt.bar(gain.index, gain, color=["tab:green" if g >= 0 else "tab:red" for g in gain])
plt.axhline(0, color="black", linewidth=0.8)
plt.ylabel("gain over training alone, points")
plt.xticks(rotation=30, ha="right")
plt.tight_layout()
plt.show()
