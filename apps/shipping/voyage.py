"""Big Blue's voyage: six logs, their links, headquarters and two ships, from loading to unloading.

Starts everything in a folder of its own, writes what happens to the log of the site where it happens, pauses and
resumes the links as ships leave and arrive, and measures what comes where, and when. Ctrl-C stops everything and
removes the folder; with `--once`, so does the end of the first ship's voyage.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

import customers
from cables import Cables
from crew import HEADRACE, HERE, Program, crew, headrace, pause_what_is_away, token_for
from generate import START, Container, Moment, ducks, generate, load
from logbook import Logbook
from records import Position
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from routes import PORTS, ROUTES, Route

from headrace import settings as _settings
from headrace.errors import UnavailableError
from headrace.links import control
from headrace.settings import Settings
from headrace.substrate.signals import interrupt_on_signals

HEADQUARTERS = "los-angeles"
FIRST = ROUTES[0]
PATIENCE_S = 60.0  # for what is under way when the voyage is over


class Voyage:
    """Writes what happens, when it is due, and tells of it; all seconds are ours, all else is the ships' time."""

    def __init__(self, settings: Settings, logbook: Logbook, console: Console, chosen: argparse.Namespace) -> None:
        self.settings, self.logbook, self.console, self.speed = settings, logbook, console, chosen.speed
        self.moments: Iterator[Moment] = generate(chosen.seed, containers=chosen.containers)
        self.aboard = load(chosen.seed, chosen.containers)[0]
        self.producers = {site: app.producer("crew", profile="latency") for site, app in logbook.apps.items()}
        self.written: Counter[str] = Counter()  # container events, by site
        self.loaded: Counter[str] = Counter()  # containers, by ship
        self.loaded_at: dict[str, tuple[float, datetime]] = {}  # the last: in our time, and in theirs
        self.ships: dict[str, Position] = {}
        self.lost_at: dict[str, float] = {}  # when each container fell overboard
        self.resumed_at: dict[str, float] = {}
        self.told: set[str] = set()
        self.now = START
        self._next_look = 0.0
        self._worker = ThreadPoolExecutor(1)  # tells links to pause, one after the other
        self._telling: list[Future[None]] = []

    def begin(self) -> None:
        self._began = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def tell(self, text: str) -> None:
        days, seconds = divmod(int((self.now - START).total_seconds()), 86400)
        when = f"day {days + 1}, {seconds // 3600:02}:{seconds % 3600 // 60:02}"
        self.console.print(f"{when} {self.elapsed():6.1f} s  {text}", soft_wrap=True)

    def tell_once(self, what: str, text: str) -> None:
        if what not in self.told:
            self.told.add(what)
            self.tell(text)

    def due(self, moment: Moment) -> float:
        """In how many seconds it happens."""
        due: float = (moment.at - START).total_seconds() / self.speed
        return due - self.elapsed()

    def write(self, moment: Moment) -> None:
        """Write a record where it happens."""
        self.now = moment.at
        containers, ships, _ = self.logbook.streams[moment.site]
        record, producer = moment.record, self.producers[moment.site]
        if isinstance(record, Position):
            before, self.ships[record.ship] = self.ships.get(record.ship), record
            producer.send(ships, record).ignore()
            if before is not None and before.port != record.port:
                self._moved(record, before)
            return
        producer.send(containers, record).ignore()
        self.written[moment.site] += 1
        if record.what == "loaded":
            self.loaded[record.ship] += 1
            self.loaded_at[record.ship] = (time.time(), moment.at)
        elif record.what == "overboard":
            self.lost_at[record.container] = time.time()
            self.tell_once("lost", f"A storm: {record.customer}'s {record.cargo} fall off {record.ship} …")

    def _moved(self, ship: Position, before: Position) -> None:
        port, paused = before.port or ship.port, not ship.port
        if paused:
            known = len(self.logbook.at[ship.to].loaded[ship.ship])
            self.tell(
                f"{ship.ship} sails from {port} with {ship.aboard:,} containers, due in {ship.to} in "
                f"{length(ship.due - ship.at)}. The link {ship.ship}-{port} is paused. "
                f"{ship.to} knows {known:,} of them."
            )
        else:
            behind = self.written[ship.ship] - self.logbook.at[port].written[ship.ship]
            self.tell(
                f"{ship.ship} is in {port}. The link {ship.ship}-{port} is resumed; {behind:,} of the "
                f"{self.written[ship.ship]:,} records that it wrote on the way are to come ashore."
            )
            self.resumed_at[ship.ship] = time.time()
        self._telling.append(self._worker.submit(self._tell_link, f"{ship.ship}-{port}", paused))

    def _tell_link(self, link: str, paused: bool) -> None:
        """Tell a link, again if a site does not answer: all of them share one machine here."""
        for left in reversed(range(5)):
            try:
                control.pause(self.settings, link, paused)
                return
            except UnavailableError:
                if not left:
                    raise

    def look(self) -> None:
        """Tell what has come where."""
        for done in [each for each in self._telling if each.done()]:
            self._telling.remove(done)
            done.result()
        for route in ROUTES:
            self._look_at(route)
        for site, seen in self.logbook.at.items():
            if self.lost_at and len(seen.alerts) >= len(self.lost_at) == len(ducks(self.aboard)):
                first, last = self.alarm(site)
                self.tell_once(
                    f"alert {site}",
                    f"{site} has all {len(seen.alerts)} alerts: the first {first:.2f} s after it fell, "
                    f"at most {last:.2f} s.",
                )

    def _look_at(self, route: Route) -> None:
        ship, there = route.ship, self.logbook.at[route.end]
        known = len(there.loaded[ship])
        if known and known == self.loaded[ship] and ship in self.ships and not self.ships[ship].port:
            at, moment = self.loaded_at[ship]
            after = there.loaded_at[ship] - at
            before = self.ships[ship].due - moment - timedelta(seconds=after * self.speed)
            self.tell_once(
                f"known {ship}",
                f"{route.end} knows all {known:,} containers of {ship}, {after:.2f} s after the last was loaded: "
                f"{length(before)} before the ship.",
            )
        if ship in self.resumed_at and there.written[ship] == self.written[ship]:
            after = there.written_at[ship] - self.resumed_at[ship]
            self.tell_once(
                f"ashore {ship}",
                f"All {self.written[ship]:,} records that {ship} wrote on the way are in {route.end}, "
                f"{after:.2f} s after the link was resumed.",
            )

    def alarm(self, site: str) -> tuple[float, float]:
        """The seconds from overboard to the alert at a site: those of the first, and the most."""
        came = self.logbook.at[site].alerts
        took = [came[each] - at for each, at in self.lost_at.items() if each in came]
        return (took[0], max(took)) if took else (0.0, 0.0)

    def sail(self, until: datetime, live: Live, picture: "Picture") -> None:
        """Write what is due, until this time of the voyage."""
        for moment in self.moments:
            if moment.at > until:
                self.moments = chain([moment], self.moments)
                return
            while (wait_s := self.due(moment)) > 0:
                self._tick(live, picture)
                time.sleep(min(wait_s, 0.02))
            self.write(moment)
            self._tick(live, picture)

    def _tick(self, live: Live, picture: "Picture") -> None:
        if time.monotonic() > self._next_look:
            self.look()
            picture.draw(live)
            self._next_look = time.monotonic() + 0.05

    def settle(self, live: Live, picture: "Picture") -> bool:
        """Wait for what is under way; whether all of it came, and nothing twice."""
        away = [ship for ship, position in self.ships.items() if not position.port]
        wanted = {site: count for site, count in self.written.items() if site not in away}

        def lacks(port: str) -> bool:
            written = self.logbook.at[port].written
            return any(written[site] != count for site, count in wanted.items())

        deadline = time.monotonic() + PATIENCE_S
        while (missing := [port for port in PORTS if lacks(port)]) and time.monotonic() < deadline:
            self._tick(live, picture)
            time.sleep(0.02)
        self.look()
        again = sum(seen.again for seen in self.logbook.at.values())
        all_told = all(f"alert {site}" in self.told for site in self.logbook.at)
        if missing or again or not all_told or f"ashore {FIRST.ship}" not in self.told:
            self.tell(f"Not all is as it should be: {missing} differ. Written: {dict(self.written)}")
            for site, seen in self.logbook.at.items():
                there = self.logbook.apps[site].site.admin().describe("containers").records
                self.tell(
                    f"{site} has read {dict(seen.written)}, of {there} in its log; {seen.again} alerts again"
                )
            return False
        total = f"{sum(wanted.values()):,}"
        self.tell(f"All four ports have all {total} records of the ports and of {FIRST.ship}, each of them once.")
        return True

    def close(self) -> None:
        self._worker.shutdown()
        for producer in self.producers.values():
            producer.close()


