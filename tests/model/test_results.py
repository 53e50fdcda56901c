from __future__ import annotations

import math
import subprocess
import sys

import pytest

from dflash.model.results import BatchResult, BlockMetrics, merged


def result(loss_sum, weight_sum, metrics=None):
    return BatchResult(loss_sum, weight_sum, tokens=10, loss_tokens=5, anchors=2, slots=6, seconds=0.5, metrics=metrics)


def test_merging_adds_sums_so_that_ratios_are_weighted():
    both = merged([result(8.0, 2.0), result(1.0, 1.0)])
    assert both.loss == 3.0
    assert (both.tokens, both.loss_tokens, both.anchors, both.slots, both.seconds) == (20, 10, 4, 12, 1.0)
    assert both.metrics is None
    assert both.accuracy is both.streak is both.acceptance_length is None


def test_metrics_merge_over_those_batches_that_have_them():
    first = BlockMetrics(correct=(2, 0), valid=(2, 1), streak_sum=2, blocks=2)
    second = BlockMetrics(correct=(1, 1), valid=(3, 2), streak_sum=3, blocks=2)
    both = merged([result(1, 1, first), result(1, 1), result(1, 1, second)])
    assert both.metrics == BlockMetrics((3, 1), (5, 3), 5, 4)
    assert both.accuracy == 0.5
    assert both.metrics.accuracy_by_slot == pytest.approx((0.6, 1 / 3))
    assert both.streak == 1.25
    assert both.acceptance_length == 2.25


def test_nothing_supervised_gives_nan_and_no_error():
    assert math.isnan(result(0.0, 0.0).loss)
    assert math.isnan(merged([]).loss)
    assert math.isnan(BlockMetrics((0,), (0,), 0, 0).acceptance_length)


def test_results_shapes_and_anchors_import_without_torch():
    modules = "dflash.model.results, dflash.model.shape, dflash.model.anchors, dflash.model.blocks, dflash.model.facts"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
