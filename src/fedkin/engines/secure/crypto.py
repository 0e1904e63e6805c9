"""The primitives, all from `cryptography`: agreement, masks, sealed boxes, signatures."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from fedkin.engines.secure.fixed import Words
from fedkin.errors import FedkinError

KEY_BYTES = 32
NONCE_BYTES = 12
# ChaCha20's counter has 32 bits here: 64 bytes for each of its values
MOST_BYTES = 2**37
SIGNED_WITH = ec.ECDSA(hashes.SHA384())


def to_text(value: bytes) -> str:
    return b64encode(value).decode()


def from_text(value: Any, size: int | None = None) -> bytes:
    """Bytes from base64, of a known size where one is given."""
    try:
        found = b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise FedkinError("a value is not base64") from None
    if size is not None and len(found) != size:
        raise FedkinError(f"a value has {len(found)} bytes in place of {size}")
    return found


def public_of(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """A key that both ends of X25519 get, for one purpose (HKDF-SHA256)."""
    try:
        common = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise FedkinError("a public key is not one of X25519") from None
    return HKDF(hashes.SHA256(), KEY_BYTES, None, purpose).derive(common)


def stream(key: bytes, count: int) -> Words:
    """Pseudo-random words: ChaCha20's keystream of a key that is used for nothing else."""
    if 8 * count > MOST_BYTES:
        raise FedkinError(f"{count} numbers are too many for one mask")
    cipher = Cipher(ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """AES-GCM: nobody else can read it or change it, nor use it for something else."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
    except (InvalidTag, ValueError):
        raise FedkinError("a sealed share was changed, or was meant for another sum") from None


@dataclass(frozen=True)
class Identity:
    """A site's name, and the key and certificate that prove it."""

    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: bytes

    def sign(self, content: bytes) -> str:
        return to_text(self.key.sign(content, SIGNED_WITH))


class Trust:
    """Whose signatures count: those of sites whose certificate the authority has signed."""

    def __init__(self, authority: bytes) -> None:
        try:
            self._authority = x509.load_pem_x509_certificate(authority)
        except ValueError:
            raise FedkinError("the authority's certificate cannot be read") from None
        self._known: dict[tuple[str, bytes], ec.EllipticCurvePublicKey] = {}

    def key_of(self, name: str, certificate: bytes) -> ec.EllipticCurvePublicKey:
        """The public key in a site's certificate."""
        if (name, certificate) not in self._known:
            self._known[name, certificate] = self._checked(name, certificate)
        return self._known[name, certificate]

    def _checked(self, name: str, certificate: bytes) -> ec.EllipticCurvePublicKey:
        try:
            found = x509.load_pem_x509_certificate(certificate)
            found.verify_directly_issued_by(self._authority)
        except (ValueError, TypeError, InvalidSignature):
            raise FedkinError(f"the certificate of '{name}' is not one of our authority") from None
        names = [a.value for a in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [name]:
            raise FedkinError(f"the certificate of '{name}' is not its own")
        if not found.not_valid_before_utc <= datetime.now(UTC) <= found.not_valid_after_utc:
            raise FedkinError(f"the certificate of '{name}' is not valid today")
        if not _for_sites(found):
            raise FedkinError(f"the certificate of '{name}' is not one for a site")
        key = found.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise FedkinError(f"the certificate of '{name}' has a key of another kind")
        return key

    def check(self, name: str, certificate: bytes, signature: Any, content: bytes) -> None:
        """Raise unless a site has signed this."""
        try:
            self.key_of(name, certificate).verify(from_text(signature), content, SIGNED_WITH)
        except InvalidSignature:
            raise FedkinError(f"a message was not signed by '{name}'") from None


def _for_sites(certificate: x509.Certificate) -> bool:
    """A server's certificate must not pass for a site's."""
    uses: Sequence[x509.ObjectIdentifier]
    try:
        uses = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return False
    return list(uses) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