class Picture:
    """The table in the terminal, drawn twice a second; nothing where there is no terminal."""

    def __init__(self, voyage: Voyage, cables: Cables, below: str) -> None:
        self._voyage, self._cables, self._below = voyage, cables, below
        self._drawn = 0.0

    def draw(self, live: Live) -> None:
        if live.console.is_terminal and time.monotonic() - self._drawn > 0.5:
            live.update(self.now(), refresh=True)
            self._drawn = time.monotonic()

    def now(self) -> Group:
        voyage = self._voyage
        ships = _table("ship", "", "latitude", "longitude", "waves m", "aboard")
        for each in voyage.ships.values():
            where = f"in {each.port}" if each.port else f"to {each.to}, {length(each.due - each.at)}"
            place = (f"{each.latitude:.1f}", f"{each.longitude:.1f}", f"{each.waves}", f"{each.aboard:,}")
            ships.add_row(each.ship, where, *place)
        links = _table("link", "", "to copy", "copied")
        for cable in self._cables.look():
            color = {"running": "green", "paused": "dim"}.get(cable.state, "yellow")
            links.add_row(cable.name, f"[{color}]{cable.state}[/]", f"{cable.lag:,}", f"{cable.copied:,}")
        return Group("", ships, "", sites(voyage), "", links, "", self._below)


