"""The embedded log: Kafka brokers of one site as processes to supervise.

One process per broker, each a broker and a controller (KRaft), on 127.0.0.1; a secure site may have a
listener for other machines besides. On a secure site nobody is let in without a login, the brokers neither::

    .headrace/sites/<site>/site.json            cluster id, ports
                          /users/               logins, if the site is secure
                          /broker-1/            the log
                          /broker-1.properties  written anew at each start
                          /address              while it is up
    .headrace/logs/<site>-broker-1.log          rotated by the broker; .out is what it printed
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.access import OWNER
from headrace.errors import PortError, ProcessError, SettingsError, SubstrateError
from headrace.settings import SCRAM, SiteSettings, login_text, read_properties
from headrace.substrate import aot, jars
from headrace.substrate._files import make_folder, write_atomically
from headrace.substrate._probe import describe_cluster, gives_producer_ids
from headrace.substrate.java import Java
from headrace.substrate.process import ProcessSpec

NO_REPLICATION = "One broker, no replication: if this disk is lost, so is the log. Three brokers: brokers = 3."
ROOM_BYTES = 8 * 1024**2
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True)
class SiteState:
    """What a site keeps for good: its cluster id, its number of brokers, and the ports it had last."""

    cluster_id: str
    brokers: int
    ports: list[int] = field(default_factory=list)
    controller_ports: list[int] = field(default_factory=list)

    def write(self, site: SiteSettings) -> None:
        write_atomically(site.folder / "site.json", json.dumps(asdict(self), indent=1).encode())


def read_state(site: SiteSettings) -> SiteState:
    """Read a site's state, or begin one."""
    try:
        state = SiteState(**json.loads((site.folder / "site.json").read_text()))
    except FileNotFoundError:
        return SiteState(_new_cluster_id(), site.brokers)
    except (ValueError, TypeError):
        raise SubstrateError(
            f"{site.folder / 'site.json'} is damaged.",
            remedy=f"Restore it, or delete {site.folder} with its data.",
        ) from None
    if state.brokers != site.brokers:
        raise SettingsError(
            f"Site {site.name!r} was made with brokers = {state.brokers}, not {site.brokers}.",
            remedy=f"Write brokers = {state.brokers}, name a new site, or delete {site.folder} with its data.",
        )
    return state


def _new_cluster_id() -> str:
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return made if made[0] not in "-_" else _new_cluster_id()  # a leading hyphen reads as an option


def properties(site: SiteSettings, state: SiteState, node: int) -> dict[str, str]:
    """Build one broker's configuration; what the user wrote for the site comes last and wins."""
    copies = str(site.brokers)
    in_sync = "2" if site.brokers == 3 else "1"
    voters = ",".join(f"{i}@127.0.0.1:{port}" for i, port in enumerate(state.controller_ports, 1))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        **(_secured(site, state, node) if site.secure else _open(state, node)),
        "log.dirs": str(site.folder / f"broker-{node}"),
        # Safe by default; a stream chooses its own replication and retention.
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "log.retention.hours": "168",
        # A laptop: few threads and small internal topics, so that starts, stops and elections are quick.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.num.partitions": "4",
        "log.cleaner.dedupe.buffer.size": "33554432",
        "broker.heartbeat.interval.ms": "200",
        "broker.session.timeout.ms": "1500" if site.brokers == 1 else "3000",
        # Groups: members join, leave and hand over within a fraction of a second.
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "300",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "5000",
        **site.broker,
    }


def _open(state: SiteState, node: int) -> dict[str, str]:
    port, controller_port = state.ports[node - 1], state.controller_ports[node - 1]
    return {
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
    }


