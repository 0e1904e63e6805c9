"""Clients in shards on a Ray cluster; needs `fedkin[ray]`.

Ray reads how it authenticates when it is imported, so that is set here, before that: requests
carry a token unless RAY_AUTH_MODE says otherwise. Whoever reaches the port of a cluster without
one can run code on it.
"""

import os
import sys

if "ray" not in sys.modules:
    os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Ray lets its workers stand back behind everything else on the machine; ours are the run itself
os.environ.setdefault("RAY_worker_niceness", "0")