def sites(voyage: Voyage) -> Table:
    """What each site has: containers it knows, records, alerts, and how soon these came."""
    made = _table("site", "containers", "records", "alerts", "the first after s", "at most s")
    for site, seen in voyage.logbook.at.items():
        known = sum(len(each) for each in seen.loaded.values())
        first, most = voyage.alarm(site)
        took = (f"{first:.2f}", f"{most:.2f}") if seen.alerts else ("", "")
        made.add_row(site, f"{known:,}", f"{seen.records:,}", f"{len(seen.alerts)}", *took)
    return made


def _table(*columns: str) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="left" if column in ("ship", "site", "link", "") else "right")
    return made


def length(span: timedelta) -> str:
    hours = max(0, round(span.total_seconds() / 3600))
    return f"{hours // 24} days {hours % 24} h" if hours >= 24 else f"{hours} h"


def show_customers(console: Console, address: str, tokens: dict[str, str], aboard: list[Container]) -> None:
    """What two customers see at headquarters, each by a token for their own containers."""
    one, other = ducks(aboard)[0], next(each for each in aboard if each.customer == "acme")
    both = {each.customer: f"{each.customer}|{each.name}" for each in (one, other)}
    for customer, own in both.items():
        others = next(each for each in both.values() if each != own)
        console.print(f"\nWhat {customer} sees, by a token for containers:{customer}|*")
        customers.show(customers.doors(address, tokens[customer], customer, own, others), console.print)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--speed", type=float, default=1000.0, help="so much faster than the ships (1000)")
    options.add_argument("--containers", type=int, default=20_000, help="how many there are on both ships")
    options.add_argument("--seed", type=int, default=1, help="the same seed makes the same voyage")
    options.add_argument("--once", action="store_true", help="end when the first ship is unloaded")
    options.add_argument("--no-console", action="store_true", help="headquarters without its page")
    chosen = options.parse_args()
    console = Console(highlight=False)
    project = Path(tempfile.mkdtemp(prefix="headrace-voyage-"))
    shutil.copy(HERE / _settings.FILE, project)
    os.environ.update(HEADRACE_PROJECT=str(project), HEADRACE_HTTP_PORT="0")
    programs: list[Program] = []
    interrupt_on_signals()
    try:
        began = time.monotonic()
        console.print("Starting six logs …")
        headrace("up", "--detach")
        console.print(f"Six logs are up after {time.monotonic() - began:.1f} s.")
        settings = _settings.load()
        with Logbook(settings) as logbook:
            pause_what_is_away(settings)
            headrace("link", "up", "--detach")
            console.print(f"The links work after {time.monotonic() - began:.1f} s.")
            tokens = {name: token_for(name, f"containers:{name}|*") for name in ("toyland", "acme")}
            tokens[HEADQUARTERS] = token_for(HEADQUARTERS)
            programs += crew(project, page=not chosen.no_console)
            while not all(program.works() for program in programs):
                time.sleep(0.1)
            console.print(f"Headquarters and the ships work after {time.monotonic() - began:.1f} s.\n")
            done = run(settings, logbook, console, chosen, programs, tokens)
    except KeyboardInterrupt:
        done = True
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not cut the cleaning short
        console.print("\nStopping …")
        for program in reversed(programs):
            program.stop()
        subprocess.run([*HEADRACE, "down"])
        shutil.rmtree(project)
        console.print("All logs have ended and their data is removed.")
    return 0 if done else 1


def run(
    settings: Settings,
    logbook: Logbook,
    console: Console,
    chosen: argparse.Namespace,
    programs: list[Program],
    tokens: dict[str, str],
) -> bool:
    """The voyage; whether everything has come everywhere."""
    below = "Ctrl-C ends."
    if not chosen.no_console:
        while not (page := programs[0].found(r"Console: (http://\S+?)/(?=\s)")):
            time.sleep(0.1)
        below = f"The chart: {page}/chart   token: {tokens[HEADQUARTERS]}   Ctrl-C ends."
        console.print(below, soft_wrap=True)
        if console.is_terminal:
            webbrowser.open(f"{page}/chart")
    voyage, cables = Voyage(settings, logbook, console, chosen), Cables(settings)
    picture = Picture(voyage, cables, below)
    unloaded = START + timedelta(hours=FIRST.hours + 20)
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            voyage.begin()
            voyage.sail(unloaded, live, picture)
            voyage.tell(f"{FIRST.ship} is unloaded.")
            done = voyage.settle(live, picture)
        console.print("", sites(voyage))
        show_customers(console, programs[0].found(r"Listening on (http://\S+);"), tokens, voyage.aboard)
        if not chosen.once:
            with Live(console=console, auto_refresh=False) as live:
                voyage.sail(datetime.max.replace(tzinfo=START.tzinfo), live, picture)
                while True:
                    picture.draw(live)
                    time.sleep(0.2)
        return done
    finally:
        voyage.close()
        cables.close()


if __name__ == "__main__":
    sys.exit(main())
