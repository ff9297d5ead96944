"""Frozen settings: the only reader of headrace.toml and of HEADRACE_* variables.

Precedence: an option of a command, the environment, headrace.toml, the default. Unknown keys fail and
name the known ones. docs/settings.md lists them all.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.access import OWNER, check_user
from headrace.errors import AccessError, DefinitionError, NotFoundError, RunningError, SettingsError
from headrace.units import duration, size_bytes

FILE = "headrace.toml"
STATE_FOLDER = ".headrace"
DEFAULT_PORT = 9092
DEFAULT_LISTENER_PORT = 9192
SCRAM = "SCRAM-SHA-512"  # how users log in
VARIABLES = {
    "HEADRACE_PROJECT": "the project's folder",
    "HEADRACE_SITE": "the site that is used when none is named",
    "HEADRACE_USER": "who clients of that site are, if it is secure",
    "HEADRACE_CACHE": "where jars and ahead-of-time caches are kept",
    "HEADRACE_JAVA_HOME": "the Java to use instead of the one brought along",
    "HEADRACE_LAKE": "where the tables of the lake are kept",
    "HEADRACE_MODELS": "where the files of models are kept",
    "HEADRACE_SPARK_MASTER": "the Spark cluster that pipelines run on",
    "HEADRACE_HTTP_HOST": "the address that HTTP servers listen on",
    "HEADRACE_HTTP_PORT": "the port that HTTP servers listen on",
    "HEADRACE_CONSOLE": "whether headrace run serves the console: true or false",
}
CLIENT_PREFIX = "HEADRACE_CLIENT_"
_TOP_KEYS = (
    "site",
    "cache",
    "java_home",
    "lake",
    "models",
    "spark",
    "http",
    "gateway",
    "console",
    "sites",
    "links",
)
_SPARK_KEYS = ("master", "memory", "checkpoints")
_HTTP_KEYS = (
    "host", "port", "names", "max_body", "max_connections", "max_requests", "rate",
    "head_timeout", "body_timeout", "idle_timeout", "handler_timeout", "require_tokens",
    "certificate", "key", "behind_proxy",
)  # fmt: skip
_CONSOLE_KEYS = ("enabled", "read_only")
_GATEWAY_KEYS = ("enabled", "streams", "sockets", "directories")
_LINK_KEYS = ("sites", "streams", "both_ways", "rate", "first")
_SITE_KEYS = ("brokers", "port", "heap", "broker", "properties", "secure", "user", "listener")
_LISTENER_KEYS = ("host", "port", "name", "certificate", "key")
# What decides who is let in; to set it by hand could open a door that nobody sees.
_OURS = ("listeners", "advertised.listeners", "listener.security.protocol.map", "process.roles", "node.id")
_SECRET = re.compile(r"password|secret|\.key|jaas|token", re.IGNORECASE)
_SITE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


class Options(dict[str, str]):
    """Kafka options under Kafka's names; secrets do not show when printed."""

    def __repr__(self) -> str:
        return repr({name: "•••" if _SECRET.search(name) else value for name, value in self.items()})


@dataclass(frozen=True)
class ListenerSettings:
    """Where an embedded site listens for clients on other machines: TLS only. `name` is what they connect to."""

    host: str
    name: str
    certificate: Path
    key: Path
    port: int = DEFAULT_LISTENER_PORT


