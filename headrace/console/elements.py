"""What the pages of pipelines, services, tables and models share: lags by partition, last errors, series."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.console import parts
from headrace.console.console import Console
from headrace.console.health import BEHIND
from headrace.console.watch import BUCKET_S, ElementView, InstanceView, Point

_ERRORS = 50
MESSAGE = 300


class Lags:
    """Where a group stands in each partition, and what it has still to read."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table = parts.Table(
            {
                "stream": "Stream",
                "partition": "Partition",
                "position": "Position",
                "end": "End",
                "lag": "Lag",
                "rate": "Comes in",
            },
            right=("partition", "position", "end", "lag", "rate"),
            empty="It has no position yet.",
        )

    def show(self, name: str, streams: Collection[str]) -> None:
        """The group of this name in these streams; of others, such as sessions' tables, it only keeps places."""
        watch = self._console.watch
        group = watch.groups.get(name)
        rows = []
        for each in group.positions if group is not None else ():
            if group is None or each.stream not in streams:
                continue
            lag = watch.lag_at(group, each.stream, each.partition)
            view = watch.stream(each.stream)
            rate = view.rates.get(each.partition, 0.0)
            rows.append(
                {
                    "id": f"{each.stream}/{each.partition}",
                    "stream": each.stream,
                    "partition": each.partition,
                    "position": "–" if each.committed is None else f"{each.committed:,}",
                    "position_sort": each.committed or 0,
                    "end": f"{view.ends.get(each.partition, each.end_offset):,}",
                    "end_sort": view.ends.get(each.partition, each.end_offset),
                    "lag": f"{lag:,}",
                    "lag_sort": lag,
                    "rate": parts.rate(rate),
                    "rate_sort": rate,
                    "_links": {"stream": parts.link("streams", each.stream)},
                    "_health": {"lag": "warn"} if lag > BEHIND else {},
                }
            )
        self._table.set(rows)


class Errors:
    """What went wrong in some elements of the app in the last day, newest first."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table = parts.Table(
            {"at": "When", "stage": "In", "kind": "Error", "message": "What happened"},
            empty=f"None in the last day{' that you may see' if console.rights.is_secure else ''}.",
        )

    def show(self, names: Collection[str]) -> None:
        app = self._console.app.name
        mine = [each for each in self._console.exceptions() if each.app == app and each.element in names]
        self._table.set(
            [
                {
                    "id": f"{each.at.isoformat()}/{number}",
                    "at": parts.clock(each.at),
                    "stage": each.stage,
                    "kind": each.kind,
                    "message": each.message[:MESSAGE],
                    "_titles": {"message": each.message},
                    "_health": {"kind": "bad"},
                }
                for number, each in enumerate(mine[:_ERRORS])
            ]
        )


def unknown(console: Console, noun: str, name: str, known: Collection[str]) -> None:
    """The page of something that there is not."""
    parts.heading(name, (f"{noun.capitalize()}s", parts.link(f"{noun}s")))
    parts.failure(f"App {console.app.name} has no {noun} {name}.", f"It has: {', '.join(known) or 'none'}.")


def newest(element: ElementView) -> InstanceView | None:
    """The process that reported last: what was killed is remembered for some seconds beside what follows it."""
    return max(element.instances, key=lambda each: each.last.at, default=None)


def ms(element: ElementView, histogram: str, part: str) -> list[Point]:
    """A part of a histogram over time, in milliseconds."""
    return [[at, round(value * 1000, 2)] for at, value in element.series("histogram", histogram, part)]


def counted_rate(element: ElementView, histogram: str) -> float | None:
    """How many a second a histogram counted in the last reports; None if nobody has it."""
    found = [
        each.last.histograms[histogram].count / max(each.last.interval_s, 0.001)
        for each in element.instances
        if histogram in each.last.histograms
    ]
    return sum(found) if found else None


def counted(element: ElementView, histogram: str) -> list[Point]:
    """How many a second a histogram counted, over time, in all instances."""
    buckets: dict[int, float] = {}
    for instance in list(element.all_instances.values()):
        for report in list(instance.reports):
            if histogram in report.histograms:
                at = int(report.at.timestamp() // BUCKET_S)
                rate = report.histograms[histogram].count / max(report.interval_s, 0.001)
                buckets[at] = buckets.get(at, 0.0) + rate
    return [[at * BUCKET_S * 1000.0, round(buckets[at], 2)] for at in sorted(buckets)]


def sortable(**cells: tuple[str, Any]) -> dict[str, Any]:
    """Cells with what they are sorted by."""
    return {
        **{name: text for name, (text, _) in cells.items()},
        **{f"{name}_sort": value or 0 for name, (_, value) in cells.items()},
    }
