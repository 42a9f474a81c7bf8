"""Numbers that grow, whichever thread asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from headrace.indexer.lookup_order import next_in_order


def test_numbers_grow_within_each_thread_and_no_two_are_the_same():
    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(lambda _: [next_in_order() for _ in range(500)], range(4)))
    assert all(numbers == sorted(numbers) for numbers in drawn)
    assert len({one for numbers in drawn for one in numbers}) == 2000
    assert next_in_order() > max(map(max, drawn))
