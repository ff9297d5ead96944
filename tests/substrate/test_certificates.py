"""Certificates: what is made is what TLS accepts, and what cannot be used is named before anything listens."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from headrace.clock import ManualClock, SystemClock
from headrace.errors import NotFoundError, SettingsError
from headrace.substrate.authority import Authority
from headrace.substrate.certificates import Pair, load_pair, pem_pair, read_certificate


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def handshake(pair: Pair, client: ssl.SSLContext, name: str) -> str | None:
    """Two ends speak TLS through memory; the version that they agree on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = pair.server_context().wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for each in (asking, server):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return asking.version()


def test_certificate_is_accepted_under_its_names_by_whoever_trusts_the_authority(authority: Authority) -> None:
    authority.make(["Data.example.com", "192.0.2.7", "*.fleet.example.com"])
    pair = load_pair(authority.certificate, authority.key)
    client = ssl.create_default_context(cafile=authority.authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in ("data.example.com", "192.0.2.7", "a.fleet.example.com", "localhost", "127.0.0.1", "::1"):
        assert handshake(pair, client, name) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'other.example.com'"):
        handshake(pair, client, "other.example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(pair, ssl.create_default_context(), "localhost")


def test_certificate_speaks_tls_from_1_2_on(authority: Authority) -> None:
    authority.make(["a.example"])
    pair = load_pair(authority.certificate, authority.key)
    client = ssl.create_default_context(cafile=authority.authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(pair, client, "a.example") == "TLSv1.2"
    assert pair.server_context().minimum_version is ssl.TLSVersion.TLSv1_2


def test_keys_are_for_their_owner_alone(authority: Authority, tmp_path: Path) -> None:
    authority.make(["a.example"])
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.name != "lock"}
    assert modes == {"authority.key": 0o600, "authority.pem": 0o644, "server.key": 0o600, "server.pem": 0o644}
    authority.key.chmod(0o640)
    with pytest.raises(SettingsError, match=r"server.key is open to others. Close it with: chmod 600"):
        load_pair(authority.certificate, authority.key)


def test_renewed_certificate_keeps_names_and_authority_and_changes_the_key(authority: Authority) -> None:
    made = authority.make(["a.example", "192.0.2.7"], days=30)
    trusted, key = authority.authority.read_bytes(), authority.key.read_bytes()
    with pytest.raises(SettingsError, match=r"There is a certificate already, for a.example"):
        authority.make(["b.example"])
    renewed = authority.make([], days=60, renew=True)
    assert set(renewed.names) == set(made.names) == {"a.example", "192.0.2.7", "localhost", "127.0.0.1", "::1"}
    assert (renewed.ends - made.ends).days in (29, 30)
    assert renewed.fingerprint != made.fingerprint
    assert authority.authority.read_bytes() == trusted
    assert authority.key.read_bytes() != key
    assert load_pair(authority.certificate, authority.key).certificate == renewed


def test_two_who_make_at_once_leave_one_pair(authority: Authority) -> None:
    makers = [threading.Thread(target=authority.make, args=(["a.example"],), kwargs={"renew": True}) for _ in "ab"]
    for each in makers:
        each.start()
    for each in makers:
        each.join()
    load_pair(authority.certificate, authority.key)


def test_certificate_out_of_its_time_is_named(tmp_path: Path) -> None:
    now = SystemClock().now()
    authority = Authority(tmp_path, clock=ManualClock(now))
    authority.make(["a.example"], days=10)
    load_pair(authority.certificate, authority.key, clock=ManualClock(now + timedelta(days=9)))
    with pytest.raises(SettingsError, match=r"server.pem expired at 2.+headrace certificate make --renew"):
        load_pair(authority.certificate, authority.key, clock=ManualClock(now + timedelta(days=10)))
    with pytest.raises(SettingsError, match=r"server.pem is valid only from 2"):
        load_pair(authority.certificate, authority.key, clock=ManualClock(now - timedelta(days=1)))


def test_expired_authority_is_not_replaced_behind_the_back_of_its_clients(tmp_path: Path) -> None:
    now = SystemClock().now()
    Authority(tmp_path, clock=ManualClock(now)).make(["a.example"])
    late = Authority(tmp_path, clock=ManualClock(now + timedelta(days=3600)))
    assert late.make([], renew=True).ends == read_certificate(late.authority).ends
    over = Authority(tmp_path, clock=ManualClock(now + timedelta(days=3651)))
    with pytest.raises(SettingsError, match=r"authority.pem has expired"):
        over.make([], renew=True)


def test_pair_of_two_pairs_is_refused(tmp_path: Path) -> None:
    one, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    one.make(["a.example"])
    other.make(["a.example"])
    with pytest.raises(SettingsError, match=r"other/server.key is not that of the certificate .+one/server.pem"):
        load_pair(one.certificate, other.key)


def _gone(authority: Authority) -> None:
    authority.certificate.unlink()


def _no_certificate(authority: Authority) -> None:
    authority.certificate.write_text("certificate")


def _broken_certificate(authority: Authority) -> None:
    authority.certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def _no_key(authority: Authority) -> None:
    authority.key.write_text("key")


def _encrypted(authority: Authority) -> None:
    key = load_pem_private_key(authority.key.read_bytes(), None)
    authority.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_gone, r"There is no certificate .+server.pem"),
        (_no_certificate, r"server.pem holds no certificate"),
        (_broken_certificate, r"server.pem holds no certificate"),
        (_no_key, r"server.key holds no key"),
        (_encrypted, r"server.key is encrypted"),
    ],
)
def test_file_that_cannot_be_used_is_named(
    authority: Authority, spoil: Callable[[Authority], None], says: str
) -> None:
    authority.make(["a.example"])
    spoil(authority)
    with pytest.raises((SettingsError, NotFoundError), match=says):
        load_pair(authority.certificate, authority.key)


@pytest.mark.parametrize(
    "name",
    ["", "a b", "https://a.example", "a.example:443", "a..example", "-a.example", "1.2.3.4.5", "0.0.0.0", "::"],
)
def test_name_that_nobody_can_connect_to_is_refused(authority: Authority, name: str) -> None:
    with pytest.raises(SettingsError, match=r"is neither a DNS name|stands for all addresses"):
        authority.make([name])
    assert not authority.certificate.exists()


@pytest.mark.parametrize("days", [0, 826])
def test_days_that_devices_refuse_are_refused(authority: Authority, days: int) -> None:
    with pytest.raises(SettingsError, match="from 1 to 825"):
        authority.make(["a.example"], days=days)


def test_pem_pair_is_a_chain_and_a_plain_key_whatever_the_files_look_like(authority: Authority) -> None:
    authority.make(["a.example"])
    key = load_pem_private_key(authority.key.read_bytes(), None)
    authority.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    authority.certificate.write_text(f"subject=CN = a.example\n{authority.certificate.read_text()}")
    chain, text = pem_pair(authority.certificate, authority.key)
    assert chain.startswith("-----BEGIN CERTIFICATE-----\n")
    assert chain.count("BEGIN CERTIFICATE") == 2
    assert text.startswith("-----BEGIN PRIVATE KEY-----\n")
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    authority.key.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(SettingsError, match="is not that of the certificate"):
        pem_pair(authority.certificate, authority.key)
