"""`headrace certificate`: make, show."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from headrace.substrate.certificates import load_pair

from .conftest import Run


def test_certificate_make_says_what_to_write_and_what_clients_need(run_alone: Run, tmp_path: Path) -> None:
    said = run_alone("certificate", "make", "data.example.com", "192.0.2.7", "--days", "90").text
    assert said.startswith("Made .headrace/tls/server.pem for data.example.com, localhost, 192.0.2.7, 127.0.0.1")
    assert "Clients need .headrace/tls/authority.pem" in said
    wanted = tomllib.loads(said[said.index("[http]") : said.index("Clients")])["http"]
    pair = load_pair(tmp_path / wanted["certificate"], tmp_path / wanted["key"])
    shown = run_alone("certificate", "show", "-o", "json").json
    assert shown["fingerprint"] == pair.certificate.fingerprint
    assert (shown["names"], shown["days_left"]) == (list(pair.certificate.names), 89)
    text = run_alone("certificate", "show").text
    assert f"until        {pair.certificate.ends:%Y-%m-%d %H:%M} UTC, 89 days\n" in text
    assert pair.certificate.fingerprint in text


def test_certificate_make_does_not_replace_one_unless_told_to(run_alone: Run) -> None:
    first = run_alone("certificate", "make", "a.example", "-o", "json").json
    assert "There is a certificate already" in run_alone("certificate", "make", "b.example").complaint(2)
    second = run_alone("certificate", "make", "--renew", "-o", "json").json
    assert second["names"] == first["names"]
    assert second["fingerprint"] != first["fingerprint"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("make",), 2, "A certificate needs a name"),
        (("make", "https://a.example"), 2, "'https://a.example' is neither a DNS name nor an IP address"),
        (("make", "--renew"), 4, "There is no certificate"),
        (("show",), 4, "There is no certificate"),
    ],
)
def test_certificate_that_cannot_be_made_or_shown_says_why(
    run_alone: Run, arguments: tuple[str, ...], code: int, says: str
) -> None:
    assert says in run_alone("certificate", *arguments).complaint(code)
