"""A Java trust store made from the certificates that the system trusts.

Java brings its own list of public authorities; behind a company's proxy that list is not enough.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import warnings
from pathlib import Path

from headrace.substrate._files import write_atomically

PASSWORD = "changeit"  # noqa: S105 - Java's customary one; a trust store holds nothing secret
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def trust_options(cache: Path) -> list[str]:
    """Return the JVM options that make Java trust what the system trusts; none if that is not known."""
    store = trust_store(cache)
    if store is None:
        return []
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    ]


def trust_store(cache: Path) -> Path | None:
    """Return the trust store, made anew when the system's certificates (or SSL_CERT_FILE) changed."""
    bundle = _system_bundle()
    if not bundle:
        return None
    path = cache / "java" / f"trust-{hashlib.sha256(bundle).hexdigest()[:16]}.p12"
    if not path.is_file():
        content = _java_trust_store(bundle)
        if content is None:
            return None
        write_atomically(path, content)
    return path


def _system_bundle() -> bytes:
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return Path(paths.cafile).read_bytes()
    if paths.capath:
        files = sorted(file for file in Path(paths.capath).iterdir() if file.is_file())
        return b"\n".join(file.read_bytes() for file in files)
    return b""


def _java_trust_store(bundle: bytes) -> bytes | None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    found = {}
    for pem in _PEM.findall(bundle):
        try:
            with warnings.catch_warnings(action="ignore"):
                found[pem] = x509.load_pem_x509_certificate(pem)
        except ValueError:
            continue  # one odd certificate does not take the others away
    if not found:
        return None
    entries = [
        pkcs12.PKCS12Certificate(certificate, f"system-{number}".encode())
        for number, certificate in enumerate(found.values())
    ]
    return pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode()))
