from __future__ import annotations

from pathlib import Path

import pytest

from headrace import settings as module
from headrace.errors import NotFoundError, RunningError, SettingsError
from headrace.settings import HttpSettings, Settings, SiteSettings, load, read_properties


def write(root: Path, text: str) -> Path:
    (root / "headrace.toml").write_text(text)
    return root


def read(root: Path, text: str = "", **environ: str) -> Settings:
    return load(write(root, text), environ={"HOME": str(root), **environ})


# What is read, and from where.


def test_settings_without_a_file_are_one_embedded_site(tmp_path: Path) -> None:
    settings = load(tmp_path, environ={"HOME": str(tmp_path)})
    site = settings.site_named()
    assert (site.name, site.embedded, site.brokers, site.port) == ("main", True, 1, None)
    assert settings.cache == tmp_path / ".cache/headrace"
    assert site.folder == tmp_path / ".headrace/sites/main"
    assert list(tmp_path.iterdir()) == []


def test_settings_in_a_file_are_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        site = "lab"
        cache = "~/jars"
        java_home = "/opt/java"
        [sites.lab]
        brokers = 3
        port = 19092
        heap = "1 GB"
        [sites.lab.broker]
        log.retention.hours = 24
        unclean.leader.election.enable = false
        """,
    )
    site = settings.site_named()
    assert (site.name, site.brokers, site.port, site.heap_bytes) == ("lab", 3, 19092, 1024**3)
    assert site.broker == {"log.retention.hours": "24", "unclean.leader.election.enable": "false"}
    assert settings.cache == Path("~/jars").expanduser()
    assert settings.java_home == Path("/opt/java")


def test_settings_in_the_environment_win_over_the_file(tmp_path: Path) -> None:
    text = """
    site = "main"
    cache = "/file/cache"
    java_home = "/file/java"
    [sites.main]
    bootstrap.servers = "file:9092"
    client.rack = "file"
    [sites.other]
    """
    plain = read(tmp_path, text)
    assert (plain.site, plain.cache, plain.java_home) == ("main", Path("/file/cache"), Path("/file/java"))
    assert plain.site_named().client == {"bootstrap.servers": "file:9092", "client.rack": "file"}
    changed = read(
        tmp_path, text, HEADRACE_SITE="other", HEADRACE_CACHE="/env/cache", HEADRACE_JAVA_HOME="/env/java"
    )
    assert (changed.site, changed.cache, changed.java_home) == ("other", Path("/env/cache"), Path("/env/java"))
    client = read(tmp_path, text, HEADRACE_CLIENT_BOOTSTRAP_SERVERS="env:9092").site_named().client
    assert client == {"bootstrap.servers": "env:9092", "client.rack": "file"}


def test_http_settings_in_a_file_are_read(tmp_path: Path) -> None:
    http = read(
        tmp_path,
        """
        [http]
        host = "0.0.0.0"
        port = 0
        names = ["desk.local"]
        max_body = "2 MB"
        max_connections = 10
        max_requests = 5
        rate = 2.5
        head_timeout = "1 second"
        body_timeout = "2 seconds"
        idle_timeout = "3 seconds"
        handler_timeout = "4 seconds"
        require_tokens = true
        """,
    ).http
    assert http == HttpSettings("0.0.0.0", 0, ("desk.local",), 2 * 1024**2, 10, 5, 2.5, 1.0, 2.0, 3.0, 4.0, True)
    assert read(tmp_path).http == HttpSettings()


def test_certificate_of_http_is_in_the_projects_folder_or_elsewhere(tmp_path: Path) -> None:
    text = '[http]\ncertificate = ".headrace/tls/server.pem"\nkey = "/etc/server.key"\nbehind_proxy = true'
    settings = read(tmp_path, text)
    http = settings.http
    assert (http.certificate, http.key) == (settings.tls_folder / "server.pem", Path("/etc/server.key"))
    assert (http.behind_proxy, http.asks_tokens, HttpSettings().asks_tokens) == (True, True, False)


def test_http_address_in_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    text = '[http]\nhost = "::1"\nport = 1234'
    http = read(tmp_path, text, HEADRACE_HTTP_HOST="0.0.0.0", HEADRACE_HTTP_PORT="0").http
    assert (http.host, http.port) == ("0.0.0.0", 0)
    with pytest.raises(SettingsError, match=r"http.port is '80a'.*HEADRACE_HTTP_PORT"):
        read(tmp_path, text, HEADRACE_HTTP_PORT="80a")


def test_project_is_the_nearest_folder_upwards_with_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert load(environ={}).root == inner
    write(tmp_path, "")
    assert load(environ={}).root == tmp_path
    assert load(environ={"HEADRACE_PROJECT": str(inner)}).root == inner


def test_client_options_with_dots_are_kafkas_own_names(tmp_path: Path) -> None:
    site = read(
        tmp_path,
        """
        [sites.main]
        bootstrap.servers = ["a:9092", "b:9092"]
        security.protocol = "SASL_SSL"
        socket.keepalive.enable = true
        "sasl.mechanism" = "PLAIN"
        statistics.interval.ms = 0
        """,
    ).site_named()
    assert site.client == {
        "bootstrap.servers": "a:9092,b:9092",
        "security.protocol": "SASL_SSL",
        "socket.keepalive.enable": "true",
        "sasl.mechanism": "PLAIN",
        "statistics.interval.ms": "0",
    }
    assert not site.embedded
    assert site.client_options() == site.client


def test_embedded_site_that_is_not_up_says_how_to_start_it(tmp_path: Path) -> None:
    site = read(tmp_path).site_named()
    with pytest.raises(RunningError, match=r"The log of site 'main' is not running. Start it with: headrace up"):
        site.client_options()
    site.folder.mkdir(parents=True)
    site.address_file.write_text("127.0.0.1:9092\n")
    assert site.client_options() == {"bootstrap.servers": "127.0.0.1:9092"}


# A Java client's properties.

JAAS = r"""
# a comment
! another
bootstrap.servers: broker-1:9092,broker-2:9092
security.protocol=SASL_SSL
sasl.mechanism = PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    username="ann" \
    password="p=a:ss\"w0rd";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.pem
