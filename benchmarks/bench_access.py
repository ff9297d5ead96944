"""What a secure site costs: the same work on it and on an open one, side by side on this machine, interleaved.

Producing and consuming go through Headrace's clients as a user with a SCRAM login, with 1,000 users and 100
streams in the policy; connecting is a login and a first question; deciding is what a door asks at each request.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import headrace as hr
from headrace import settings
from headrace.access import Access, Policy
from headrace.log.policy import PolicyLog, Rights
from headrace.settings import Settings
from headrace.substrate import site

VALUE = b"x" * 100
KEYS = [f"c-{number}" for number in range(1000)]
USER = "bench"


@contextmanager
def a_site(*, secure: bool) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        if secure:
            (Path(folder) / "headrace.toml").write_text("[sites.main]\nsecure = true\n")
        found = settings.load(Path(folder))
        site.up(found, detach=True)
        try:
            yield found
        finally:
            site.down(found)


def secured(found: Settings) -> Settings:
    """A user, a stream it may use, and many others beside them; the settings of that user."""
    owner = hr.App("owner", settings=found)
    users = owner.site.admin().users()
    password = users.add(USER)
    file = found.site_named().login_file(USER)
    file.touch(mode=0o600)
    file.write_text(users.login(USER, password))
    log = PolicyLog(found.site_named())
    log.put_users({f"user-{number}": [f"group-{number % 20}"] for number in range(1000)})
    log.put_streams({f"other-{number}": Access(consume=f"group:group-{number % 20}") for number in range(100)})
    started = time.perf_counter()
    added, _ = users.apply()
    print(f"policy of 1,001 users and 100 streams: {added:,} rules in {time.perf_counter() - started:.1f} s")
    owner.stream("bench", bytes, access=Access(produce=f"user:{USER}", consume=f"user:{USER}")).create()
    owner.close()
    return found.with_site(replace(found.site_named(), user=USER))


def produce(app: hr.App, count: int) -> None:
    stream = app.streams["bench"]
    with app.producer() as producer:
        for number in range(count):
            producer.send(stream, VALUE, key=KEYS[number % 1000])


def consume(app: hr.App, count: int) -> None:
    with app.consumer(app.streams["bench"], start="earliest") as messages:
        seen = 0
        while seen < count:
            seen += len(messages.batch(10_000))


def connect(app: hr.App, _: int) -> None:
    fresh = hr.App("connect", settings=app.settings)
    fresh.site.admin().partition_counts()
    fresh.close()


def timed(work: Callable[[hr.App, int], None], app: hr.App, count: int) -> float:
    started = time.perf_counter()
    work(app, count)
    return time.perf_counter() - started


def main(count: int, rounds: int) -> None:
    with a_site(secure=False) as open_site, a_site(secure=True) as secure_site:
        apps = {}
        for name, found in (("open", open_site), ("secure", secured(secure_site))):
            app = apps[name] = hr.App("bench", settings=found)
            app.stream("bench", bytes)
        apps["open"].create()
        for work, size in ((produce, count), (consume, count), (connect, 1)):
            times: dict[str, list[float]] = {name: [] for name in apps}
            for number in range(rounds + 1):
                for name, app in apps.items():
                    took = timed(work, app, size)
                    if number:  # the first warms up
                        times[name].append(took)
            open_s, secure_s = (statistics.median(times[name]) for name in ("open", "secure"))
            if size > 1:
                print(
                    f"{work.__name__}: open {size / open_s:,.0f}/s, secure {size / secure_s:,.0f}/s, "
                    f"ratio {open_s / secure_s:.2f}"
                )
            else:
                print(f"{work.__name__}: open {open_s * 1000:.1f} ms, secure {secure_s * 1000:.1f} ms")
        rights = Rights(secure_site.site_named())
        rights.start()
        _decide(rights, rights.policy)
        rights.close()
        for app in apps.values():
            app.close()


def _decide(rights: Rights, policy: Policy) -> None:
    users = list(policy.users)
    started = time.perf_counter()
    for number in range(1_000_000):
        rights.may(users[number % 100], "consume", f"other-{number % 100}")
    print(f"decide: {(time.perf_counter() - started) * 1000:.0f} ns a question")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    main(given.count, given.rounds)
