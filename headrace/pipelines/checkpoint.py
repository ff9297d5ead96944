"""What a pipeline keeps between runs: how far it has come, its state, and what it was when it kept them.

::

    <state>/pipelines/<app>/<pipeline>/lock             held while it runs
                                      /definition.json  sources, operators, quarantined records
    <checkpoints>/<app>/<pipeline>/<writer>/            Spark's own; a new writer for each fresh start
"""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from headrace.errors import DefinitionError, RunningError, SubstrateError
from headrace.settings import Settings
from headrace.substrate._files import locked, make_folder, write_atomically

Places = dict[str, dict[int, int]]


@dataclass(frozen=True)
class Kept:
    """What is written beside a checkpoint."""

    writer: str
    sources: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    shuffle: int = 0
    start: dict[str, str] = field(default_factory=dict)
    quarantined: tuple[tuple[str, int, int], ...] = ()

    def with_quarantined(self, more: list[tuple[str, int, int]]) -> Kept:
        return replace(self, quarantined=tuple(dict.fromkeys([*self.quarantined, *more])))


class CheckpointFolder:
    """One query's folder; `hold` it before anything else."""

    def __init__(self, settings: Settings, app: str, name: str) -> None:
        self.name = name
        self.folder = settings.state / "pipelines" / app / name
        self._base = f"{settings.spark.checkpoints}/{app}/{name}"

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep everybody else from running this pipeline; RunningError if somebody does."""
        make_folder(self.folder)
        with locked(self.folder / "lock", wait=False) as lock:
            if lock is None:
                raise RunningError(
                    f"Pipeline {self.name!r} is running already.",
                    remedy="See it with: headrace status. Stop it first, or leave it running.",
                )
            yield

    def read(self) -> Kept | None:
        """What was kept, or None if it never ran."""
        try:
            found = json.loads((self.folder / "definition.json").read_text())
            return Kept(
                writer=found["writer"],
                sources=tuple(found["sources"]),
                operators=tuple(found["operators"]),
                shuffle=found["shuffle"],
                start=found["start"],
                quarantined=tuple((s, p, o) for s, p, o in found["quarantined"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise DefinitionError(
                f"{self.folder / 'definition.json'} is damaged: {error}.",
                remedy="Start the pipeline anew with: headrace run APP --only NAME --fresh",
            ) from None

    def write(self, kept: Kept) -> None:
        try:
            write_atomically(self.folder / "definition.json", json.dumps(asdict(kept), indent=1).encode())
        except OSError as error:
            raise self._unwritable(self.folder, error) from None

    def make(self, kept: Kept) -> None:
        """Make Spark's folder and be sure that it can be written; SubstrateError says why it cannot."""
        if "://" in self.location(kept):
            return
        location = Path(self.location(kept))
        try:
            location.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=location) as file:
                file.write(b"0" * 4096)
        except OSError as error:
            raise self._unwritable(location, error) from None

    def _unwritable(self, folder: Path, error: OSError) -> SubstrateError:
        return SubstrateError(
            f"Pipeline {self.name!r} cannot keep its checkpoint in {folder}: {error.strerror}.",
            remedy="Check the folder's permissions and the disk, or set checkpoints in [spark] of headrace.toml.",
        )

    def begin(self, start: dict[str, str]) -> Kept:
        """Forget all progress and state: the next run begins where `start` says."""
        old = self.read_or_none()
        kept = Kept(writer=uuid.uuid4().hex[:12], start=start)
        self.write(kept)
        if old is not None:
            shutil.rmtree(self.location(old), ignore_errors=True)
        return kept

    def read_or_none(self) -> Kept | None:
        try:
            return self.read()
        except DefinitionError:
            return None

    def location(self, kept: Kept) -> str:
        return f"{self._base}/{kept.writer}"

    def started(self, kept: Kept) -> bool:
        """Whether a batch was ever begun; always assumed of a checkpoint on shared storage."""
        location = self.location(kept)
        if "://" in location:
            return bool(kept.operators or kept.sources)
        return any(Path(location, "offsets").glob("[0-9]*"))

    def clean(self, kept: Kept) -> None:
        """Remove half-written files that a kill left behind: Spark would refuse to start."""
        location = self.location(kept)
        if "://" in location:
            return
        for part in ("offsets", "commits"):
            for file in Path(location, part).glob(".*.tmp*"):
                file.unlink(missing_ok=True)
            for file in Path(location, part).glob("*.tmp*"):
                file.unlink(missing_ok=True)

    def differences(self, kept: Kept, now: Kept) -> list[str]:
        """What has changed in a way that Spark could not continue from."""
        if not self.started(kept):
            return []
        texts = []
        if kept.sources != now.sources:
            texts.append(f"its sources were {', '.join(kept.sources)} and are {', '.join(now.sources)}")
        if kept.operators != now.operators:
            before, after = _only(kept.operators, now.operators), _only(now.operators, kept.operators)
            if before and after:
                texts.append(f"what it keeps in its state was “{'; '.join(before)}” and is “{'; '.join(after)}”")
            elif before:
                texts.append(f"its state holds “{'; '.join(before)}”, which it no longer computes")
            else:
                texts.append(f"its state lacks “{'; '.join(after) or '; '.join(now.operators)}”")
        if kept.shuffle != now.shuffle and now.operators:
            texts.append(f"its state is in {kept.shuffle} parts and spark.sql.shuffle.partitions is {now.shuffle}")
        return texts

    def batches(self, kept: Kept) -> tuple[int, int]:
        """The last batch that was begun and the last that was committed; -1 for none."""
        location = Path(self.location(kept))
        return _last(location / "offsets"), _last(location / "commits")

    def first_offsets(self, kept: Kept) -> Places:
        """Where each source began; empty before the first batch."""
        found: Places = {}
        for file in Path(self.location(kept), "sources").glob("*/0"):
            try:
                parsed = json.loads(file.read_bytes().partition(b"\n")[2])
                found |= {name: {int(p): int(o) for p, o in at.items()} for name, at in parsed.items()}
            except (OSError, ValueError, AttributeError):
                continue  # not a stream's, but that of a folder of heartbeats
        return found

    def offsets(self, kept: Kept, batch: int) -> list[dict[str, dict[int, int]]]:
        """Where each source stood at the end of a batch: stream, partition, offset."""
        try:
            lines = Path(self.location(kept), "offsets", str(batch)).read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in lines[2:]:
            try:
                parsed = json.loads(line)
                found.append({name: {int(p): int(o) for p, o in at.items()} for name, at in parsed.items()})
            except (ValueError, AttributeError):
                found.append({})
        return found


def _last(folder: Path) -> int:
    return max((int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit()), default=-1)


def _only(these: tuple[str, ...], those: tuple[str, ...]) -> list[str]:
    return [each for each in these if each not in those]
