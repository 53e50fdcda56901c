from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.rows import TokenRows
from dflash.model.anchors import EVALUATION, Anchors, draw_anchors, noise_seed
from tests.model.tiny import random_rows


def rows_of(masks: list[list[bool]]) -> TokenRows:
    flat = np.concatenate([np.asarray(mask, bool) for mask in masks])
    offsets = np.concatenate([[0], np.cumsum([len(mask) for mask in masks])]).astype(np.int64)
    return TokenRows(np.arange(len(masks)) + 5, np.zeros(len(flat), np.int32), flat, offsets)


@settings(deadline=None)  # a busy machine is no fault
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=6), st.integers(1, 12), st.integers(0, 3))
def test_anchors_are_supervised_pairs_within_budget_distinct_and_sorted(masks, budget, epoch):
    anchors = draw_anchors(rows_of(masks), budget=budget, seed=1, epoch=epoch)
    for row, mask in enumerate(masks):
        drawn = anchors.position[anchors.row == row].tolist()
        possible = [a for a in range(len(mask) - 1) if mask[a] and mask[a + 1]]
        assert len(drawn) == min(budget, len(possible))
        assert set(drawn) <= set(possible)
        assert drawn == sorted(set(drawn))
    assert anchors.row.tolist() == sorted(anchors.row.tolist())


def test_a_conversation_draws_the_same_anchors_in_any_batch():
    rows = random_rows([50, 80, 30, 90])
    together = draw_anchors(rows, budget=6, seed=3, epoch=2)
    for row in range(4):
        alone = draw_anchors(rows.take([row]), budget=6, seed=3, epoch=2)
        assert alone.position.tolist() == together.position[together.row == row].tolist()


def test_epoch_seed_and_sample_each_change_the_draw():
    rows = random_rows([400])
    base = draw_anchors(rows, budget=8, seed=3, epoch=2).position.tolist()
    other_sample = TokenRows(rows.sample_ids + 1, rows.tokens, rows.loss_mask, rows.offsets)
    assert draw_anchors(rows, budget=8, seed=3, epoch=3).position.tolist() != base
    assert draw_anchors(rows, budget=8, seed=4, epoch=2).position.tolist() != base
    assert draw_anchors(other_sample, budget=8, seed=3, epoch=2).position.tolist() != base
    assert draw_anchors(rows, budget=8, seed=3, epoch=EVALUATION).position.tolist() != base


def test_every_position_is_drawn_equally_often():
    mask = [True] * 21
    counts = np.zeros(20)
    draws = 2000
    for epoch in range(draws):
        counts[draw_anchors(rows_of([mask]), budget=5, seed=0, epoch=epoch).position] += 1
    expected = draws * 5 / 20
    deviation = ((counts - expected) ** 2 / (expected * (1 - 5 / 20))).sum()  # chi-square like, 19 degrees of freedom
    assert deviation < 50


def test_the_budget_is_per_conversation_so_a_long_one_starves_nobody():
    anchors = draw_anchors(rows_of([[True] * 500, [True] * 5, [True] * 30]), budget=16, seed=0, epoch=0)
    assert np.bincount(anchors.row).tolist() == [16, 4, 16]


@settings(deadline=None)  # a busy machine is no fault
@given(st.integers(0, 50), st.integers(1, 9))
def test_split_keeps_every_anchor_in_order_in_even_parts(count, limit):
    anchors = Anchors(np.arange(count), np.arange(count) * 3)
    parts = anchors.split(limit)
    assert [row for part in parts for row in part.row.tolist()] == list(range(count))
    assert [position for part in parts for position in part.position.tolist()] == [3 * row for row in range(count)]
    assert all(1 <= len(part) <= limit for part in parts)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


def test_noise_seeds_differ_by_seed_epoch_and_sample_and_fit_a_generator():
    seeds = {noise_seed(seed, epoch, sample) for seed in range(3) for epoch in range(3) for sample in range(50)}
    assert len(seeds) == 450
    assert all(0 <= seed < 2**63 for seed in seeds)
