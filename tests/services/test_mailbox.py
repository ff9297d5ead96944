"""Work in order per key, and how far a partition has been handled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.services.mailbox import Mailboxes, Progress


def test_work_of_one_key_runs_in_order_and_of_several_at_a_time() -> None:
    async def main() -> tuple[list[tuple[str, int]], int]:
        boxes, done, running, most = Mailboxes(3), [], 0, 0
        finished = asyncio.Event()

        def work(key: str, number: int) -> Callable[[], Awaitable[None]]:
            async def run() -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                for _ in range(3 - number % 3):
                    await asyncio.sleep(0)
                running -= 1
                done.append((key, number))
                if len(done) == 100:
                    finished.set()

            return run

        for number in range(100):
            key = "abcdefghij"[number % 10]
            boxes.put(key, work(key, number))
        await finished.wait()
        return done, most

    done, most = asyncio.run(main())

    assert most == 3
    for key in "abcdefghij":
        numbers = [number for each, number in done if each == key]
        assert numbers == sorted(numbers)


@given(st.permutations(range(12)))
def test_position_is_the_first_that_is_not_done(order: list[int]) -> None:
    progress = Progress()
    cells = [progress.take(offset + 1, 1) for offset in range(12)]
    done: set[int] = set()
    position = 0
    for offset in order:
        cells[offset].pending = 0
        done.add(offset)
        position = progress.settled() or position
        assert position == min(set(range(13)) - done)
    assert len(progress) == 0