@dataclass(frozen=True)
class SiteSettings:
    """One log cluster: embedded, unless its client options name `bootstrap.servers`.

    On a `secure` one, clients log in as `user`, or as the owner of an embedded site if none is named.
    """

    name: str
    state: Path
    brokers: int = 1
    port: int | None = None
    heap_bytes: int = 512 * 1024**2
    broker: Options = field(default_factory=Options)
    client: Options = field(default_factory=Options)
    secure: bool = False
    user: str | None = None
    listener: ListenerSettings | None = None

    @property
    def embedded(self) -> bool:
        return "bootstrap.servers" not in self.client

    @property
    def folder(self) -> Path:
        """Where an embedded site keeps its data."""
        return self.state / "sites" / self.name

    @property
    def address_file(self) -> Path:
        """Holds the bootstrap address while an embedded site is up."""
        return self.folder / "address"

    def client_options(self) -> Options:
        """The options with which clients reach this site; RunningError if it is embedded and not up."""
        if not self.embedded:
            return Options({**self.client, **self._login()})
        try:
            address = self.address_file.read_text().strip()
        except FileNotFoundError:
            raise RunningError(
                f"The log of site {self.name!r} is not running.", remedy="Start it with: headrace up --detach"
            ) from None
        return Options({**self.client, **self._login(), "bootstrap.servers": address})

    @property
    def login_name(self) -> str:
        """Who clients are, as far as it is known here; "" where nobody is asked."""
        if self.user is None and self.embedded:
            return OWNER if self.secure else ""
        return self.user or self.client.get("sasl.username", "")

    def login_file(self, user: str) -> Path:
        """Holds what a user's client needs to log in, as a Java client's .properties file."""
        return self.folder / "users" / f"{user}.properties"

    def _login(self) -> Options:
        if not self.secure or (self.user is None and not self.embedded):
            return Options()
        file = self.login_file(self.login_name)
        try:
            with file.open("rb") as opened:
                if os.fstat(opened.fileno()).st_mode & 0o077:
                    raise SettingsError(f"{file} is open to others.", remedy=f"Close it with: chmod 600 {file}")
                return read_properties(opened.read().decode())
        except FileNotFoundError:
            raise AccessError(
                f"Site {self.name!r} has no login for user {self.login_name!r} here.",
                remedy=f"Bring it to {file}, or make the user: headrace user add {self.login_name}",
            ) from None
        except OSError as error:
            raise AccessError(
                f"The login {file} cannot be read: {error.strerror}.", remedy="Name a user whose login is yours."
            ) from None


@dataclass(frozen=True)
class LinkSettings:
    """Streams that are copied from the first site to the second, and back if `both_ways`.

    `rate_bytes` is a second, 0 for no limit; those of `first` go before the others.
    """

    name: str
    sites: tuple[str, str]
    streams: tuple[str, ...]
    both_ways: bool = False
    rate_bytes: int = 0
    first: tuple[str, ...] = ()

    def ways(self) -> list[tuple[str, str]]:
        """From which site to which."""
        there, back = self.sites, (self.sites[1], self.sites[0])
        return [there, back] if self.both_ways else [there]


@dataclass(frozen=True)
class SparkSettings:
    """Where and how pipelines run: the master, the driver's heap, the checkpoints' folder, Spark's own options."""

    checkpoints: str
    master: str = "local"
    memory_bytes: int = 1024**3
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class HttpSettings:
    """Where HTTP servers listen, and the limits that protect them; a `rate` of 0 is no limit.

    With `certificate` and `key` they speak TLS; `behind_proxy` says that a proxy before them does.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    names: tuple[str, ...] = ()
    max_body_bytes: int = 1024**2
    max_connections: int = 1000
    max_requests: int = 500
    rate: float = 0.0
    head_timeout_s: float = 5.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 60.0
    handler_timeout_s: float = 30.0
    require_tokens: bool = False
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False

    @property
    def asks_tokens(self) -> bool:
        """Whether tokens are needed on loopback too: if that is set, or a proxy brings others here."""
        return self.require_tokens or self.behind_proxy


@dataclass(frozen=True)
class SocketSettings:
    """Where a stream's socket for devices listens."""

    port: int
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class DirectorySettings:
    """A directory whose files go into a stream."""

    path: str
    pattern: str = "*.ndjson"
    settle_s: float = 2.0


@dataclass(frozen=True)
class GatewaySettings:
    """What comes in from outside, and how; `streams` None are all of the app's."""

    enabled: bool = True
    streams: tuple[str, ...] | None = None
    sockets: Mapping[str, SocketSettings] = field(default_factory=dict)
    directories: Mapping[str, DirectorySettings] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsoleSettings:
    """The live page: whether `headrace run` serves it, and whether it may change something."""

    enabled: bool = True
    read_only: bool = False


