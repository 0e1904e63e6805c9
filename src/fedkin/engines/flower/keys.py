"""Keys that sites make themselves, and their coming and going: request, sign, revoke, expiry."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedkin.engines.flower.certificates import certify_site, check_site_name, read_public
from fedkin.engines.flower.processes import write_private
from fedkin.errors import FedkinError

SOON = timedelta(weeks=6)


def request_key(folder: Path) -> list[str]:
    """At a site: its own key, whose private half never leaves its folder."""
    if (folder / "site.key").exists():
        raise FedkinError(f"{folder} has a key already: send {folder / 'site.pub'}")
    key = ec.generate_private_key(ec.SECP384R1())
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / "site.pub").write_bytes(public)
    write_private(folder / "site.key", private)
    return [
        f"key in {folder}: keep site.key here and send {folder / 'site.pub'} to the server's "
        "operators",
        f"they run `fedkin certs sign site.pub --site NAME` and send authority.pem and site.pem "
        f"back: put both into {folder} and join with --certs {folder}",
    ]


def sign_key(folder: Path, public: Path, site: str) -> list[str]:
    """Where the authority is: admit a site by the public half of its own key."""
    check_site_name(site)
    if not (folder / "authority.key").is_file():
        raise FedkinError(f"{folder / 'authority.key'} is needed to sign: name its folder")
    if not public.is_file():
        raise FedkinError(f"there is no file {public}: a site makes it with `fedkin certs request`")
    read_public(public)
    place = folder / "sites" / site
    again = (place / "site.pub").exists()
    if again:
        retire(place, folder / "replaced")
    place.mkdir(parents=True, mode=0o700)
    (place / "site.pub").write_bytes(public.read_bytes())
    (place / "authority.pem").write_bytes((folder / "authority.pem").read_bytes())
    certify_site(folder, site)
    return [
        f"'{site}' is admitted with {'a new key in place of its old one' if again else 'its key'}, "
        "by servers that run with this folder too",
        f"send it {place / 'authority.pem'} and {place / 'site.pem'} (neither is secret)",
    ]


def revoke_key(folder: Path, site: str) -> list[str]:
    """Admit a site no more; running servers close the door within seconds."""
    place = folder / "sites" / site
    if not place.is_dir():
        known = sorted(path.name for path in (folder / "sites").glob("*/"))
        raise FedkinError(f"{folder} has no site '{site}': it has {', '.join(known) or 'none'}")
    kept = retire(place, folder / "revoked")
    return [f"'{site}' is not admitted any more; what it had is in {kept}"]


def retire(place: Path, where: Path) -> Path:
    """Move a site's folder out of the way, under the time of its end."""
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = where / f"{place.name}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    place.rename(kept)
    return kept


def endings(*certificates: Path, now: datetime | None = None) -> list[str]:
    """A sentence for each certificate that ends within weeks, or has ended."""
    told, today = [], now or datetime.now(UTC)
    for path in certificates:
        if not path.is_file():
            continue
        text = path.read_bytes()
        if not re.search(rb"BEGIN CERTIFICATE", text):
            raise FedkinError(f"{path} is not a certificate")
        end = x509.load_pem_x509_certificate(text).not_valid_after_utc
        if end - today < SOON:
            days = (end - today).days
            when = f"ends in {days} days" if days >= 0 else f"ended {-days} days ago"
            told.append(f"the certificate {path} {when}, on {end:%Y-%m-%d}: have it made anew")
    return told
