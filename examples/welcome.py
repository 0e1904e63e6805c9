"""
A site that comes later
=======================

Three clinics train together. A fourth comes afterwards: it gets a model from the finished run,
and takes a few steps on its own patients. The others' models stay as they are.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from fedkin.runs.config import make_config
from fedkin.runs.folder import RunFolder
from fedkin.runs.provenance import complete
from fedkin.runs.training import Trainer
from fedkin.runs.welcoming import welcome

rng, rule = np.random.default_rng(0), np.array([1.0, -1.0, 0.5, 0.0])


def patients(count: int) -> pd.DataFrame:
    x = rng.normal(size=(count, 4))
    table = pd.DataFrame(x, columns=["age", "pressure", "sugar", "weight"])
    return table.assign(ill=np.where(x @ rule + 0.3 * rng.normal(size=count) > 0, "yes", "no"))


clinics = [patients(60).assign(clinic=name) for name in ("a", "b", "c")]
pd.concat(clinics).to_csv("patients.csv", index=False)
patients(30).to_csv("clinic-d.csv", index=False)

# the same as: fedkin run perm --data patients.csv --client-column clinic --target-column ill
data = {"name": "patients.csv", "client_column": "clinic", "target_column": "ill"}
config = make_config({"method": "perm", "rounds": 30, "model": {"name": "linear"}, "data": data})
clients = config.make_data()
folder = RunFolder.create(Path("run"), complete(config, clients))
Trainer(config.make_problem(clients), config.make_method(), config.settings(), folder).run()
folder.close()

# %%
# The same as ``fedkin welcome run --data clinic-d.csv --name clinic-d``. On patients kept aside:

found = welcome(Path("run"), Path("clinic-d.csv"), "clinic-d")
print(found.table[["steps", "accuracy", "loss"]])
print(f"model: {found.folder}")
