"""What a site proves its name with in secure sums: the key and certificate of `fedkin certs`."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedkin.engines.flower.certificates import SiteFiles
from fedkin.engines.secure.crypto import Identity, Trust
from fedkin.errors import FedkinError


def identity_of(name: str, files: SiteFiles) -> tuple[Identity, Trust]:
    """A site's identity, and whom it trusts: both from its folder of certificates."""
    path = files.key.with_name("site.pem")
    if not path.is_file():
        raise FedkinError(
            f"there is no {path}, which secure sums need: where authority.key is, run `fedkin "
            f"certs --site {name}` again, and give this site the new file"
        )
    try:
        key = load_ssh_private_key(files.key.read_bytes(), None)
        public = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FedkinError(f"{files.key} or {path} is not what `fedkin certs` made") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != public:
        raise FedkinError(f"{path} is not the certificate of {files.key}")
    trust = Trust(files.authority.read_bytes())
    trust.key_of(name, path.read_bytes())  # a name that is not the certificate's is told at once
    return Identity(name, key, path.read_bytes()), trust