@dataclass(frozen=True)
class Settings:
    """All settings of one project."""

    root: Path
    cache: Path
    site: str = "main"
    java_home: Path | None = None
    sites: Mapping[str, SiteSettings] = field(default_factory=dict)
    lake: str = "lake"
    models: Path | None = None
    spark: SparkSettings = field(default_factory=lambda: SparkSettings(f"{STATE_FOLDER}/pipelines"))
    http: HttpSettings = field(default_factory=HttpSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    links: Mapping[str, LinkSettings] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """The project's `.headrace` folder: data, logs, records of what runs."""
        return self.root / STATE_FOLDER

    @property
    def models_folder(self) -> Path:
        """Holds the files of models; on several machines, a folder that they share."""
        return self.models or self.state / "models"

    @property
    def tls_folder(self) -> Path:
        """Holds the project's own authority, and the certificate that it vouches for."""
        return self.state / "tls"

    @property
    def tokens_file(self) -> Path:
        """Holds the bearer tokens of the project's HTTP servers, hashed."""
        return self.state / "tokens.json"

    def site_named(self, name: str | None = None) -> SiteSettings:
        """One site's settings, the default one's if no name is given."""
        name = name or self.site
        try:
            return self.sites[name]
        except KeyError:
            raise NotFoundError(
                f"There is no site {name!r}; this project has: {', '.join(sorted(self.sites))}.",
                remedy=f"Declare it in {FILE} as [sites.{name}].",
            ) from None

    def with_site(self, site: SiteSettings) -> Settings:
        """A copy in which this site has these settings."""
        return replace(self, sites={**self.sites, site.name: site})


def load(root: Path | None = None, *, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of the project in `root`, or of the one around the working folder.

    The project's folder is the nearest one upwards that holds headrace.toml, else the working folder.
    """
    environ = os.environ if environ is None else environ
    known = [name for name in environ if name.startswith("HEADRACE_")]
    for name in known:
        if name not in VARIABLES and not name.startswith(CLIENT_PREFIX):
            raise SettingsError(
                f"{name} is not a variable of Headrace; known are {', '.join(VARIABLES)} and {CLIENT_PREFIX}….",
                remedy="Correct its name or unset it.",
            )
    root = _find_root(root or (Path(environ["HEADRACE_PROJECT"]) if environ.get("HEADRACE_PROJECT") else None))
    table = _read_file(root / FILE)
    _refuse_unknown(table, _TOP_KEYS, "")
    cache = environ.get("HEADRACE_CACHE") or _text(table, "cache") or _default_cache(environ)
    java_home = environ.get("HEADRACE_JAVA_HOME") or _text(table, "java_home")
    models = environ.get("HEADRACE_MODELS") or _text(table, "models")
    site = environ.get("HEADRACE_SITE") or _text(table, "site") or "main"
    declared = table.get("sites", {"main": {}})
    if not isinstance(declared, dict) or not all(isinstance(value, dict) for value in declared.values()):
        raise SettingsError(f"'sites' in {FILE} is not a set of tables.", remedy="Write [sites.main].")
    sites = {name: _read_site(name, body, root) for name, body in declared.items()}
    from_environment = _client_variables(environ)
    if from_environment:
        chosen = sites.get(site) or SiteSettings(site, state=root / STATE_FOLDER)
        sites[site] = replace(chosen, client=Options({**chosen.client, **from_environment}))
    if user := environ.get("HEADRACE_USER"):
        chosen = sites.get(site) or SiteSettings(site, state=root / STATE_FOLDER)
        sites[site] = replace(chosen, user=_user(user, "HEADRACE_USER"))
    for each in sites.values():
        if each.client and each.embedded:
            raise SettingsError(
                f"Site {each.name!r} has client options ({', '.join(sorted(each.client))}) "
                "but no bootstrap.servers.",
                remedy="Name the cluster's bootstrap.servers, or put broker options below "
                f"[sites.{each.name}.broker].",
            )
    settings = Settings(
        root=root,
        cache=Path(cache).expanduser(),
        site=site,
        java_home=Path(java_home).expanduser() if java_home else None,
        sites=sites,
        lake=_place(environ.get("HEADRACE_LAKE") or _text(table, "lake") or "lake", root),
        models=root / Path(models).expanduser() if models else None,
        spark=_read_spark(table.get("spark", {}), root, environ),
        http=_read_http(table.get("http", {}), root, environ),
        gateway=_read_gateway(table.get("gateway", {}), root),
        console=_read_console(table.get("console", {}), environ),
        links=_read_links(table.get("links", {}), sites),
    )
    settings.site_named()
    return settings


def _find_root(given: Path | None) -> Path:
    if given is not None:
        if not given.is_dir():
            raise SettingsError(f"The project's folder {given} does not exist.", remedy="Name an existing folder.")
        return given.resolve()
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return folder
    return here


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.", remedy="Correct that line.") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", remedy="Check its permissions.") from None


def _read_site(name: str, body: dict[str, Any], root: Path) -> SiteSettings:
    where = f"sites.{name}"
    if not _SITE_NAME.fullmatch(name):
        raise SettingsError(f"{name!r} is not a name for a site.", remedy="Use small letters, digits and hyphens.")
    own = {key: value for key, value in body.items() if key in _SITE_KEYS}
    rest = {key: value for key, value in body.items() if key not in _SITE_KEYS}
    # Kafka's option names have dots, which TOML reads as tables: an undotted rest is a mistake.
    _refuse_unknown(
        {key: 0 for key, value in rest.items() if not isinstance(value, dict) and "." not in key},
        _SITE_KEYS,
        where,
        extra=", and Kafka's client options, which have dots",
    )
    client = Options(_flatten(rest))
    if "properties" in own:
        file = root / str(own["properties"])
        try:
            client = Options({**read_properties(file.read_text(encoding="utf-8")), **client})
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SettingsError(
                f"{file}, named by {where}.properties, cannot be read: {reason}.",
                remedy="Correct the path.",
            ) from None
    brokers = own.get("brokers", 1)
    if type(brokers) is not int or brokers not in (1, 3):
        raise SettingsError(
            f"{where}.brokers is {brokers!r}; an embedded site has 1 broker or 3.", remedy="Write 1 or 3."
        )
    port = own.get("port")
    if port is not None and (not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535):
        raise SettingsError(f"{where}.port is {port!r}; a port is a number from 1 to 65535.", remedy="Correct it.")
    try:
        heap_bytes = size_bytes(own.get("heap", "512 MB"))
    except ValueError as error:
        raise SettingsError(f"{where}.heap: {error}.", remedy='Write, for instance, heap = "1 GB".') from None
    broker = own.get("broker", {})
    if not isinstance(broker, dict):
        raise SettingsError(f"{where}.broker is not a table.", remedy=f"Write [{where}.broker].")
    secure = own.get("secure", False)
    if type(secure) is not bool:
        raise SettingsError(f"{where}.secure is {secure!r}.", remedy="Write true or false.")
    for option in _flatten(broker):
        if option in _OURS or (
            secure and option.startswith(("sasl.", "listener.name.", "super.users", "authorizer."))
        ):
            raise SettingsError(
                f"[{where}.broker] sets {option}, which is Headrace's to set.",
                remedy=f"Use port, secure and [{where}.listener] of the site.",
            )
    return SiteSettings(
        name=name,
        state=root / STATE_FOLDER,
        brokers=brokers,
        port=port,
        heap_bytes=heap_bytes,
        broker=Options(_flatten(broker)),
        client=client,
        secure=secure,
        user=_user(own["user"], f"{where}.user") if "user" in own else None,
        listener=_read_listener(own["listener"], f"{where}.listener", root, secure) if "listener" in own else None,
    )


def _read_links(body: Any, sites: Mapping[str, SiteSettings]) -> dict[str, LinkSettings]:
    if not isinstance(body, dict) or not all(isinstance(each, dict) for each in body.values()):
        raise SettingsError(f"'links' in {FILE} is not a set of tables.", remedy="Write [links.tokyo-singapore].")
    return {name: _read_link(name, each, sites) for name, each in body.items()}


def _read_link(name: str, body: dict[str, Any], sites: Mapping[str, SiteSettings]) -> LinkSettings:
    where = f"links.{name}"
    if not _SITE_NAME.fullmatch(name):
        raise SettingsError(f"{name!r} is not a name for a link.", remedy="Use small letters, digits and hyphens.")
    _refuse_unknown(body, _LINK_KEYS, where)
    linked, streams = _names(body, "sites", where), _names(body, "streams", where)
    if len(linked) != 2 or linked[0] == linked[1]:
        raise SettingsError(
            f"{where}.sites is {list(linked)!r}; a link has two.", remedy='Write sites = ["tokyo", "singapore"].'
        )
    for site in linked:
        if site not in sites:
            raise SettingsError(
                f"[{where}] names a site {site!r}; this project has: {', '.join(sorted(sites))}.",
                remedy=f"Declare it as [sites.{site}].",
            )
    if not streams:
        raise SettingsError(f"[{where}] names no streams.", remedy='Write, for instance, streams = ["orders"].')
    both_ways = body.get("both_ways", False)
    if type(both_ways) is not bool:
        raise SettingsError(f"{where}.both_ways is {both_ways!r}.", remedy="Write true or false.")
    try:
        rate_bytes = size_bytes(body["rate"]) if "rate" in body else 0
    except ValueError as error:
        raise SettingsError(f"{where}.rate: {error}.", remedy='Write, for instance, rate = "2 MB".') from None
    return LinkSettings(name, (linked[0], linked[1]), streams, both_ways, rate_bytes, _names(body, "first", where))


def _names(body: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = body.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise SettingsError(f"{where}.{key} is {value!r}, not a list of names.", remedy="Correct it.")
    return tuple(value)


def _read_listener(body: Any, where: str, root: Path, secure: bool) -> ListenerSettings:
    if not isinstance(body, dict):
        raise SettingsError(f"{where} is not a table.", remedy=f"Write [{where}].")
    _refuse_unknown(body, _LISTENER_KEYS, where)
    if not secure:
        raise SettingsError(
            f"[{where}] would let other machines in, and the site is open to everybody.",
            remedy="Write secure = true for the site.",
        )
    host, certificate, key = (_text(body, each) for each in ("host", "certificate", "key"))
    if not host:
        raise SettingsError(f"[{where}] has no host.", remedy='Write, for instance, host = "0.0.0.0".')
    if not certificate or not key:
        raise SettingsError(
            f"[{where}] has no certificate and key; without TLS, nothing listens for other machines.",
            remedy="Make them with: headrace certificate make NAME — and write certificate = … and key = …",
        )
    name = _text(body, "name")
    if not name and host in ("0.0.0.0", "::", ""):  # noqa: S104 - it is compared
        raise SettingsError(
            f"[{where}] has no name, and clients cannot connect to {host}.",
            remedy="Write the machine's own: name = …",
        )
    port = body.get("port", DEFAULT_LISTENER_PORT)
    if type(port) is not int or not 1 <= port <= 65535:
        raise SettingsError(f"{where}.port is {port!r}; a port is a number from 1 to 65535.", remedy="Correct it.")
    return ListenerSettings(
        host=host,
        name=name or host,
        certificate=root / Path(certificate).expanduser(),
        key=root / Path(key).expanduser(),
        port=port,
    )


def _user(value: Any, where: str) -> str:
    try:
        check_user(value)
    except DefinitionError as error:
        raise SettingsError(f"{where}: {error.message}", remedy=error.remedy) from None
    return str(value)


def _read_spark(body: Any, root: Path, environ: Mapping[str, str]) -> SparkSettings:
    if not isinstance(body, dict):
        raise SettingsError(f"'spark' in {FILE} is not a table.", remedy="Write [spark].")
    own = {key: value for key, value in body.items() if key in _SPARK_KEYS}
    rest = {key: value for key, value in body.items() if key not in _SPARK_KEYS}
    _refuse_unknown(
        {key: 0 for key, value in rest.items() if not isinstance(value, dict) and "." not in key},
        _SPARK_KEYS,
        "spark",
        extra=", and Spark's own options, which have dots and are written without their spark.",
    )
    try:
        memory_bytes = size_bytes(own.get("memory", "1 GB"))
    except ValueError as error:
        raise SettingsError(f"spark.memory: {error}.", remedy='Write, for instance, memory = "2 GB".') from None
    return SparkSettings(
        checkpoints=_place(_text(own, "checkpoints") or f"{STATE_FOLDER}/pipelines", root),
        master=environ.get("HEADRACE_SPARK_MASTER") or _text(own, "master") or "local",
        memory_bytes=memory_bytes,
        options=Options({f"spark.{name}": value for name, value in _flatten(rest).items()}),
    )


def _read_http(body: Any, root: Path, environ: Mapping[str, str]) -> HttpSettings:
    if not isinstance(body, dict):
        raise SettingsError(f"'http' in {FILE} is not a table.", remedy="Write [http].")
    _refuse_unknown(body, _HTTP_KEYS, "http")
    default = HttpSettings()
    port = body.get("port", default.port)
    if given := environ.get("HEADRACE_HTTP_PORT"):
        port = int(given) if given.isdecimal() else given
    if type(port) is not int or not 0 <= port <= 65535:
        raise SettingsError(
            f"http.port is {port!r}; a port is a number from 1 to 65535, or 0 for a free one.",
            remedy="Correct it, or HEADRACE_HTTP_PORT.",
        )
    names = body.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingsError(
            f"http.names is {names!r}, not a list of texts.", remedy='Write names = ["desk.local"].'
        )
    rate = body.get("rate", 0)
    if type(rate) not in (int, float) or not 0 <= rate <= 1e9:
        raise SettingsError(
            f"http.rate is {rate!r}; it is requests a second, 0 for no limit.", remedy="Correct it."
        )
    for flag in ("require_tokens", "behind_proxy"):
        if type(body.get(flag, False)) is not bool:
            raise SettingsError(f"http.{flag} is {body[flag]!r}.", remedy="Write true or false.")
    certificate, key = _text(body, "certificate"), _text(body, "key")
    if bool(certificate) != bool(key):
        there, missing = ("certificate", "key") if certificate else ("key", "certificate")
        raise SettingsError(
            f"[http] has a {there}, and no {missing}.",
            remedy="Name both; headrace certificate make NAME makes them.",
        )
    try:
        max_body_bytes = size_bytes(body.get("max_body", default.max_body_bytes))
    except ValueError as error:
        raise SettingsError(f"http.max_body: {error}.", remedy='Write, for instance, max_body = "1 MB".') from None
    return HttpSettings(
        host=environ.get("HEADRACE_HTTP_HOST") or _text(body, "host") or default.host,
        port=port,
        names=tuple(names),
        max_body_bytes=max_body_bytes,
        max_connections=_count(body, "max_connections", default.max_connections),
        max_requests=_count(body, "max_requests", default.max_requests),
        rate=float(rate),
        head_timeout_s=_seconds(body, "head_timeout", default.head_timeout_s),
        body_timeout_s=_seconds(body, "body_timeout", default.body_timeout_s),
        idle_timeout_s=_seconds(body, "idle_timeout", default.idle_timeout_s),
        handler_timeout_s=_seconds(body, "handler_timeout", default.handler_timeout_s),
        require_tokens=body.get("require_tokens", False),
        certificate=root / Path(certificate).expanduser() if certificate else None,
        key=root / Path(key).expanduser() if key else None,
        behind_proxy=body.get("behind_proxy", False),
    )


def _read_gateway(body: Any, root: Path) -> GatewaySettings:
    if not isinstance(body, dict):
        raise SettingsError(f"'gateway' in {FILE} is not a table.", remedy="Write [gateway].")
    _refuse_unknown(body, _GATEWAY_KEYS, "gateway")
    enabled, streams = body.get("enabled", True), body.get("streams")
    if type(enabled) is not bool:
        raise SettingsError(f"gateway.enabled is {enabled!r}.", remedy="Write true or false.")
    if streams is not None and not (isinstance(streams, list) and all(isinstance(each, str) for each in streams)):
        raise SettingsError(
            f"gateway.streams is {streams!r}, not a list of names.", remedy='Write streams = ["purchases"].'
        )
    sockets = {
        name: _read_socket(f"gateway.sockets.{name}", each) for name, each in _tables(body, "sockets").items()
    }
    directories = {
        name: _read_directory(f"gateway.directories.{name}", each, root)
        for name, each in _tables(body, "directories").items()
    }
    return GatewaySettings(enabled, None if streams is None else tuple(streams), sockets, directories)


def _read_console(body: Any, environ: Mapping[str, str]) -> ConsoleSettings:
    if not isinstance(body, dict):
        raise SettingsError(f"'console' in {FILE} is not a table.", remedy="Write [console].")
    _refuse_unknown(body, _CONSOLE_KEYS, "console")
    given = environ.get("HEADRACE_CONSOLE")
    if given:
        body = {**body, "enabled": {"true": True, "false": False}.get(given, given)}
    for key, value in body.items():
        if type(value) is not bool:
            raise SettingsError(f"console.{key} is {value!r}.", remedy="Write true or false.")
    return ConsoleSettings(**body)


def _tables(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = body.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise SettingsError(f"gateway.{key} is not a set of tables.", remedy=f"Write [gateway.{key}.<stream>].")
    return found


def _read_socket(where: str, body: dict[str, Any]) -> SocketSettings:
    _refuse_unknown(body, ("port", "host"), where)
    port = body.get("port")
    if type(port) is not int or not 0 <= port <= 65535:
        raise SettingsError(
            f"{where}.port is {port!r}; a port is a number from 1 to 65535, or 0 for a free one.",
            remedy="Write, for instance, port = 9100.",
        )
    return SocketSettings(port, _text(body, "host") or SocketSettings.host)


def _read_directory(where: str, body: dict[str, Any], root: Path) -> DirectorySettings:
    _refuse_unknown(body, ("path", "pattern", "settle"), where)
    path, pattern = _text(body, "path"), _text(body, "pattern") or DirectorySettings.pattern
    if not path:
        raise SettingsError(f"{where} has no path.", remedy='Write, for instance, path = "inbox".')
    if "/" in pattern or pattern.startswith("."):
        raise SettingsError(
            f"{where}.pattern is {pattern!r}.", remedy='Write, for instance, pattern = "*.ndjson".'
        )
    try:
        settle_s = duration(body["settle"]).total_seconds() if "settle" in body else DirectorySettings.settle_s
    except ValueError as error:
        raise SettingsError(
            f"{where}.settle: {error}.", remedy='Write, for instance, settle = "5 seconds".'
        ) from None
    return DirectorySettings(str(root / Path(path).expanduser()), pattern, settle_s)


def _count(body: Mapping[str, Any], key: str, default: int) -> int:
    value = body.get(key, default)
    if type(value) is not int or value < 1:
        raise SettingsError(f"http.{key} is {value!r}; it is a number from 1.", remedy="Correct it.")
    return value


def _seconds(body: Mapping[str, Any], key: str, default: float) -> float:
    try:
        return duration(body[key]).total_seconds() if key in body else default
    except ValueError as error:
        raise SettingsError(
            f"http.{key}: {error}.", remedy=f'Write, for instance, {key} = "10 seconds".'
        ) from None


def _place(text: str, root: Path) -> str:
    """A folder below the project, elsewhere on this machine, or the address of one on shared storage."""
    return text if "://" in text else str(root / Path(text).expanduser())


def _client_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(CLIENT_PREFIX).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(CLIENT_PREFIX)
    }


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{name}."))
        elif isinstance(value, list):
            flat[name] = ",".join(str(item) for item in value)  # as Kafka writes lists
        else:
            flat[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], where: str, extra: str = "") -> None:
    for key in table:
        if key not in known:
            place = f"in [{where}] of {FILE}" if where else f"in {FILE}"
            raise SettingsError(
                f"Unknown key {key!r} {place}; known are {', '.join(known)}{extra}.",
                remedy="Correct or remove it.",
            )


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise SettingsError(f"{key!r} in {FILE} is {value!r}, not a text.", remedy="Put it in quotes.")
    return value


def _default_cache(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return str(Path(base) / "headrace")


def login_text(user: str, password: str, mechanism: str = SCRAM, more: Mapping[str, str] | None = None) -> str:
    """A login as a Java client's .properties file, for names and passwords that need no quoting."""
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";',
        **(more or {}),
    }
    return "".join(f"{name}={value}\n" for name, value in options.items())


_JAAS_LOGIN = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def read_properties(text: str) -> Options:
    """Read a Java client's .properties file into the same options under librdkafka's names.

    A login inside `sasl.jaas.config` and a PEM trust store are carried over; other Java-only options stay
    as they are, and the client says that it does not know them.
    """
    options = Options()
    lines = re.sub(r"\\\r?\n\s*", "", text).splitlines()
    for line in lines:
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, *value = re.split(r"\s*[=:]\s*|\s+", line, maxsplit=1)
        options[name] = "".join(value)
    jaas = options.pop("sasl.jaas.config", "")
    for part, value in _JAAS_LOGIN.findall(jaas):
        options.setdefault(f"sasl.{part}", re.sub(r"\\(.)", r"\1", value))
    if options.pop("ssl.truststore.type", "").upper() == "PEM" and "ssl.truststore.location" in options:
        options["ssl.ca.location"] = options.pop("ssl.truststore.location")
    return options