client.rack east
"""


def test_properties_file_of_a_java_client_becomes_librdkafkas_options() -> None:
    assert read_properties(JAAS) == {
        "bootstrap.servers": "broker-1:9092,broker-2:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": 'p=a:ss"w0rd',
        "ssl.ca.location": "/etc/ca.pem",
        "client.rack": "east",
    }


def test_properties_with_a_colon_before_an_equals_sign_split_at_the_colon() -> None:
    options = read_properties('sasl.jaas.config: Plain required username="ann" password="x";')
    assert options == {"sasl.username": "ann", "sasl.password": "x"}


def test_properties_file_named_by_a_site_is_read_and_the_table_wins(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("bootstrap.servers=file:9092\nclient.rack=file\n")
    text = '[sites.main]\nproperties = "client.properties"\nclient.rack = "table"'
    assert read(tmp_path, text).site_named().client == {"bootstrap.servers": "file:9092", "client.rack": "table"}


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"\xff\xfe=1", "it is not UTF-8")])
def test_properties_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "client.properties").write_bytes(content)
    with pytest.raises(SettingsError, match=rf"client.properties, named by sites.main.properties.*{reason}"):
        read(tmp_path, '[sites.main]\nproperties = "client.properties"')


# Secrets.


def test_secrets_do_not_show_when_settings_are_printed(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        [sites.main]
        bootstrap.servers = "broker:9092"
        sasl.username = "ann"
        sasl.password = "hunter2"
        ssl.key.pem = "hunter2"
        sasl.oauthbearer.client.secret = "hunter2"
        sasl.jaas.config = "hunter2"
        [sites.main.broker]
        listener.name.sasl.password = "hunter2"
        """,
    )
    assert settings.site_named().client["sasl.password"] == "hunter2"
    for text in (repr(settings), str(settings.site_named().client_options()), f"{settings.site_named().broker}"):
        assert "hunter2" not in text
        assert "•••" in text
    assert "'ann'" in repr(settings)


