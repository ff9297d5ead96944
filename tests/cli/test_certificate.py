"""`headrace certificate`: make, show."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from headrace.substrate.authority import Authority
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


def test_certificate_show_shows_the_one_that_servers_use(run_alone: Run, tmp_path: Path) -> None:
    elsewhere = Authority(tmp_path / "elsewhere")
    made = elsewhere.make(["b.example"])
    named = f'certificate = "{elsewhere.certificate}"\nkey = "{elsewhere.key}"\n'
    run_alone("certificate", "make", "a.example")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "headrace.toml").write_text(f"[http]\n{named}")
    shown = run_alone("--project", tmp_path / "project", "certificate", "show", "-o", "json").json
    assert (shown["certificate"], shown["fingerprint"]) == (str(elsewhere.certificate), made.fingerprint)


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


def test_console_beyond_loopback_without_a_certificate_is_refused(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text('import headrace as hr\n\napp = hr.App("shop")\n')
    answer = run_alone("console", "app.py", HEADRACE_HTTP_HOST="0.0.0.0", HEADRACE_HTTP_PORT="0")
    assert "Others can reach the console at '0.0.0.0', and there is no certificate" in answer.complaint(2)
