"""What the topics keep on disk, beside what a plain dict would: no log is needed for this."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.tables import topic_store
from headrace.tables._layout import stored_key
from headrace.tables.store import About, Damaged
from headrace.tables.topic_store import TopicBatch, TopicStore, hash_of, pack

ABOUT = About("cluster", "stream", "id", history=False, topics=True)
PARTITIONS = 4
Model = dict[bytes, list[tuple[int, int]]]  # topic → offsets and times


class Writer:
    """Writes records to a store, and to a dict that says what must be in it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.store = TopicStore(folder, ABOUT)
        self.model: Model = {}
        self.offsets = [0] * PARTITIONS
        self.now_ms = 1000

    def write(self, topics: list[bytes], count: int) -> None:
        batch = TopicBatch()
        for _ in range(count):
            topic = self.chance.choice(topics)
            partition = hash_of(topic) % PARTITIONS
            offset, number = self.offsets[partition], self.store.next + len(batch.records)
            ends = self.chance.random() < 0.03
            value = None if ends else b"value %d" % offset
            raw = pack(topic, value, partition, offset, self.now_ms, b"id", b"")
            if ends:
                batch.tombstones.append(len(batch.records))
                self.model[topic] = []
            else:
                self.model.setdefault(topic, []).append((offset, self.now_ms))
            batch.firsts.setdefault(partition, number)
            batch.records.append(raw)
            batch.keys.append(topic)
            batch.hashes.append(hash_of(topic))
            self.offsets[partition] += 1
            self.now_ms += self.chance.choice([0, 1, 2])
        self.store.append(batch, {}, expired_before_ms=None)

    def expire(self, before_ms: int) -> None:
        self.store.append(TopicBatch(), {}, expired_before_ms=before_ms)
        while self.store.has_more_to_expire:
            self.store.append(TopicBatch(), {}, expired_before_ms=before_ms)
        self.model = {topic: [each for each in kept if each[1] >= before_ms] for topic, kept in self.model.items()}

    def reopen(self) -> None:
        self.store.close()
        self.store = TopicStore(self.folder, ABOUT)

    def check(self, topics: list[bytes]) -> None:
        wanted = {topic: [offset for offset, _ in kept] for topic, kept in self.model.items() if kept}
        for topic in topics:
            numbers = self.store.numbers(topic).tolist()
            assert [each.offset() for each in self.store.records(topic, numbers)] == wanted.get(topic, [])
            assert len(numbers) == len(wanted.get(topic, []))
        assert self.store.count_topics() == len(wanted)
        assert self.store.count_topics(b"T1", b"T2") == sum(b"T1" <= topic < b"T2" for topic in wanted)
        listed = self.store.listed(b"", None, 1000)
        assert [each.key for each in listed] == sorted(wanted, key=stored_key)
        assert {each.key: (each.records, each.last.offset()) for each in listed} == {
            topic: (len(offsets), offsets[-1]) for topic, offsets in wanted.items()
        }


@pytest.mark.parametrize("seed", range(12))
def test_store_has_what_was_written_is_not_ended_and_has_not_expired(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_store, "_RUN", 64)
    monkeypatch.setattr(topic_store, "_SIZES", (100, 1000))
    monkeypatch.setattr(topic_store, "_EXPIRED_MAX", 50)
    chance = random.Random(seed)
    writer = Writer(tmp_path, chance)
    topics = [*(f"T{number}".encode() for number in range((1, 5, 40)[seed % 3])), b"", b"x" * 500]
    for _ in range(50):
        writer.write(topics, chance.choice([0, 1, 3, 20, 90]))
        if chance.random() < 0.2:
            writer.expire(writer.now_ms - chance.choice([0, 50, 200]))
        if chance.random() < 0.2:
            writer.reopen()
        writer.check(topics)
    writer.store.close()


def test_record_that_went_bad_on_disk_is_never_given_out(tmp_path: Path) -> None:
    writer = Writer(tmp_path, random.Random(1))
    writer.write([b"T1"], 5)
    number = writer.store.numbers(b"T1").tolist()[-1]
    with writer.store._env.begin(write=True, db=writer.store._data) as txn:
        raw = bytearray(txn.get(number.to_bytes(8, "big")))
        raw[-1] ^= 1
        txn.put(number.to_bytes(8, "big"), bytes(raw))
    with pytest.raises(Damaged):
        writer.store.records(b"T1", [number])
    writer.store.close()