# What is refused.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "broker = 1",
            r"Unknown key 'broker' in headrace.toml; known are site, cache, java_home, lake, models, spark, "
            r"http, gateway, console, sites, links\.",
        ),
        (
            "[sites.main]\nbrokrs = 1",
            r"Unknown key 'brokrs' in \[sites.main\] of headrace.toml; known are brokers, port, heap, broker, "
            r"properties, secure, user, listener, and Kafka's client options, which have dots\.",
        ),
        ("site = \ncache = 1", r"headrace.toml is not valid TOML: .*line 1"),
        ("site = 5", r"'site' in headrace.toml is 5, not a text\. Put it in quotes\."),
        ("cache = true", r"'cache' in headrace.toml is True, not a text"),
        ("sites = 5", r"'sites' in headrace.toml is not a set of tables"),
        ("[sites]\nmain = 5", r"'sites' in headrace.toml is not a set of tables"),
        ("[sites.Main]", r"'Main' is not a name for a site"),
        ("[sites.main]\nbrokers = 2", r"sites.main.brokers is 2; an embedded site has 1 broker or 3"),
        ("[sites.main]\nbrokers = 1.0", r"sites.main.brokers is 1.0"),
        ("[sites.main]\nbrokers = true", r"sites.main.brokers is True"),
        ('[sites.main]\nport = "9092"', r"sites.main.port is '9092'; a port is a number from 1 to 65535"),
        ("[sites.main]\nport = 65536", r"sites.main.port is 65536"),
        ('[sites.main]\nheap = "big"', r"sites.main.heap: 'big' is not a size"),
        ("[sites.main]\nbroker = 1", r"sites.main.broker is not a table"),
        ("http = 5", r"'http' in headrace.toml is not a table"),
        (
            "[http]\nprot = 1",
            r"Unknown key 'prot' in \[http\] of headrace.toml; known are host, port, names, max_body",
        ),
        ("[http]\nport = 65536", r"http.port is 65536; a port is a number from 1 to 65535, or 0"),
        ("[http]\nport = true", r"http.port is True"),
        ('[http]\nnames = "desk"', r"http.names is 'desk', not a list of texts"),
        ("[http]\nrate = -1", r"http.rate is -1; it is requests a second"),
        ("[http]\nrate = nan", r"http.rate is nan"),
        ('[http]\nmax_body = "big"', r"http.max_body: 'big' is not a size"),
        ("[http]\nmax_requests = 0", r"http.max_requests is 0; it is a number from 1"),
        ('[http]\nhead_timeout = "soon"', r"http.head_timeout: 'soon' is not a duration"),
        ("[http]\nrequire_tokens = 1", r"http.require_tokens is 1"),
        ('[http]\nbehind_proxy = "yes"', r"http.behind_proxy is 'yes'"),
        ('[http]\ncertificate = "a.pem"', r"\[http\] has a certificate, and no key. Name both"),
        ('[http]\nkey = "a.key"', r"\[http\] has a key, and no certificate"),
        ("console = 1", r"'console' in headrace.toml is not a table"),
        (
            "[console]\nport = 1",
            r"Unknown key 'port' in \[console\] of headrace.toml; known are enabled, read_only",
        ),
        ("[console]\nread_only = 1", r"console.read_only is 1"),
        ("gateway = 1", r"'gateway' in headrace.toml is not a table"),
        ("[gateway]\nenable = true", r"Unknown key 'enable' in \[gateway\] of headrace.toml; known are enabled"),
        ("[gateway]\nenabled = 1", r"gateway.enabled is 1"),
        ('[gateway]\nstreams = "a"', r"gateway.streams is 'a', not a list of names"),
        ("[gateway]\nsockets = 1", r"gateway.sockets is not a set of tables"),
        ("[gateway.sockets.a]", r"gateway.sockets.a.port is None"),
        ("[gateway.sockets.a]\nport = 70000", r"gateway.sockets.a.port is 70000"),
        ("[gateway.directories.a]", r"gateway.directories.a has no path"),
        ('[gateway.directories.a]\npath = "x"\npattern = "../*"', r"gateway.directories.a.pattern is"),
        ('[gateway.directories.a]\npath = "x"\nsettle = 1', r"gateway.directories.a.settle: 1 is not a duration"),
        (
            '[sites.main]\nsasl.username = "ann"\nclient.rack = "east"',
            r"Site 'main' has client options \(client.rack, sasl.username\) but no bootstrap.servers",
        ),
    ],
)
def test_settings_that_are_wrong_are_refused_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        read(tmp_path, text)
    assert caught.value.exit_code == 2
    assert caught.value.remedy


