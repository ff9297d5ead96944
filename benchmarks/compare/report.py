"""The tables: on the terminal, and in docs/benchmarks.md, between its two marks."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from compare.harness import OURS, Figures, Trials

_SET = "What was set"
BEGIN, END = "<!-- begin of what was measured -->", "<!-- end of what was measured -->"


@dataclass(frozen=True)
class Column:
    """One figure: its title, and whether less of it or more is better; "" if neither."""

    title: str
    better: str = ""


@dataclass(frozen=True)
class Goal:
    """Of a column: at most (less is better) or at least (more is better) so many times the best peer's."""

    column: str
    ratio: float
    against: str = "best"  # the best peer, a system by its name, or "": the figure itself


@dataclass(frozen=True)
class Table:
    """What a workload has measured."""

    name: str
    title: str
    about: str
    columns: Mapping[str, Column]
    trials: Trials
    goals: Sequence[Goal] = ()
    limits: Sequence[str] = ()  # systems that are no peers: what the machine can do at best
    notes: Sequence[str] = field(default_factory=list)

    def lines(self) -> list[list[str]]:
        """A row for each system, as texts."""
        return [
            [name, *(_say(figures[key]) if key in figures else "–" for key in self.columns)]
            for name, figures in self.trials.medians().items()
        ]

    def verdicts(self) -> list[tuple[bool, str]]:
        medians = self.trials.medians()
        return [_verdict(self, goal, medians) for goal in self.goals if OURS in medians]

    @property
    def is_whole(self) -> bool:
        """Whether every system was measured, and nothing that was computed is wrong or missing."""
        medians = self.trials.medians()
        faults = ("wrong", "missing", "errors", "different")
        return not self.trials.failures and not any(
            figures.get(fault, 0.0) for figures in medians.values() for fault in faults
        )


def _verdict(table: Table, goal: Goal, medians: Mapping[str, Figures]) -> tuple[bool, str]:
    column = table.columns[goal.column]
    mine = medians[OURS][goal.column]
    less = column.better == "less"
    bound = "at most" if less else "at least"
    if not goal.against:
        reached = mine <= goal.ratio if less else mine >= goal.ratio
        return reached, f"{column.title}: {_say(mine)} (goal: {bound} {goal.ratio:g})"
    peers = {
        name: figures[goal.column]
        for name, figures in medians.items()
        if not name.startswith(OURS) and name not in table.limits and goal.column in figures
        if goal.against in ("best", name)
    }
    if not peers:
        return False, f"{column.title}: no peer was measured"
    name = (min if less else max)(peers, key=lambda each: peers[each])
    ratio = mine / peers[name]
    reached = ratio <= goal.ratio if less else ratio >= goal.ratio
    return reached, f"{column.title}: {ratio:.2f} × {name} (goal: {bound} {goal.ratio:g})"


def _say(value: float) -> str:
    if value == int(value) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def show(table: Table) -> str:
    """The table for a terminal."""
    rows = [["", *(column.title for column in table.columns.values())], *table.lines()]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    text = [f"\n{table.title}", f"  {table.about}"]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        text.append("  " + "  ".join(cells))
    text += [f"  {'reached' if reached else 'NOT REACHED'}  {said}" for reached, said in table.verdicts()]
    text += [f"  NOT MEASURED  {name}: {_short(why)}" for name, why in table.trials.failures.items()]
    return "\n".join([*text, *(f"  {note}" for note in table.notes)])


def write(path: Path, tables: Sequence[Table], told: Mapping[str, Sequence[str]]) -> None:
    """Put what was measured into the page, in the place of what was there of the same tables; all else stays."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{_merged(old, tables, told)}\n{END}{after}", encoding="utf-8")


def _merged(old: str, tables: Sequence[Table], told: Mapping[str, Sequence[str]]) -> str:
    """The page's figures: rows of verdicts and sections, by title, and what was set, by system."""
    first, *parts = re.split(r"^## ", old, flags=re.MULTILINE)
    sections = dict(part.split("\n", 1) for part in parts)
    set_before = sections.pop(_SET, "")
    verdicts: dict[str, list[str]] = {title: [] for title in sections}
    for row in re.findall(r"^\| \[.*$", first, flags=re.MULTILINE):
        verdicts.setdefault(row[3:].partition("](")[0], []).append(row)
    settings = {
        name: said.split(". ") for name, said in re.findall(r"^- \*\*(.+?)\*\*: (.*)\.$", set_before, re.MULTILINE)
    }
    for table in tables:
        sections[table.title] = _section(table)
        link = f"[{table.title}](#{_anchor(table.title)})"
        verdicts[table.title] = [
            f"| {link} | {said} | {'reached' if reached else '**not reached**'} |"
            for reached, said in table.verdicts()
        ]
    for name, said in told.items():
        for each in ". ".join(each[0].upper() + each[1:] for each in said).split(". "):
            if each not in settings.setdefault(name, []):
                settings[name].append(each)
    memory = psutil.virtual_memory().total / 2**30
    text = [
        f"Measured on {os.cpu_count()} cores ({_processor()}) with {memory:.0f} GB of memory,"
        f" Linux {platform.release()}, Python {platform.python_version()}.",
        *("", "| workload | Headrace against the best peer | |", "|---|---|---|"),
        *(row for rows in verdicts.values() for row in rows),
        *(f"\n## {title}\n\n{section.strip()}" for title, section in sections.items()),
        f"\n## {_SET}\n",
        *(f"- **{name}**: {'. '.join(said)}." for name, said in settings.items() if said),
    ]
    return "\n".join(text)


def _section(table: Table) -> str:
    text = [f"{table.about.rstrip('.')}. Measured on {datetime.now(UTC):%d %B %Y, %H:%M} UTC.", ""]
    text.append("| |" + "".join(f" {column.title} |" for column in table.columns.values()))
    text.append("|---|" + "---:|" * len(table.columns))
    for name, *cells in table.lines():
        label = f"**{name}**" if name.startswith(OURS) else name
        text.append(f"| {label} |" + "".join(f" {cell} |" for cell in cells))
    for name, why in table.trials.failures.items():
        text += ["", f"Not measured: {name}. {_short(why)}"]
    for note in table.notes:
        text += ["", note]
    return "\n".join(text)


def _anchor(title: str) -> str:
    kept = "".join(each for each in title.lower() if each.isalnum() or each in " -")
    return kept.replace(" ", "-")


def _short(why: str) -> str:
    return why.strip().splitlines()[0][:200]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
