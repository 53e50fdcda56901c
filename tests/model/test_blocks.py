from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.model.anchors import draw_anchors
from dflash.model.blocks import BlockLayout, lay_out
from tests.model.tiny import random_rows


@settings(deadline=None)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.integers(2, 9), st.integers(1, 8), st.integers(0, 1000))
def test_layout_labels_and_weights_say_what_the_rules_say_token_by_token(lengths, block_size, budget, seed):
    rows = random_rows(lengths, seed=seed, supervised=0.6)
    anchors = draw_anchors(rows, budget=budget, seed=seed, epoch=0)
    if not len(anchors):
        return
    blocks = lay_out(rows, anchors, block_size=block_size, gamma=3.0, is_causal=False)
    supervised = {}
    for block, (row, position) in enumerate(zip(anchors.row, anchors.position, strict=True)):
        begin, end = rows.offsets[row], rows.offsets[row + 1]
        assert blocks.anchor_tokens[block] == rows.tokens[begin + position]
        assert blocks.anchor_positions[block] == position
        seen = range(blocks.layout.first_context[block], blocks.layout.end_context[block])
        # strictly before the anchor, of the own conversation, all of it
        assert [blocks.context_tokens[context] for context in seen] == list(range(begin, begin + position))
        assert [blocks.context_positions[context] for context in seen] == list(range(position))
        for k in range(1, block_size):
            place = begin + position + k
            if place < end and rows.loss_mask[place]:
                supervised[block * block_size + k] = (rows.tokens[place], math.exp(-(k - 1) / 3.0))
    assert blocks.slots.tolist() == sorted(supervised)
    assert blocks.labels.tolist() == [supervised[slot][0] for slot in sorted(supervised)]
    np.testing.assert_allclose(blocks.weights, [supervised[slot][1] for slot in sorted(supervised)], rtol=1e-6)


def test_context_no_block_can_see_is_left_out():
    rows = random_rows([40, 25, 9], supervised=1.0)
    anchors = draw_anchors(rows, budget=3, seed=0, epoch=0)
    blocks = lay_out(rows, anchors, block_size=4, gamma=2.0, is_causal=False)
    assert blocks.layout.context_rows == sum(anchors.position[anchors.row == row].max() for row in range(3))


def test_every_block_has_something_to_learn_and_slot_0_never():
    rows = random_rows([60, 45], supervised=0.5)
    anchors = draw_anchors(rows, budget=20, seed=1, epoch=0)
    blocks = lay_out(rows, anchors, block_size=6, gamma=2.0, is_causal=False)
    block, slot = np.divmod(blocks.slots, 6)
    assert np.unique(block).tolist() == list(range(len(anchors)))
    assert slot.min() == 1


def test_a_window_counts_the_querys_own_position():
    layout = BlockLayout(np.array([0, 0]), np.array([3, 10]), 10, 4, False)
    assert layout.first_visible(None).tolist() == [0, 0]
    # slot 0 at position 10 with a window of 4 sees 10 itself, 9, 8 and 7
    assert layout.first_visible(4).tolist() == [0, 7]