def test_settings_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_bytes(b'site = "\xff"')
    with pytest.raises(SettingsError, match="is not valid TOML"):
        load(tmp_path, environ={})


def test_variable_that_is_unknown_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HEADRACE_SITES is not a variable of Headrace; known are") as caught:
        read(tmp_path, HEADRACE_SITES="main")
    for name in (*module.VARIABLES, module.CLIENT_PREFIX):
        assert name in str(caught.value)


def test_client_variables_without_bootstrap_servers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no bootstrap.servers"):
        read(tmp_path, HEADRACE_CLIENT_SASL_USERNAME="ann")


def test_site_that_is_not_declared_is_not_found_and_the_others_are_named(tmp_path: Path) -> None:
    text = "[sites.east]\n[sites.west]"
    with pytest.raises(
        NotFoundError, match=r"There is no site 'main'; this project has: east, west\..*\[sites.main\]"
    ):
        read(tmp_path, text)
    with pytest.raises(NotFoundError, match="There is no site 'north'"):
        read(tmp_path, text, HEADRACE_SITE="east").site_named("north")


def test_project_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load(tmp_path / "gone", environ={})


def test_settings_with_another_site_are_a_copy(tmp_path: Path) -> None:
    settings = read(tmp_path)
    changed = settings.with_site(SiteSettings("main", state=tmp_path, brokers=3))
    assert (settings.site_named().brokers, changed.site_named().brokers) == (1, 3)


def test_spark_table_is_read_with_sparks_own_options(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(
        '[spark]\nmaster = "spark://h:7077"\nmemory = "2 GB"\nsql.session.timeZone = "UTC"\ncheckpoints = "hdfs://n/p"'
    )
    found = module.load(tmp_path, environ={"HOME": "/x"} | {}).spark
    assert (found.master, found.memory_bytes, found.checkpoints) == ("spark://h:7077", 2 * 1024**3, "hdfs://n/p")
    assert found.options == {"spark.sql.session.timeZone": "UTC"}


def test_spark_master_of_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text('[spark]\nmaster = "yarn"')
    assert (
        module.load(tmp_path, environ={"HOME": "/x"} | {"HEADRACE_SPARK_MASTER": "local[3]"}).spark.master
        == "local[3]"
    )


def test_unknown_key_in_spark_names_the_known(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("[spark]\nmastr = 'x'")
    with pytest.raises(SettingsError, match=r"'mastr'.*master, memory, checkpoints"):
        module.load(tmp_path, environ={"HOME": "/x"} | {})


def test_places_are_below_the_project_unless_absolute(tmp_path: Path) -> None:
    assert module.load(tmp_path, environ={"HOME": "/x"} | {}).lake == str(tmp_path / "lake")
    assert (
        module.load(tmp_path, environ={"HOME": "/x"} | {"HEADRACE_LAKE": "s3://bucket/lake"}).lake
        == "s3://bucket/lake"
    )


def test_console_is_on_unless_the_file_or_the_environment_says_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, environ={}).console.enabled
    assert not load(tmp_path, environ={"HEADRACE_CONSOLE": "false"}).console.enabled
    (tmp_path / "headrace.toml").write_text("[console]\nenabled = false\nread_only = true\n")
    assert not load(tmp_path, environ={}).console.enabled
    assert load(tmp_path, environ={"HEADRACE_CONSOLE": "true"}).console.enabled
    assert load(tmp_path, environ={}).console.read_only
    with pytest.raises(SettingsError, match=r"console.enabled is 'maybe'"):
        load(tmp_path, environ={"HEADRACE_CONSOLE": "maybe"})