def _secured(site: SiteSettings, state: SiteState, node: int) -> dict[str, str]:
    """Who is let in: users by SCRAM; the owner, as whom the brokers talk to each other, by a secret of its own."""
    port, controller_port = state.ports[node - 1], state.controller_ports[node - 1]
    secret = owner_secret(site)
    plain = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{OWNER}" password="{secret}" user_{OWNER}="{secret}";'
    )
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    found = {
        "listener.security.protocol.map": "LOCAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,OUTER:SASL_SSL",
        "listeners": f"LOCAL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"LOCAL://127.0.0.1:{port}",
        "inter.broker.listener.name": "LOCAL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.local.sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
        "listener.name.local.plain.sasl.jaas.config": plain,
        f"listener.name.local.{SCRAM.lower()}.sasl.jaas.config": scram,
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": plain,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{OWNER}",
        "allow.everyone.if.no.acl.found": "false",
    }
    outer = site.listener
    if outer is not None:
        from headrace.substrate.certificates import pem_pair

        chain, key = pem_pair(outer.certificate, outer.key)
        host, name = (f"[{each}]" if ":" in each else each for each in (outer.host, outer.name))
        outer_port = outer.port + node - 1
        found |= {
            "listeners": f"{found['listeners']},OUTER://{host}:{outer_port}",
            "advertised.listeners": f"{found['advertised.listeners']},OUTER://{name}:{outer_port}",
            "listener.name.outer.sasl.enabled.mechanisms": SCRAM,
            f"listener.name.outer.{SCRAM.lower()}.sasl.jaas.config": scram,
            "listener.name.outer.ssl.keystore.type": "PEM",
            "listener.name.outer.ssl.keystore.certificate.chain": chain,
            "listener.name.outer.ssl.keystore.key": key,
        }
    return found


def owner_secret(site: SiteSettings) -> str:
    """The password of a secure site's owner, made when first needed; only the site's folder has it."""
    file = site.login_file(OWNER)
    if not file.exists():
        make_folder(file.parent)
        file.parent.chmod(0o700)
        write_atomically(file, login_text(OWNER, secrets.token_urlsafe(32), "PLAIN").encode(), mode=0o600)
    return read_properties(file.read_text())["sasl.password"]


def specs(site: SiteSettings, state: SiteState, *, java: Java, cache: Path) -> list[ProcessSpec]:
    """Describe the processes of a site; nothing is written or started yet."""
    return [_spec(site, state, node, java, cache) for node in range(1, site.brokers + 1)]


def _spec(site: SiteSettings, state: SiteState, node: int, java: Java, cache: Path) -> ProcessSpec:
    name = f"{site.name}-broker-{node}"
    logs = site.state / "logs"
    log, output = logs / f"{name}.log", logs / f"{name}.out"
    file = site.folder / f"broker-{node}.properties"
    text = "".join(f"{key}={_escape(value)}\n" for key, value in properties(site, state, node).items())
    port = state.ports[node - 1]
    login = (OWNER, owner_secret(site)) if site.secure else None
    log_size = 0

    def command() -> Sequence[str]:
        nonlocal log_size
        write_atomically(file, text.encode(), mode=0o600)
        log_size = log.stat().st_size if log.exists() else 0
        heap_mb = site.heap_bytes // 1024**2
        # What a request needs is soon garbage, and a collection, which stops all requests, takes its time for what
        # is not: the larger the young part, the fewer there are.
        options = [f"-Xmx{heap_mb}m", f"-Xmn{heap_mb * 3 // 5}m", f"-XX:ErrorFile={logs}/{name}-crash.log"]
        return jvm_command(java, cache, log, "kafka.Kafka", str(file), options=options)

    async def ready() -> bool:
        cluster = await describe_cluster(port, login)
        ours = cluster is not None and cluster.id == state.cluster_id and node in cluster.brokers
        return ours and await gives_producer_ids(port, login)

    def explain() -> SubstrateError | None:
        return known_cause(site, port, _tail(log, log_size) + _tail(output, 0), log)

    return ProcessSpec(
        name=name,
        command=command,
        output=output,
        fingerprint=_fingerprint(text, site, java),
        ready=ready,
        explain=explain,
        folder=site.folder,
        site=site.name,
        address=f"127.0.0.1:{port}",
    )


