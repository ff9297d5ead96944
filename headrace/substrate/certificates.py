"""Certificates that servers are to use: read, and checked before anything listens.

They are PEM files of any origin; `authority.py` makes some.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.clock import Clock, SystemClock
from headrace.errors import NotFoundError, SettingsError

if TYPE_CHECKING:  # imported where it is used: most commands need none of it
    from cryptography import x509

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class Certificate:
    """What a certificate says, and the chain it came with, as PEM."""

    path: Path
    names: tuple[str, ...]
    issuer: str
    starts: datetime
    ends: datetime
    fingerprint: str
    chain: str

    @property
    def leaf(self) -> str:
        """The server's own certificate, without those that vouch for it."""
        return _PEM.findall(self.chain)[0]  # type: ignore[no-any-return]  # a pattern without groups gives texts


@dataclass(frozen=True)
class Pair:
    """A server's certificate and its key, checked: what a server that speaks TLS needs."""

    certificate: Certificate
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """TLS 1.2 and later, with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Show this certificate from the next connection on."""
        try:
            context.load_cert_chain(self.certificate.path, self.key)
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(
                f"{self.certificate.path} cannot be used for TLS: {error.strerror}.",
                remedy="Make another: headrace certificate make NAME --renew",
            ) from None


def read_certificate(path: Path) -> Certificate:
    """What is in a file, whether it still holds or not; NotFoundError or SettingsError if there is nothing."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    chain = "\n".join(_PEM.findall(_read(path, "certificate")))
    try:
        first = x509.load_pem_x509_certificates(chain.encode())[0]
        names = _names_of(first)
    except ValueError:
        raise SettingsError(
            f"{path} holds no certificate.", remedy="Name a file in PEM: -----BEGIN CERTIFICATE-----"
        ) from None
    return Certificate(
        path=path,
        names=names,
        issuer=first.issuer.rfc4514_string(),
        starts=first.not_valid_before_utc,
        ends=first.not_valid_after_utc,
        fingerprint=first.fingerprint(SHA256()).hex(":").upper(),
        chain=f"{chain}\n",
    )


def load_pair(certificate: Path, key: Path, *, clock: Clock | None = None) -> Pair:
    """Check a certificate and its key; NotFoundError or SettingsError says what is wrong with which file."""
    found = read_certificate(certificate)
    now = (clock or SystemClock()).now()
    if now >= found.ends:
        raise SettingsError(
            f"The certificate {certificate} expired at {_said(found.ends)}.",
            remedy="Renew it; one that Headrace made with: headrace certificate make --renew",
        )
    if now < found.starts:
        raise SettingsError(
            f"The certificate {certificate} is valid only from {_said(found.starts)} on.",
            remedy="Check this machine's clock.",
        )
    private = load_key(key)
    if _public(leaf_of(found).public_key()) != _public(private.public_key()):
        raise SettingsError(
            f"The key {key} is not that of the certificate {certificate}.", remedy="Name the two of one pair."
        )
    return Pair(found, key)


def pem_pair(certificate: Path, key: Path) -> tuple[str, str]:
    """The checked chain and its key as PEM texts, the key as PKCS#8 and not encrypted: what Kafka takes."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pair = load_pair(certificate, key)
    text = load_key(key).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pair.certificate.chain, text.decode()


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise NotFoundError(
            f"There is no {what} {path}.", remedy="Make one with: headrace certificate make NAME"
        ) from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", remedy="Check its permissions.") from None


def load_key(path: Path) -> Any:
    """The private key in a file that only its owner can read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = _read(path, "key")
    status = path.stat()
    # A key of root's may be lent to a group, as systems do it that keep their keys in one place.
    closed = 0o037 if status.st_uid == 0 and os.geteuid() != 0 else 0o077
    if stat.S_IMODE(status.st_mode) & closed:
        raise SettingsError(f"The key {path} is open to others.", remedy=f"Close it with: chmod 600 {path}")
    try:
        return load_pem_private_key(text.encode(), password=None)
    except TypeError:
        raise SettingsError(
            f"The key {path} is encrypted.",
            remedy="Store it without a password, in a file that only its owner can read.",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise SettingsError(
            f"{path} holds no key.", remedy="Name a file in PEM: -----BEGIN PRIVATE KEY-----"
        ) from None


def leaf_of(found: Certificate) -> x509.Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(found.leaf.encode())


def _names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress)))


def _public(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[no-any-return]


def _said(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
