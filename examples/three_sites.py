"""
Three sites on loopback
=======================

A server and three sites as four processes on one machine. Each site reads its own file; only
models and sums travel. Over a network the commands are the same, with certificates. This needs
``pip install 'fedkin[flower]'``.
"""

import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
from sklearn.datasets import load_wine

table = load_wine(as_frame=True).frame.sample(frac=1, random_state=0)
features = list(table.columns.drop("target"))
for i, name in enumerate(("north", "south", "west")):
    table.iloc[i::3].to_csv(f"{name}.csv", index=False)

# Nobody sees the whole table, so the config states what a run would otherwise find in it.
scale = "\n".join(f'"{f}" = [{table[f].mean():.4g}, {table[f].std():.4g}]' for f in features)
Path("config.toml").write_text(f"""
method = "ditto"
rounds = 5
options = {{ lr = 0.1 }}
model = {{ name = "logistic" }}
data = {{ target_column = "target" }}
[sites]
features = {features}
classes = ["0", "1", "2"]
[sites.scale]
{scale}
""")

with socket.create_server(("127.0.0.1", 0)) as found:
    port = str(found.getsockname()[1])


def fedkin(*words: str) -> subprocess.Popen[str]:
    """Start a command, in a terminal of its own as it were."""
    command = [sys.executable, "-m", "fedkin", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


server = fedkin("serve", "config.toml", "--clients", "3", "--port", port, "--out", "runs/sites")
allowed = ("--columns", ",".join(features), "--target", "target", "--yes")
sites = [fedkin("join", "--server", f"127.0.0.1:{port}", "--data", f"{name}.csv", "--name", name,
                *allowed) for name in ("north", "south", "west")]  # fmt: skip
print("".join(process.communicate(timeout=240)[0] for process in (server, *sites)))

# %%
# The server has the scores, each site has its model.

scores = pd.read_csv("runs/sites/clients.csv").query("round == 5")
print(scores[["client", "train_samples", "personal_accuracy"]].to_string(index=False))
print(sorted(str(path) for path in Path().glob("fedkin-*/model.safetensors")))
