"""Who may take part and who may come in: the server's rules alone."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedkin.data import DataConfig
from fedkin.data.site import Agreement
from fedkin.engines.flower import private
from fedkin.engines.flower.certificates import (
    ServerFiles,
    SiteFiles,
    make_certificates,
    read_public,
)
from fedkin.engines.flower.exchange import KnownSite, WaitPolicy
from fedkin.engines.flower.scripts.gate import Gate
from fedkin.errors import FedkinError
from fedkin.runs.sites.joining import keys_for
from fedkin.runs.sites.plan import Plan, read_serve_config, served_config
from fedkin.runs.sites.serving import ServeOptions
from tests.runs.sites.world import card, write_config

# certificates -----------------------------------------------------------------------------


def test_certificates_are_made_once_and_fit_together(tmp_path: Path):
    folder = tmp_path / "certs"
    assert len(make_certificates(folder, ["server.example.org", "10.1.2.3"], ["a", "b"])) == 4
    keys = {name: (folder / "sites" / name / "site.key").read_bytes() for name in "ab"}
    made = make_certificates(folder, [], ["a", "b", "c"])
    assert len(made) == 1
    assert "'c'" in made[0]
    assert keys == {name: (folder / "sites" / name / "site.key").read_bytes() for name in "ab"}
    server = ServerFiles.of(folder)
    assert list(server.sites) == ["a", "b", "c"]
    certificate = x509.load_pem_x509_certificate(server.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org", "localhost"]
    addresses = [str(ip) for ip in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["10.1.2.3", "127.0.0.1"]
    certificate.verify_directly_issued_by(
        x509.load_pem_x509_certificate(server.authority.read_bytes())
    )
    ssl.create_default_context(cafile=str(server.authority))
    site = SiteFiles.of(folder / "sites" / "a")
    private = load_ssh_private_key(site.key.read_bytes(), None)
    assert b"BEGIN PUBLIC KEY" in read_public(site.public)
    assert private.public_key()
    for secret in (site.key, server.key, folder / "authority.key"):
        assert secret.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["../x", "a b", "", "-x"])
def test_a_sites_name_must_be_plain(tmp_path: Path, name: str):
    with pytest.raises(FedkinError, match="cannot be a site's name"):
        make_certificates(tmp_path, [], [name])


@pytest.mark.parametrize(("host", "needs"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_over_a_network_nothing_goes_without_certificates(host: str, needs: bool):
    for keys in (ServeOptions(host=host).keys, lambda: keys_for(f"{host}:8000", None, False)):
        if needs:
            with pytest.raises(FedkinError, match="--certs"):
                keys()
        else:
            assert keys() is None
    assert ServeOptions(host=host, insecure=True).keys() is None
    assert keys_for(f"{host}:8000", None, True) is None


# the gate ---------------------------------------------------------------------------------


def request(
    path: str, peer: str = "10.0.0.9", key: bytes = b"known", word: bytes = b"", **changes: Any
) -> dict[str, Any]:
    headers = [(b"content-length", b"10"), (b"flwr-public-key", key), (b"x-fedkin-secret", word)]
    return {
        "type": "http", "method": "POST", "path": path, "headers": headers,
        "client": (peer, 5), "server": ("10.0.0.1", 8000), **changes,
    }  # fmt: skip


async def nobody(*_: Any) -> None:
    raise AssertionError


GATE = Gate(nobody, most=100, keys=frozenset({b"known"}), word="sesame")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("/v1/fleet/pull-messages"), 0),
        (request("/v1/fleet/activate-node", key=b"strange"), 401),
        (request("/v1/fleet/activate-node", headers=[(b"content-length", b"1")]), 401),
        (request("/health", method="GET", headers=[]), 0),
        (request("/healthy", method="GET", headers=[]), 403),
        (request("/v1/control/register-node"), 403),
        (request("/v1/runtime/acquire-task"), 403),
        (request("/docs", method="GET"), 403),
        (request("/v1/control/start-run", peer="127.0.0.1"), 403),  # anybody here, or a tunnel
        (request("/v1/control/stop-run", peer="127.0.0.1", word=b"please"), 403),
        (request("/v1/control/start-run", peer="127.0.0.1", word=b"sesame"), 0),
        (request("/v1/control/start-run", peer="10.0.0.1", word=b"sesame"), 0),
        (request("/v1/control/start-run", word=b"sesame"), 403),
        (request("/v1/runtime/push-object", peer="127.0.0.1"), 403),
        (request("/v1/control/start-run", client=None, word=b"sesame"), 403),
        (request("/v1/fleet/push-object", headers=[(b"content-length", b"101"),
                                                    (b"flwr-public-key", b"known")]), 413),
        (request("/v1/fleet/push-object", headers=[(b"content-length", b"-1"),
                                                    (b"flwr-public-key", b"known")]), 413),
        (request("/v1/fleet/push-object", headers=[(b"flwr-public-key", b"known")]), 411),
    ],
)  # fmt: skip
def test_the_gate_lets_sites_reach_the_fleet_api_only(asked: dict[str, Any], status: int):
    assert GATE.refusal(asked) == status


def test_without_keys_the_gate_asks_for_none():
    gate = Gate(nobody, most=100, keys=None, word="sesame")
    assert gate.refusal(request("/v1/fleet/x", key=b"strange")) == 0
    assert gate.refusal(request("/v1/control/stop-run", peer="127.0.0.1")) == 403


def test_a_sites_own_port_takes_nothing_from_strangers():
    gate = Gate(nobody, most=100, keys=None, word="sesame", fleet=False)
    for path in ("/v1/fleet/x", "/v1/runtime/push-object", "/docs"):
        assert gate.refusal(request(path, peer="127.0.0.1")) == 403
    asked = request("/v1/runtime/push-object", peer="127.0.0.1", word=b"sesame")
    assert gate.refusal(asked) == 0
    asked["headers"][0] = (b"content-length", b"400000000")
    assert gate.refusal(asked) == 413


PRIVATE = re.compile(r"^\s*(?:from|import) (flwr\.(?!app|serverapp|clientapp)[\w.]+)", re.MULTILINE)


def test_what_is_private_in_flower_is_named_in_one_place():
    here = Path(private.__file__).parent
    allowed = {here / "private.py", *(here / "scripts").glob("*.py")}
    for path in here.parents[1].rglob("*.py"):
        found = PRIVATE.findall(path.read_text())
        assert not found or path in allowed, f"{path} imports {found}"


# the plan ---------------------------------------------------------------------------------


def plan() -> Plan:
    return Plan.new("run", 2, Agreement(classes=3), WaitPolicy())


def test_a_plan_survives_its_file(tmp_path: Path):
    known = {name: KnownSite(card(name), 1) for name in "cab"}
    settled = plan().with_sites(known)
    assert settled.names == ("a", "b")
    settled.write(tmp_path)
    assert Plan.read(tmp_path) == settled


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (card("b", shape=[5]), "its shape is"),
        (card("b", num_classes=2), "its num_classes is 2, and not 3"),
        (card("b", fedkin="0.0.1"), "its fedkin is 0.0.1"),
        (card("b", train=0), "train should be greater than or equal to 1"),
        (card("b", train="many"), "train should be a whole number"),
        (card("b", train=10**400), "train should be less than or equal to"),
        (card("b", shape=[10**30]), "shape"),
        (card("b", parameters=10**40), "parameters should be less"),
        (card("b", identity="\x1b[2J"), "identity string should match"),
        (card("b", test=-1), "test should be greater"),
        (card("b", shape=[10**9, -1]), "shape"),
        (card("b", shape="wide"), "shape should be a list"),
        (card("../b"), "name string should match"),
        (card("b", more="x" * 10**6), "unknown key 'more'"),
        ({}, "name"),
    ],
)
def test_sites_must_fit_together(facts: dict[str, Any], words: str):
    with pytest.raises(FedkinError, match=words):
        plan().admit(facts, {"a": KnownSite(card("a"), 1)})


def test_once_begun_a_run_keeps_its_sites():
    settled = plan().with_sites({name: KnownSite(card(name), 1) for name in "ab"})
    settled.admit(card("b"), {})
    with pytest.raises(FedkinError, match="this run has begun with a, b"):
        settled.admit(card("c"), {})
    with pytest.raises(FedkinError, match="its train is 6, and not 5"):
        settled.admit(card("b", train=6), {})


def test_the_server_knows_sizes_and_no_samples():
    settled = plan().with_sites(
        {n: KnownSite(card(n, train=t), 1) for n, t in (("a", 5), ("b", 9))}
    )
    data = settled.data(DataConfig())
    assert data.train.sizes.tolist() == [5, 9]
    assert not data.train.here
    assert len(data.train.x) == 2
    assert data.train.x.eq(0).all()


def test_the_server_has_a_table_of_what_sites_can_carry(tmp_path: Path):
    devices, config_path = tmp_path / "devices.csv", write_config(tmp_path, "submodel", rounds=1)
    devices.write_text("client,rate\nb,1/4\na,1\n")
    text = config_path.read_text().replace("[data]", f'[data]\nclient_table = "{devices}"')
    config_path.write_text(text)
    config, agreement = read_serve_config(config_path)
    settled = plan().with_sites({n: KnownSite(card(n), 1) for n in "ab"})
    assert settled.data(config.data).columns == {"rate": ["1", "1/4"]}
    assert "client_table" not in settled.setup(config)["data"]
    config_path.write_text(served_config(config, agreement, {}))
    assert read_serve_config(config_path)[0].data.client_table == str(devices)


# imports ----------------------------------------------------------------------------------


def test_fedkin_does_not_import_flower():
    code = "import fedkin, fedkin.command.cli, sys; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
