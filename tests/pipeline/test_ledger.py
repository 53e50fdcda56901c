import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.pipeline.ledger import BatchId, BatchState, Ledger, LedgerFault, ranges


def commit(ledger, batch):
    for state in (BatchState.ISSUED, BatchState.POOLED, BatchState.TAKEN, BatchState.COMMITTED):
        ledger.advance(batch, state)


def test_a_batch_moves_one_state_at_a_time():
    ledger = Ledger()
    ledger.open_segment(0, {}, 2)
    with pytest.raises(LedgerFault, match="is planned, it can't become pooled"):
        ledger.advance(BatchId(0, 0, 0), BatchState.POOLED)
    commit(ledger, BatchId(0, 0, 0))
    with pytest.raises(LedgerFault):
        ledger.advance(BatchId(0, 0, 0), BatchState.DROPPED)
    with pytest.raises(LedgerFault):
        ledger.give_back(BatchId(0, 0, 0))


def test_an_epoch_closes_only_when_all_is_committed():
    ledger = Ledger()
    ledger.open_segment(0, {}, 2)
    commit(ledger, BatchId(0, 0, 0))
    with pytest.raises(LedgerFault, match="1 batches left"):
        ledger.close_epoch(0)
    commit(ledger, BatchId(0, 0, 1))
    ledger.close_epoch(0)
    assert ledger.epochs_done == 1


def test_a_new_segment_drops_what_was_only_planned():
    ledger = Ledger()
    ledger.open_segment(0, {}, 4)
    commit(ledger, BatchId(0, 0, 0))
    ledger.advance(BatchId(0, 0, 1), BatchState.ISSUED)
    assert ledger.open_segment(0, {}, 5) == 1
    assert [ledger.state(BatchId(0, 0, index)) for index in range(4)] == [
        BatchState.COMMITTED,
        BatchState.ISSUED,
        BatchState.DROPPED,
        BatchState.DROPPED,
    ]
    assert ledger.left_in_epoch(0) == 6


@given(st.lists(st.sampled_from(["issue", "commit", "give back", "replan", "save"]), max_size=60))
def test_saved_and_restored_ledgers_agree_on_what_is_settled(moves):
    ledger = Ledger()
    ledger.open_segment(0, {"seed": 1}, 6)
    under_way: list[BatchId] = []
    for move in moves:
        planned = [BatchId(0, s, i) for s, segment in enumerate(ledger.epochs[0]) for i in segment.indices(BatchState.PLANNED)]
        if move == "issue" and planned:
            ledger.advance(planned[0], BatchState.ISSUED)
            under_way.append(planned[0])
        elif move == "commit" and under_way:
            batch = under_way.pop(0)
            for state in (BatchState.POOLED, BatchState.TAKEN, BatchState.COMMITTED):
                ledger.advance(batch, state)
        elif move == "give back" and under_way:
            ledger.give_back(under_way.pop())
        elif move == "replan":
            ledger.open_segment(0, {"seed": 2}, 3)
        elif move == "save":
            before = ledger.left_in_epoch(0)
            ledger = Ledger.restored(json.loads(json.dumps(ledger.saved())))
            under_way.clear()
            assert ledger.left_in_epoch(0) == before


@given(st.sets(st.integers(0, 50)))
def test_ranges_hold_the_same_indices(indices):
    pairs = ranges(sorted(indices))
    assert {index for first, past in pairs for index in range(first, past)} == indices
    assert all(first < past for first, past in pairs)
