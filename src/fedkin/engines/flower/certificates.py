"""`fedkin certs`: an authority, the server's certificate, and a key for every site."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedkin.engines.flower.processes import write_private
from fedkin.errors import FedkinError

YEARS = 5
CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class SiteFiles:
    """Files of a site: the authority to trust, and its own private and public key."""

    authority: Path
    key: Path
    public: Path

    @classmethod
    def of(cls, folder: Path) -> SiteFiles:
        files = cls(folder / "authority.pem", folder / "site.key", folder / "site.pub")
        _exist(files.authority, files.key, files.public)
        check_secret(files.key)
        return files


@dataclass(frozen=True)
class ServerFiles:
    """Files of the server: its certificate, and the public keys of the sites it admits."""

    authority: Path
    certificate: Path
    key: Path
    sites: dict[str, Path]

    @classmethod
    def of(cls, folder: Path) -> ServerFiles:
        server = folder / "server"
        keys = sorted((folder / "sites").glob("*/site.pub"))
        files = cls(
            folder / "authority.pem",
            server / "server.pem",
            server / "server.key",
            {path.parent.name: path for path in keys},
        )
        _exist(files.authority, files.certificate, files.key)
        check_secret(files.key)
        if not files.sites:
            raise FedkinError(f"{folder} has no sites' keys: add some with `fedkin certs --site`")
        return files


def _exist(*files: Path) -> None:
    for file in files:
        if not file.is_file():
            raise FedkinError(f"there is no file {file}: make it with `fedkin certs`")


def read_public(path: Path) -> bytes:
    """A site's public key as Flower's Fleet API takes it."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedkinError(f"{path} is not a key that `fedkin certs` made")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def check_site_name(site: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", site):
        raise FedkinError(f"{site!r} cannot be a site's name: letters, digits, . _ - only")


def check_secret(*secrets: Path) -> None:
    """Raise if a private key can be read by everybody on this machine."""
    for path in secrets:
        if path.stat().st_mode & 0o007:
            raise FedkinError(f"{path} can be read by everybody here: chmod 600 {path}")


def make_certificates(folder: Path, hosts: Sequence[str], sites: Sequence[str]) -> list[str]:
    """Make what is missing in a folder; keys that are there stay. Returns a sentence for each."""
    for site in sites:
        check_site_name(site)
    made = []
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "sites").mkdir(exist_ok=True, mode=0o700)
    authority = folder / "authority.pem"
    if not authority.exists():
        _make_authority(folder)
        made.append(f"authority {authority} (keep {folder / 'authority.key'} secret)")
    if hosts:
        _make_server(folder, hosts)
        made.append(f"server certificate for {', '.join(hosts)} in {folder / 'server'}")
    for site in sites:
        place = folder / "sites" / site
        new = not (place / "site.key").exists()
        if new:
            _make_site(place, authority)
            made.append(f"key of '{site}' in {place}: give this folder to that site only")
        if not (place / "site.pem").exists():
            if (folder / "authority.key").exists():
                certify_site(folder, site)
                made += [] if new else [f"certificate of '{site}' in {place}: site.pem"]
            else:
                made.append(f"no certificate of '{site}' for secure sums: no authority.key here")
    return made


def certify_site(folder: Path, site: str) -> None:
    """The authority says whose key it is, so that other sites need not ask the server."""
    place = folder / "sites" / site
    issuer = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes())
    issuer_key = _authority_key(folder)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    public = load_ssh_public_key((place / "site.pub").read_bytes())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    certificate = (
        _builder(subject, issuer.subject, public)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(issuer_key, hashes.SHA384())
    )
    (place / "site.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def _authority_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key((folder / "authority.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _make_authority(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Fedkin authority")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "authority.key", _pem(key))
    (folder / "authority.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def _make_server(folder: Path, hosts: Sequence[str]) -> None:
    issuer = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes())
    try:
        issuer_key = _authority_key(folder)
    except FileNotFoundError:
        raise FedkinError(
            f"{folder / 'authority.key'} is needed to sign a server's certificate"
        ) from None
    key = ec.generate_private_key(ec.SECP384R1())
    # the server's own programs reach it over loopback
    names = [_host(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _builder(subject, issuer.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(issuer_key, hashes.SHA384())
    )
    (folder / "server").mkdir(exist_ok=True, mode=0o700)
    write_private(folder / "server" / "server.key", _pem(key))
    (folder / "server" / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def _make_site(place: Path, authority: Path) -> None:
    """An elliptic-curve key in OpenSSH's format, as Flower reads it."""
    key = ec.generate_private_key(ec.SECP384R1())
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (place / "authority.pem").write_bytes(authority.read_bytes())
    (place / "site.pub").write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )
    write_private(place / "site.key", private)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=365 * YEARS))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
