"""Sites' own keys: only the public half travels; sites come and go by a folder."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedkin.engines.flower.certificates import (
    YEARS,
    ServerFiles,
    SiteFiles,
    make_certificates,
    read_public,
)
from fedkin.engines.flower.identity import identity_of
from fedkin.engines.flower.keys import endings, request_key, revoke_key, sign_key
from fedkin.engines.flower.scripts.gate import KeyList
from fedkin.errors import FedkinError


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "certs", ["localhost"], ["old"])
    return tmp_path / "certs"


def test_a_site_makes_its_own_key_and_only_the_public_half_leaves(certs: Path, tmp_path: Path):
    own = tmp_path / "clinic"
    request_key(own)
    secret = (own / "site.key").read_bytes()
    assert (own / "site.key").stat().st_mode & 0o777 == 0o600
    assert own.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FedkinError, match="has a key already"):
        request_key(own)
    told = sign_key(certs, own / "site.pub", "clinic")
    assert "neither is secret" in told[1]
    at_server = certs / "sites" / "clinic"
    assert not any(secret in path.read_bytes() for path in certs.rglob("*") if path.is_file())
    for name in ("authority.pem", "site.pem"):
        (own / name).write_bytes((at_server / name).read_bytes())
    files = SiteFiles.of(own)
    assert identity_of("clinic", files)[0].name == "clinic"
    assert read_public(ServerFiles.of(certs).sites["clinic"]) == read_public(files.public)


def test_a_key_is_replaced_and_revoked_and_nothing_is_lost(certs: Path, tmp_path: Path):
    request_key(tmp_path / "new")
    assert "in place of its old one" in sign_key(certs, tmp_path / "new" / "site.pub", "old")[0]
    assert len(list((certs / "replaced").glob("old-*/site.key"))) == 1
    revoke_key(certs, "old")
    assert len(list((certs / "revoked").glob("old-*/site.pub"))) == 1
    assert not (certs / "sites" / "old").exists()
    with pytest.raises(FedkinError, match="has no site 'old'"):
        revoke_key(certs, "old")


def test_what_cannot_be_signed_is_told(certs: Path, tmp_path: Path):
    (tmp_path / "x.pub").write_text("nonsense")
    for public, name, words in (
        (tmp_path / "none.pub", "a", "there is no file"),
        (tmp_path / "x.pub", "a", "is not a key"),
        (tmp_path / "x.pub", "../a", "cannot be a site's name"),
    ):
        with pytest.raises(FedkinError, match=words):
            sign_key(certs, public, name)
    with pytest.raises(FedkinError, match="needed to sign"):
        sign_key(tmp_path, tmp_path / "x.pub", "a")


def test_keys_that_everybody_can_read_are_refused(certs: Path):
    for path, files in ((certs / "sites" / "old" / "site.key", SiteFiles.of),
                        (certs / "server" / "server.key", ServerFiles.of)):  # fmt: skip
        assert path.parent.stat().st_mode & 0o777 == 0o700
        path.chmod(0o644)
        with pytest.raises(FedkinError, match="can be read by everybody here: chmod 600"):
            files(path.parent if files == SiteFiles.of else certs)
        path.chmod(0o600)


def test_a_certificates_end_is_told_weeks_before(certs: Path):
    authority, end = certs / "authority.pem", datetime.now(UTC) + timedelta(days=365 * YEARS)
    assert not endings(authority, certs / "none.pem")
    (told,) = endings(authority, now=end - timedelta(days=20))
    assert "ends in" in told
    assert "ended 3 days ago" in endings(authority, now=end + timedelta(days=2))[0]


def test_the_gate_reads_its_keys_again_when_they_change(tmp_path: Path):
    path = tmp_path / "keys"
    path.write_text("one")
    keys = KeyList(path)
    assert b"one" in keys
    path.write_text("two three")
    os.utime(path, ns=(1, 1))
    assert b"one" not in keys
    assert b"two" in keys
