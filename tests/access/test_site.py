"""A secure site: its listener for other machines, its users by the command line, and what comes between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

import headrace as hr
from headrace import settings
from headrace.access import Access
from headrace.cli.commands import cli
from headrace.errors import AccessError, DefinitionError, NotFoundError, SettingsError
from headrace.log.users import Users
from headrace.settings import Settings, read_properties

from .conftest import as_user


class Note(hr.Record):
    id: str


def run(settings: Settings, *arguments: str, input: str = "") -> Any:
    """A command in this process: its result, or the error it ends with."""
    done = CliRunner().invoke(cli, ["--project", str(settings.root), *arguments], input=input)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "json" in arguments else done.stdout


def test_other_machines_come_in_by_tls_and_a_password(headrace_settings: Settings, headrace_app: hr.App) -> None:
    site = headrace_settings.site_named()
    assert site.listener is not None
    login = read_properties(site.login_file("ops").read_text())
    outer = {
        "bootstrap.servers": f"localhost:{site.listener.port}",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(headrace_settings.root / "tls" / "authority.pem"),
        "sasl.mechanism": login["sasl.mechanism"],
        "sasl.username": "ops",
        "sasl.password": login["sasl.password"],
        "socket.timeout.ms": "2000",
    }
    found = AdminClient(outer).list_topics(timeout=15)
    assert {each.port for each in found.brokers.values()} == {site.listener.port}
    assert "headrace.access" in found.topics
    owner = read_properties(site.login_file("headrace").read_text())
    for change in (
        {"ssl.ca.location": "/etc/hostname"},  # no authority
        {"sasl.password": "wrong"},
        {"security.protocol": "SASL_PLAINTEXT"},
        # The owner's own secret does not come in from other machines.
        {"sasl.mechanism": "PLAIN", "sasl.username": "headrace", "sasl.password": owner["sasl.password"]},
    ):
        with pytest.raises(KafkaException):
            AdminClient({**outer, **change}).list_topics(timeout=2)


def test_users_by_the_command_line(headrace_settings: Settings, tmp_path: Path, users: Users) -> None:
    login = tmp_path / "zoe.properties"
    made = run(headrace_settings, "user", "add", "zoe", "--group", "ports", "--login", str(login), "-o", "json")
    assert made == {"name": "zoe", "groups": ["ports"], "login": str(login)}
    assert login.stat().st_mode & 0o777 == 0o600
    assert read_properties(login.read_text())["sasl.username"] == "zoe"
    with pytest.raises(DefinitionError, match="already"):
        run(headrace_settings, "user", "add", "zoe", "--login", str(tmp_path / "other"))
    with pytest.raises(SettingsError, match="exists already"):
        run(headrace_settings, "user", "add", "zia", "--login", str(login))
    with pytest.raises(DefinitionError, match="12 to 256"):
        run(headrace_settings, "user", "add", "zia", "--password-stdin", input="short\n")
    token = run(headrace_settings, "user", "token", "zoe", "--expires", "1 day", "-o", "json")
    assert token["token"].startswith("hr_")
    listed = {each["name"]: each for each in run(headrace_settings, "user", "list", "-o", "json")}
    assert listed["zoe"] == {"name": "zoe", "groups": ["ports"], "tokens": 1}
    run(headrace_settings, "user", "groups", "zoe", "a", "b")
    assert users.policy().users["zoe"] == {"a", "b"}
    with pytest.raises(DefinitionError, match="owner"):
        run(headrace_settings, "user", "remove", "headrace")
    assert run(headrace_settings, "user", "remove", "zoe") == "Removed zoe and 1 token.\n"
    for arguments in (("user", "remove", "zoe"), ("user", "token", "zoe"), ("user", "groups", "zoe", "a")):
        with pytest.raises(NotFoundError, match="no user 'zoe'"):
            run(headrace_settings, *arguments)
    with pytest.raises(SettingsError, match="somebody"):
        run(headrace_settings, "token", "add", "x", "--scope", "read")


def test_password_of_ones_own(headrace_settings: Settings, users: Users) -> None:
    run(headrace_settings, "user", "add", "yan", "--password-stdin", input="correct-horse-9\n")
    assert "correct-horse-9" in headrace_settings.site_named().login_file("yan").read_text()
    assert hr.App("yan", settings=as_user(headrace_settings, "yan")).site.admin().names(own=True)
    users.remove("yan")


def test_access_is_shown_checked_set_and_mended(
    headrace_settings: Settings, headrace_app: hr.App, users: Users, unique_name: Callable[[str], str]
) -> None:
    stream = headrace_app.stream(unique_name("notes"), Note, access=Access(consume="group:ports & !user:intern"))
    stream.create()
    (shown,) = run(headrace_settings, "access", "show", stream.name, "-o", "json")
    assert shown["consume"] == "group:ports & !user:intern"
    assert shown["users"] == {"produce": ["ops"], "consume": ["ann", "ops"], "admin": ["ops"]}
    checked = run(headrace_settings, "access", "check", "ann", stream.name, "-o", "json")
    assert (checked["produce"], checked["consume"], checked["rules_agree"]) == (False, True, True)
    run(headrace_settings, "access", "set", stream.name, "--produce", "user:ann | user:nobody")
    assert users.policy().streams[stream.name] == Access(
        produce="user:ann | user:nobody", consume="group:ports & !user:intern"
    )
    assert (
        "user:nobody"
        in CliRunner()
        .invoke(cli, ["--project", str(headrace_settings.root), "access", "show", stream.name])
        .stderr
    )
    with pytest.raises(DefinitionError, match="no access expression"):
        run(headrace_settings, "access", "set", stream.name, "--consume", "ann")
    with pytest.raises(NotFoundError):
        run(headrace_settings, "access", "check", "nobody", stream.name)
    # Somebody gives eve a right behind our back.
    kafka = headrace_app.site.admin().kafka
    read = AclBinding(
        ResourceType.TOPIC,
        stream.name,
        ResourcePatternType.LITERAL,
        "User:eve",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for done in kafka.create_acls([read]).values():
        done.result(15)
    with pytest.raises(AccessError, match="not what the policy says"):
        run(headrace_settings, "access", "check", "eve", stream.name)
    assert run(headrace_settings, "access", "apply") == "Added 0 and removed 1 of Kafka's rules.\n"
    run(headrace_settings, "access", "check", "eve", stream.name)
    # The definition is what counts when the app starts again; a stream that is deleted takes its access along.
    stream.create()
    assert users.policy().streams[stream.name] == stream.access
    headrace_app.site.admin().delete(stream.name)
    assert stream.name not in users.policy().streams


def test_app_of_a_user_who_may_not_say_who_may(
    headrace_settings: Settings, headrace_app: hr.App, unique_name: Callable[[str], str]
) -> None:
    """An app of another user starts if all is as it says; to change who may, it takes an admin."""
    access = Access(produce="group:apps", consume="group:apps")
    name = unique_name("notes")
    headrace_app.stream(name, Note, key="id", access=access).create()
    mine = hr.App("mine", settings=as_user(headrace_settings, "runner"))
    mine.stream(name, Note, key="id", access=access).create()
    other = hr.App("other", settings=as_user(headrace_settings, "runner"))
    with pytest.raises(AccessError, match="may not change the access"):
        other.stream(name, Note, key="id", access=Access(consume="*")).create()
    with pytest.raises(AccessError):
        other.stream(unique_name("new"), Note, key="id", access=access).create()


SECURE = "[sites.main]\nsecure = true\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sites.main]\nsecure = 1\n", "sites.main.secure is 1"),
        ('[sites.main.listener]\nhost = "0.0.0.0"\n', "open to everybody"),
        (SECURE + '[sites.main.listener]\nhost = "0.0.0.0"\n', "without TLS"),
        (SECURE + '[sites.main.listener]\nhost = "0.0.0.0"\ncertificate = "a"\nkey = "b"\n', "has no name"),
        (SECURE + '[sites.main.listener]\ncertificate = "a"\nkey = "b"\n', "has no host"),
        (SECURE + '[sites.main.listener]\nhost = "h"\ncertificate = "a"\nkey = "b"\nport = 0\n', "port is 0"),
        (SECURE + '[sites.main.broker]\nsuper.users = "User:eve"\n', "Headrace's to set"),
        ('[sites.main.broker]\nlisteners = "PLAINTEXT://0.0.0.0:9092"\n', "Headrace's to set"),
        (SECURE + 'user = "a b"\n', "not a name for a user"),
    ],
)
def test_settings_that_would_open_a_door(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "headrace.toml").write_text(text)
    with pytest.raises(SettingsError, match=said):
        settings.load(tmp_path, environ={})


def test_open_site_has_no_users(tmp_path: Path) -> None:
    found = settings.load(tmp_path, environ={})
    (tmp_path / ".headrace" / "sites" / "main").mkdir(parents=True)
    found.site_named().address_file.write_text("127.0.0.1:1")
    with pytest.raises(SettingsError, match="open to everybody"):
        run(found, "user", "list")


def test_login_that_others_can_read_is_refused(headrace_settings: Settings) -> None:
    file = headrace_settings.site_named().login_file("bob")
    file.chmod(0o644)
    try:
        with pytest.raises(SettingsError, match="open to others"):
            as_user(headrace_settings, "bob").site_named().client_options()
    finally:
        file.chmod(0o600)
    with pytest.raises(AccessError, match="no login for user 'nobody'"):
        as_user(headrace_settings, "nobody").site_named().client_options()
