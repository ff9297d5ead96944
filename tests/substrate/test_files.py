from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.substrate._files import write_atomically


@pytest.mark.parametrize("durable", [True, False])
def test_file_is_brought_to_disk_only_if_it_is_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_atomically(tmp_path / "state", b"new", durable=durable)
    assert (tmp_path / "state").read_bytes() == b"new"
    assert bool(synced) is durable


def test_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "state", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "state", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["state"]
    assert (tmp_path / "state").read_bytes() == b"old"
