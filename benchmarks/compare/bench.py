"""One run of the comparison: its broker, how much of everything, and where trials keep their files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compare import harness
from compare.harness import System, Trial, Trials
from compare.log import Log


@dataclass
class Bench:
    """What workloads are given."""

    log: Log
    root: Path
    quick: bool
    rounds: int
    live_rounds: int  # of what is watched for a minute
    long_rounds: int  # of what takes minutes
    ready: dict[str, str] = field(
        default_factory=dict
    )  # systems that were made ready; why not, of those that can't
    told: dict[str, list[str]] = field(default_factory=dict)  # what was set, of each system
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def told_of(self, rounds: int, once: Sequence[System] = ()) -> str:
        if rounds == 1:
            return "one round"
        names = ", ".join(system.name for system in once)
        return f"medians of {rounds} rounds in turns" + (f" (of one: {names})" if names else "")

    @property
    def seconds(self) -> float:
        """How long is measured; in full mode a checkpoint of a pipeline, one a minute, falls into it."""
        return 6 if self.quick else 60

    @property
    def warm_up_s(self) -> float:
        return 8 if self.quick else 20

    @property
    def bulk(self) -> int:
        return 500_000 if self.quick else 5_000_000

    def folder(self, system: System) -> Path:
        """A new folder for a trial."""
        made = self.root / f"{next(self._numbers)}-{system.name.lower().replace(' ', '-')}"
        made.mkdir(parents=True)
        return made

    def in_turns(
        self, systems: Sequence[System], trial: Trial, *, rounds: int = 0, once: Sequence[System] = ()
    ) -> Trials:
        """Each system's figures; those that cannot be made ready are told as failures."""
        failures = {}
        for system in systems:
            if reason := self._prepare(system):
                failures[system.name] = reason
        able = [system for system in systems if system.name not in failures]
        found = harness.in_turns(able, trial, rounds or self.rounds, self.say, once=once)
        found.failures |= failures
        return found

    def _prepare(self, system: System) -> str:
        self.tell_of(system)
        if system.name not in self.ready:
            try:
                system.prepare()
            except Exception as error:
                self.ready[system.name] = f"{type(error).__name__}: {error}"
                self.say(f"  {system.name} cannot be made ready: {error}")
            else:
                self.ready[system.name] = ""
        return self.ready[system.name]

    def tell_of(self, system: System) -> None:
        if system.told and system.told not in self.told.setdefault(system.name, []):
            self.told[system.name].append(system.told)

    def say(self, text: str) -> None:
        print(text, flush=True)
