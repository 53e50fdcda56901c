import polars as pl
import pytest

from dflash.analysis.gauges import read_gauges, suspect


def lines(rate, target, drafter, waiting, histogram, count=20):
    return pl.DataFrame({
        "rate": [rate] * count, "target_batches_per_second": [target] * count, "drafter_batches_per_second": [drafter] * count,
        "prefetched": [waiting] * count, "pooled": [sum(histogram)] * count, "pool_histogram": [histogram] * count,
    })  # fmt: skip


BEFORE = read_gauges(lines(9.5, 0.24, 0.23, 8, [1, 2, 3, 4, 4, 4]))
RECORD = pl.DataFrame({
    "rate": [5.4, 6.0, 5.7], "target_batches_per_second": [0.31, 0.31, 0.30], "drafter_batches_per_second": [0.13, 0.15, 0.14],
    "prefetched": [178, 199, 221], "pooled": [13, 13, 15],
    "pool_histogram": [[0, 0, 0, 1, 1, 11], [0, 0, 0, 1, 1, 11], [0, 1, 0, 1, 2, 11]],
})  # fmt: skip


def test_the_records_lines_are_consistent_with_a_policy_that_waits():
    found = suspect(BEFORE, read_gauges(RECORD))
    assert found.factor == "waiting"
    assert found.sentence.startswith("Consistent with")
    assert "bucket 5" in found.evidence
    assert {"padding", "prefetch", "slower targets"} <= set(found.ruled_out)


def test_an_empty_pool_and_fewer_tokens_a_batch_are_consistent_with_padding():
    before = read_gauges(lines(32.0, 0.67, 0.67, 8, [0, 0, 0, 1, 0, 0]))
    found = suspect(before, read_gauges(lines(14.4, 0.67, 0.67, 8, [0, 0, 0, 0, 0, 0])))
    assert found.factor == "padding"
    assert found.padding_explains == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("after", "factor"),
    [
        (lines(5.0, 0.12, 0.12, 8, [0, 0, 0, 0, 0, 0]), "target speed"),
        (lines(5.0, 0.12, 0.12, 0, [0, 0, 0, 0, 0, 0]), "prefetch speed"),
        (lines(5.0, 0.12, 0.12, 8, [2, 3, 3, 3, 3, 4]), "drafter speed"),
        (lines(9.5, 0.24, 0.23, 8, [1, 2, 3, 4, 4, 4]), None),
    ],
)
def test_other_gauges_fit_the_other_rules_or_none(after, factor):
    assert suspect(BEFORE, read_gauges(after)).factor == factor


def test_a_log_without_gauges_is_unclear():
    found = suspect(None, read_gauges(pl.DataFrame({"rate": [1.0]})))
    assert found.factor is None
    assert "unclear" in found.sentence
