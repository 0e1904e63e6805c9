"""
Should these sites collaborate?
===============================

Twelve clinics in three regions. Within a region illness follows the same rule, between regions
it does not. Each clinic has 40 patients: alone that is little, and one model for all has to
follow three rules. ``fedkin.advise`` tries what there is and tells what is best for whom.
"""

import numpy as np
import pandas as pd

import fedkin

rng, rows = np.random.default_rng(0), []
rules = rng.normal(size=(3, 6))
for clinic in range(12):
    x = rng.normal(size=(40, 6))
    ill = x @ rules[clinic // 4] + 0.3 * rng.normal(size=40) > 0
    table = pd.DataFrame(x, columns=[f"test_{i}" for i in range(6)])
    table["ill"], table["clinic"] = np.where(ill, "yes", "no"), f"clinic {clinic + 1}"
    rows.append(table)
pd.concat(rows).to_csv("patients.csv", index=False)

found = fedkin.advise("patients.csv", client_column="clinic", target_column="ill")
print(found)

# %%
# A dot is a clinic's mean gain over training alone, a line its 95 % interval.

found.plot()

# %%
# ``found.save("advice")`` writes a page, the numbers and a config that ``fedkin run`` takes.

print(found.table[["site", "alone", "together", "gain", "learns_from"]])
