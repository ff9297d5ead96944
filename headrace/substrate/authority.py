"""A private authority of the project's own, and the certificate of its servers that it vouches for."""

from __future__ import annotations

import ipaddress
import os
import re
from datetime import UTC, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.clock import Clock, SystemClock
from headrace.errors import SettingsError
from headrace.substrate._files import locked, write_atomically
from headrace.substrate.certificates import Certificate, leaf_of, load_key, load_pair, read_certificate

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

MOST_DAYS = 825  # what devices accept of a private authority
ALWAYS = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS = 3650
_SKEW = timedelta(minutes=5)  # clocks of clients may be late
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.ASCII)


class Authority:
    """The project's own authority and the server's certificate it vouches for, in one folder.

    `authority.pem` is for clients; `authority.key` and `server.key` are for their owner alone.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None) -> None:
        self.folder = folder
        self.certificate = folder / "server.pem"
        self.key = folder / "server.key"
        self.authority = folder / "authority.pem"
        self._authority_key = folder / "authority.key"
        self._clock = clock or SystemClock()

    def make(self, names: list[str], *, days: int = MOST_DAYS, renew: bool = False) -> Certificate:
        """Make the server's certificate for these names and for this machine's own, and the authority before it.

        With `renew`, another takes the place of the one that is there: for the same names, if none are given.
        """
        if not 1 <= days <= MOST_DAYS:
            raise SettingsError(
                f"A certificate cannot be valid for {days} days.",
                remedy=f"Give from 1 to {MOST_DAYS}: devices refuse one that is valid for longer.",
            )
        wanted = [_checked(name) for name in names]
        with locked(self.folder / "lock"):
            if self.certificate.exists() and not renew:
                there = read_certificate(self.certificate)
                raise SettingsError(
                    f"There is a certificate already, for {', '.join(there.names)} until {there.ends:%Y-%m-%d}.",
                    remedy="Make another in its place with: headrace certificate make NAME --renew",
                )
            if not wanted:
                if not renew:
                    raise SettingsError(
                        "A certificate needs a name.", remedy="Give the names that clients will ask for."
                    )
                wanted = list(read_certificate(self.certificate).names)
            return self._make(list(dict.fromkeys([*wanted, *ALWAYS])), days)

    def _make(self, names: list[str], days: int) -> Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.x509.oid import ExtendedKeyUsageOID

        by, signer = self._open()
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._begin(key, _named(names[0] if len(names[0]) <= 64 else "headrace"), days, by)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )
        made = _sign(builder, signer)
        write_atomically(self.key, _pkcs8(key), mode=0o600)
        write_atomically(self.certificate, made.public_bytes(Encoding.PEM) + by.public_bytes(Encoding.PEM))
        return read_certificate(self.certificate)

    def _open(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        """The authority, made if there is none; not in place of another, which clients may trust."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding

        if self.authority.exists():
            if self._clock.now() >= read_certificate(self.authority).ends:
                raise SettingsError(
                    f"The authority {self.authority} has expired.",
                    remedy="Remove it to have another made, and give clients the new one.",
                )
            pair = load_pair(self.authority, self._authority_key, clock=self._clock)
            return leaf_of(pair.certificate), load_key(self._authority_key)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._begin(key, _named(f"Headrace authority {os.urandom(4).hex()}"), _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        )
        made = _sign(builder, key)
        write_atomically(self._authority_key, _pkcs8(key), mode=0o600)
        write_atomically(self.authority, made.public_bytes(Encoding.PEM))
        return made, key

    def _begin(
        self, key: EllipticCurvePrivateKey, subject: x509.Name, days: int, by: x509.Certificate | None = None
    ) -> x509.CertificateBuilder:
        from cryptography import x509

        now = self._clock.now().astimezone(UTC).replace(microsecond=0)
        ends = now + timedelta(days=days)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(by.subject if by else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(min(ends, by.not_valid_after_utc) if by else ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if by is None:
            return builder
        own = by.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        known = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
        return builder.add_extension(known, critical=False)


def _checked(name: str) -> str:
    """A name as it is written into a certificate; SettingsError if nobody can be called so."""
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        lower = name.lower()
        if len(lower) > 253 or not _DNS.fullmatch(lower) or lower.rpartition(".")[2].isdecimal():
            raise SettingsError(
                f"{name!r} is neither a DNS name nor an IP address.",
                remedy="Give what clients connect to, without port or path: data.example.com, 192.0.2.7",
            ) from None
        return lower
    if address.is_unspecified:
        raise SettingsError(
            f"{name} stands for all addresses; no client connects to it.", remedy="Give the machine's name."
        )
    return str(address)


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _named(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(**allowed: bool) -> x509.KeyUsage:
    from cryptography import x509

    kinds = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{kind: allowed.get(kind, False) for kind in kinds})


def _sign(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _pkcs8(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
