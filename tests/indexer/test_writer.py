"""One loader at a time reads ahead into an index."""

from __future__ import annotations

import gc
import threading

import pytest

from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IndexTable
from headrace.indexer.writer import WriterClaim
from tests.support.index_batches import column

TABLES = (IndexTable(10, 0),)
TAKEN = r"a loader reads ahead into this index: finish its epoch, or close\(\) it"


class Loader:
    pass


def test_a_second_writer_is_refused_while_the_first_has_open_tickets(index_class: type[DIT]) -> None:
    first, second = Loader(), Loader()
    with index_class(TABLES) as dit:
        dit.claim_writer(first)
        assert (dit.writer_is(first), dit.writer_is(second)) == (True, False)
        ticket = dit.index([]).ticket  # an open ticket, though it brought no row
        with pytest.raises(RuntimeError, match=TAKEN):
            dit.claim_writer(second)
        assert dit.writer_is(first)
        dit.claim_writer(first)  # again: nothing
        dit.commit(ticket)
        dit.claim_writer(second)  # takes over
        assert (dit.writer_is(first), dit.writer_is(second)) == (False, True)


def test_release_undo_and_the_end_of_the_owner_free_the_claim(index_class: type[DIT]) -> None:
    first, second = Loader(), Loader()
    with index_class(TABLES) as dit:
        dit.claim_writer(first)
        dit.index([column(0, [1])])
        dit.release_writer(second)  # not the writer: nothing
        assert dit.writer_is(first)
        dit.release_writer(first)
        assert not dit.writer_is(first)
        dit.claim_writer(second)  # with the ticket open: nobody holds the claim
        with pytest.raises(RuntimeError, match=TAKEN):
            dit.claim_writer(first)
        dit.undo_after(None)
        dit.claim_writer(first)
        dit.index([column(0, [1])])
        del first
        gc.collect()
        dit.claim_writer(second)
        assert dit.writer_is(second)


def test_an_index_without_a_writer_is_usable_and_a_closed_one_cannot_be_claimed(index_class: type[DIT]) -> None:
    owner = Loader()
    dit = index_class(TABLES)
    dit.claim_writer(owner)
    other = dit.index([column(0, [1])])  # whoever calls
    dit.commit(other.ticket)
    dit.close()
    with pytest.raises(RuntimeError, match="closed"):
        dit.claim_writer(owner)
    assert dit.writer_is(owner)
    dit.release_writer(owner)
    assert not dit.writer_is(owner)
    with pytest.raises(TypeError, match="weak reference"):
        DIT(TABLES).claim_writer(3)


def test_a_loader_that_releases_while_another_claims_in_the_same_thread_does_not_hang() -> None:
    """As when the collector ends the old loader in the middle of the claim."""
    claim, first, second = WriterClaim(), Loader(), Loader()
    claim.claim(first, lambda: 1)

    def open_tickets() -> int:
        claim.release(first)
        return 1

    worker = threading.Thread(target=claim.claim, args=(second, open_tickets), daemon=True)
    worker.start()
    worker.join(timeout=20)
    assert not worker.is_alive()
    assert claim.holds(second)


def test_of_many_threads_one_gets_the_claim() -> None:
    owners = [Loader() for _ in range(8)]
    with DIT(TABLES) as dit:
        dit.index([column(0, [1])])
        start = threading.Barrier(len(owners), timeout=20)
        refused: list[Loader] = []

        def claim(owner: Loader) -> None:
            start.wait()
            try:
                dit.claim_writer(owner)
            except RuntimeError:
                refused.append(owner)

        threads = [threading.Thread(target=claim, args=(owner,)) for owner in owners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        assert len(refused) == 7
        assert [dit.writer_is(owner) for owner in owners] == [owner not in refused for owner in owners]
