"""TLS: which listeners must speak it, which certificate a server shows, and which ones a client believes."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, SettingsError
from headrace.settings import HttpSettings
from headrace.substrate.certificates import load_pair, read_certificate

LOGGER = logging.getLogger("headrace.http")
_SHUTDOWN_S = 2.0  # how long the other side may take to say goodbye
_CHECK_EVERY_S = 1.0


class Shown:
    """The certificate that a server shows; when its files change, the next client sees the new one.

    A new one that cannot be used leaves the old one in its place, and is logged.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._stamp = _stamp(certificate, key)
        pair = load_pair(certificate, key)
        self.ends: datetime = pair.certificate.ends
        self.context = self._current = pair.server_context()
        self._next_check_s = time.monotonic() + _CHECK_EVERY_S
        # Asked at the beginning of each connection, also of one that names no server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + _CHECK_EVERY_S
            self._refresh()
        if self._current is not self.context:
            connection.context = self._current

    def _refresh(self) -> None:
        stamp = _stamp(self._certificate, self._key)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            pair = load_pair(self._certificate, self._key)
            self._current = pair.server_context()
        except HeadraceError as error:
            LOGGER.warning("The certificate stays as it was: %s", error)
            return
        self.ends = pair.certificate.ends


def shown_by(settings: HttpSettings) -> Shown | None:
    """What servers of these settings show; None if they do not speak TLS."""
    if settings.certificate is None or settings.key is None:
        return None
    return Shown(settings.certificate, settings.key)


def speaking(settings: HttpSettings, shown: Shown | None = None) -> dict[str, Any]:
    """The options with which a loop's server speaks to clients; `shown` is what it shows, if that is known."""
    shown = shown or shown_by(settings)
    if shown is None:
        return {}
    return {
        "ssl": shown.context,
        "ssl_handshake_timeout": settings.head_timeout_s,
        "ssl_shutdown_timeout": _SHUTDOWN_S,
    }


def check_reach(settings: HttpSettings, what: str, host: str, *, is_local: bool) -> None:
    """Refuse a listener beyond loopback that would speak to everybody in the clear."""
    if is_local or settings.certificate is not None or settings.behind_proxy:
        return
    raise SettingsError(
        f"Others can reach {what} at {host!r}, and there is no certificate: all could be read on its way.",
        remedy="Make one with: headrace certificate make NAME — and name it in [http] of headrace.toml; or write "
        "behind_proxy = true if a proxy before it speaks TLS.",
    )


class Trust:
    """Whom a client believes: what the system trusts and `authority`, by the name that it connects to.

    On this machine, which has `host` among its names, servers are known by the very certificate in `own`, whatever
    names are in it: instances of a project call each other by the addresses that they listen on.
    """

    def __init__(self, authority: Path | None = None, *, own: Path | None = None, host: str = "") -> None:
        self._authority = authority
        self._own = own
        self._host = host
        self._leaves: list[str] = []
        self._contexts: dict[bool, tuple[tuple[int, ...], ssl.SSLContext]] = {}

    def context_for(self, host: str) -> ssl.SSLContext:
        is_here = self._own is not None and (host == self._host or _is_here(host))
        file = self._own if is_here else self._authority
        stamp = _stamp(file) if file is not None else ()
        known = self._contexts.get(is_here)
        if known is None or known[0] != stamp:
            known = self._contexts[is_here] = stamp, self._make_own() if is_here else self._make()
        return known[1]

    def _make(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._authority is not None:
            context.load_verify_locations(cadata=read_certificate(self._authority).chain)
        return context

    def _make_own(self) -> ssl.SSLContext:
        assert self._own is not None
        leaf = read_certificate(self._own).leaf
        # The one before as well: the other instance may not have seen yet that there is another.
        self._leaves = [*self._leaves[-1:], leaf]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata="\n".join(self._leaves))
        return context


def trust_of(settings: HttpSettings) -> Trust:
    """Whom instances of a project believe, among themselves."""
    return Trust(settings.certificate, own=settings.certificate, host=settings.host)


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _stamp(*files: Path) -> tuple[int, ...]:
    found: list[int] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            found.append(0)
        else:
            found += (status.st_mtime_ns, status.st_size, status.st_ino)
    return tuple(found)