def jvm_command(
    java: Java, cache: Path, log: Path, main: str, *arguments: str, options: Sequence[str] = ()
) -> list[str]:
    """Build the command line for one of Kafka's programs; its jars are checked first."""
    paths = jars.verify_jars(jars.KAFKA, cache)
    return [
        *(str(java.executable), *aot.jvm_flags(java), *aot.use_flags(java, cache), *options),
        *(f"-Dlog4j2.configurationFile={_LOG_SETTINGS}", f"-Dheadrace.log={log}"),
        *("-cp", jars.class_path(paths), main, *arguments),
    ]


def format_site(site: SiteSettings, state: SiteState, *, java: Java, cache: Path) -> bool:
    """Format the brokers that are not; returns whether there was something to do.

    A folder gets its name only when its formatting is complete, so that a killed one counts as none.
    """
    folders = [site.folder / f"broker-{node}" for node in range(1, site.brokers + 1)]
    todo = [(node, folder) for node, folder in enumerate(folders, 1) if not folder.exists()]
    running = []
    for node, folder in todo:
        new = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        make_folder(new)
        file = new.with_suffix(".properties")
        settings = {**properties(site, state, node), "log.dirs": str(new)}
        write_atomically(file, "".join(f"{k}={_escape(v)}\n" for k, v in settings.items()).encode(), mode=0o600)
        log = site.state / "logs" / f"{site.name}-format-{node}.log"
        program = ("kafka.tools.StorageTool", "format", "-t", state.cluster_id, "-c", str(file))
        command = jvm_command(java, cache, log, *program, options=["-XX:TieredStopAtLevel=1"])
        running.append(
            (
                folder,
                new,
                file,
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True),
            )
        )
    for folder, new, file, program_run in running:
        said, _ = program_run.communicate()
        file.unlink(missing_ok=True)
        if program_run.returncode:
            error = known_cause(site, 0, said, folder)
            raise error or ProcessError(
                f"The folder {folder} cannot be formatted: {said.strip().splitlines()[-1:]}.",
                remedy=f"Look at the options below [sites.{site.name}.broker].",
            )
        new.replace(folder)
    return bool(todo)


def known_cause(site: SiteSettings, port: int, text: str, log: Path) -> SubstrateError | None:
    """Tell in our words why a broker ended, if its log says it."""
    full = "No space left on device" in text
    try:
        full = full or shutil.disk_usage(site.folder).free < ROOM_BYTES
    except OSError:
        pass
    if full:
        return ProcessError(
            f"The disk that holds {site.folder} is full; the broker cannot write.",
            remedy="Free some space; what was acknowledged is kept.",
            log=log,
        )
    if "Address already in use" in text:
        from headrace.substrate._ports import taken

        return taken(port, f"[sites.{site.name}]") if port else PortError("A port is taken.", port=port)
    if "Failed to acquire lock on file" in text:
        return ProcessError(
            f"Another broker uses {site.folder}.", remedy="Find it with: headrace doctor — and end it.", log=log
        )
    if "OutOfMemoryError" in text:
        return ProcessError(
            f"A broker of site {site.name!r} ran out of memory.",
            remedy=f'Give it more: heap = "1 GB" in [sites.{site.name}].',
            log=log,
        )
    for line in text.splitlines():
        if "ConfigException: " in line:
            return ProcessError(
                f"Kafka refuses the configuration of site {site.name!r}: {line.partition('ConfigException: ')[2]}",
                remedy=f"Correct [sites.{site.name}.broker] in headrace.toml.",
                log=log,
            )
    return None


def _tail(path: Path, offset: int, most: int = 1024**2) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(offset if offset <= size else 0, size - most))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _fingerprint(text: str, site: SiteSettings, java: Java) -> str:
    parts = (
        text,
        str(site.heap_bytes),
        str(java.home),
        java.version,
        *(jar.sha256 for jar in jars.jars_of(jars.KAFKA)),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
