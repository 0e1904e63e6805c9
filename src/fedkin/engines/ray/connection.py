"""Connecting to a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

from fedkin.errors import FedkinError

TOKEN_MODE, TOKEN_PATH, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"
# seconds to reach an address before it is given up
REACH = 10.0
# the object store of a Ray that is started here: this share of the machine's memory at most
STORE_SHARE, STORE_MOST = 0.2, 4 * 10**9


@dataclass(frozen=True)
class RaySettings:
    """How a run uses Ray: see `fedkin config` for each."""

    address: str | None = None
    shards: int | None = None
    timeout: float = 600.0
    on_loss: str = "wait"
    gpus: float = 0.0


def connect(settings: RaySettings, cpus: int | None = None) -> dict[str, float]:
    """Join the cluster at the address, or start a Ray of our own; gives the cluster's resources.

    A Ray that this process uses already is used. One of our own has `cpus`, or the machine's.
    """
    if ray.is_initialized():
        return dict(ray.cluster_resources())
    if TOKEN_MODE not in os.environ:
        raise FedkinError(
            "Ray was imported before fedkin could turn its authentication on: set "
            f"{TOKEN_MODE}=token (or disabled) in the environment, or import fedkin's engine first"
        )
    if settings.address is None:
        _own_token()
    elif settings.address != "auto":
        _reach(settings.address)
    common: dict[str, Any] = {
        "log_to_driver": False, "logging_level": logging.ERROR, "namespace": "fedkin",
        "configure_logging": False,
    }  # fmt: skip
    try:
        if settings.address is None:
            with _loopback():
                ray.init(
                    num_cpus=cpus or os.cpu_count() or 1, include_dashboard=False,
                    object_store_memory=_store_size(), **common,
                )  # fmt: skip
        else:
            ray.init(address=settings.address, **common)
    except (Exception, SystemExit) as error:
        where = settings.address or "this machine"
        raise FedkinError(_sentence(where, str(error))) from None
    return dict(ray.cluster_resources())


@contextmanager
def _loopback() -> Iterator[None]:
    """A Ray that is started meanwhile listens on 127.0.0.1 alone.

    An address of 127.0.0.1 Ray would replace with the machine's own, and its environment
    variable for this is read when it is imported, before it is known whether a cluster is used.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _own_token() -> None:
    """A secret for the Ray that is started here, readable by this user alone."""
    if os.environ[TOKEN_MODE] != "token" or TOKEN in os.environ or TOKEN_PATH in os.environ:
        return
    handle, path = tempfile.mkstemp(prefix="fedkin-ray-token-")
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    os.environ[TOKEN_PATH] = path


def _reach(address: str) -> None:
    """Refuse an address at which nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise FedkinError(f"ray_address '{address}' is not understood: write HOST:PORT, or auto")
    token = os.environ.get(TOKEN_PATH)
    if token and not Path(token).is_file():
        raise FedkinError(f"{TOKEN_PATH} names {token}, and there is no such file")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except OSError as error:
        raise FedkinError(
            f"there is no Ray cluster at {address}: {error.strerror or error}; start one with "
            "`ray start --head`, or leave ray_address out to use this machine alone"
        ) from None


def _sentence(where: str, reason: str) -> str:
    lower = reason.lower()
    # somebody listens there, or it would have been refused before
    refused = ("token", "unauthenticated", "authentication", "failed to connect")
    if any(word in lower for word in refused):
        return (
            f"the Ray cluster at {where} refuses us, as it does for a wrong token: let "
            f"{TOKEN_PATH} name the file with the cluster's token (or set {TOKEN_MODE}=disabled "
            "for a cluster that has none)"
        )
    if "version mismatch" in lower:
        told = " ".join(reason.split())
        return f"the Ray cluster at {where} has other versions than this process: {told[:300]}"
    if where == "auto" and "could not find" in lower:
        return "no Ray cluster runs on this machine: give its address, or leave ray_address out"
    return f"cannot use the Ray cluster at {where}: {' '.join(reason.split())[:300] or 'no answer'}"


def _store_size() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(STORE_MOST, STORE_SHARE * memory))
