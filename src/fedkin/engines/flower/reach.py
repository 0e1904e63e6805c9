"""Whether a server can be reached, and if not, why."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from math import inf
from pathlib import Path

import httpx

from fedkin.errors import FedkinError


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, so that nothing is sent over a network."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT, also [IPv6]:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise FedkinError(f"'{address}' is not an address: write HOST:PORT")
    return host.strip("[]"), int(port)


def check_host(address: str) -> None:
    """Raise if the server's host name does not resolve."""
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host, port)
    except (socket.gaierror, UnicodeError) as error:
        # names do not resolve either while the network is down
        if getattr(error, "errno", None) != socket.EAI_AGAIN:
            raise FedkinError(f"there is no host '{host}': check the server's address") from None


def wait_for_server(
    address: str, authority: Path | None, say: Callable[[str], None], patience: float = inf
) -> None:
    """Return once the server answers; a wrong kind of connection raises immediately."""
    told, until = False, time.monotonic() + patience
    while True:
        problem = probe(address, authority)
        if problem is None:
            return
        if time.monotonic() >= until:
            raise FedkinError(f"no server at {address} within {patience:g} seconds: {problem}")
        if not told:
            say(f"waiting for {address} ({problem})")
            told = True
        time.sleep(1)


def probe(address: str, authority: Path | None) -> str | None:
    """None if the server answers, else why not yet. Raises what waiting cannot fix."""
    scheme = "http" if authority is None else "https"
    try:
        verify = True if authority is None else ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise FedkinError(f"the certificate {authority} cannot be used: {error}") from None
    try:
        answer = httpx.get(f"{scheme}://{address}/health", verify=verify, timeout=10)
    except httpx.ConnectError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise FedkinError(
                f"{address} shows a certificate that {authority} did not sign, or for another "
                f"host name: {str(error).rpartition(': ')[2]}"
            ) from None
        if authority is not None and "SSL" in str(error).upper():
            raise FedkinError(
                f"{address} does not speak TLS: it is not the server your certificates are for"
            ) from None
        return "it does not answer"
    except httpx.RemoteProtocolError:
        if authority is None and speaks_tls(address):
            raise FedkinError(
                f"{address} accepts only TLS connections: join with --certs, the folder that the "
                "operators of the server made for this site with `fedkin certs`"
            ) from None
        return "it closes the connection"
    except httpx.TransportError as error:
        return str(error) or type(error).__name__
    return None if answer.status_code == 200 else f"it answers with HTTP {answer.status_code}"


def check_key(address: str, authority: Path, key: bytes) -> None:
    """Ask the server whether a site's public key is registered."""
    try:
        answer = httpx.get(
            f"https://{address}/v1/fleet/",
            headers={"flwr-public-key": b64encode(key).decode()},
            verify=ssl.create_default_context(cafile=str(authority)),
            timeout=10,
        )
    except httpx.TransportError:
        return  # it answered a moment ago; connecting will show
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise FedkinError(
            f"{address} does not know this site's key: its operators must make one with "
            "`fedkin certs` and serve with that folder"
        )


def speaks_tls(address: str) -> bool:
    host, port = split_address(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False
