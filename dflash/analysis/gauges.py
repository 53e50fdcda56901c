"""What queue gauges of an imported log are consistent with. A log has no accounts of time, so nothing here is proved, and the words say so.

Per stretch: batches a second of targets and drafters, tokens a batch (rate / drafter batches a second), mean items in the pool and in each
bucket, share of lines with an empty pool, batches waiting for the targets. Rules, in order:

1. the pool holds items while drafters take fewer batches than before, and buckets stand empty beside full ones: the pull policy waits; without
   empty buckets: drafters are slower.
2. the pool is empty while batches wait for the targets: target-bound; by padding, if the tokens a batch fell and explain >= 80% of the drop.
3. pool and prefetch are both empty: prefetch-bound.
4. otherwise unclear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dflash.analysis.attribution import PADDING_EXPLAINS

HELD_ITEMS = 2.0
EMPTY_SHARE = 0.5
EMPTY_BUCKET_SHARE = 0.5
FELL = 0.10


@dataclass(frozen=True)
class Gauges:
    """Means over the lines of a stretch; None where the log doesn't say."""

    lines: int
    rate: float | None
    target_batches_per_second: float | None
    drafter_batches_per_second: float | None
    tokens_per_batch: float | None
    pooled: float | None
    by_bucket: list[float] | None
    empty_share: float | None
    bucket_empty_shares: list[float] | None
    prefetched: float | None


@dataclass(frozen=True)
class Suspicion:
    """What the gauges are consistent with: `factor` as in `factors.FACTORS` or None, in words, and what they rule out with its number."""

    factor: str | None
    sentence: str
    evidence: str
    ruled_out: dict[str, str]
    padding_explains: float | None


def read_gauges(lines: pl.DataFrame) -> Gauges:
    """Gauges of a stretch of log lines."""
    buckets = _buckets(lines)
    rate, drafter = _mean(lines, "rate"), _mean(lines, "drafter_batches_per_second")
    pooled = lines["pooled"].drop_nulls().to_numpy() if "pooled" in lines.columns else np.zeros(0)
    return Gauges(
        lines=len(lines),
        rate=rate,
        target_batches_per_second=_mean(lines, "target_batches_per_second"),
        drafter_batches_per_second=drafter,
        tokens_per_batch=1_000 * rate / drafter if rate and drafter else None,
        pooled=float(pooled.mean()) if pooled.size else None,
        by_bucket=None if buckets is None else [float(mean) for mean in buckets.mean(axis=0)],
        empty_share=float((pooled == 0).mean()) if pooled.size else None,
        bucket_empty_shares=None if buckets is None else [float(share) for share in (buckets == 0).mean(axis=0)],
        prefetched=_mean(lines, "prefetched"),
    )


def suspect(before: Gauges | None, after: Gauges) -> Suspicion:
    """Apply the rules. Without a stretch before, only rules that need none can fit."""
    ratios = {
        name: _ratio(before, after, name)
        for name in ("target_batches_per_second", "drafter_batches_per_second", "tokens_per_batch")
    }
    padding = _padding_explains(before, after)
    ruled_out = _ruled_out(ratios, after, padding)
    if after.pooled is None or after.empty_share is None:
        return Suspicion(None, "The log has no gauge of the pool: the cause is unclear.", "no q_hs in the log", {}, padding)
    slower = ratios["drafter_batches_per_second"] is None or ratios["drafter_batches_per_second"] < 1 - FELL
    if after.pooled >= HELD_ITEMS and after.empty_share < EMPTY_SHARE and slower:
        return _beside_items(after, ruled_out, padding)
    if after.empty_share >= EMPTY_SHARE and (after.prefetched or 0) >= 1:
        evidence = f"the pool was empty in {after.empty_share:.0%} of the lines while {after.prefetched:.0f} batches waited for the targets"
        if padding is not None and padding >= PADDING_EXPLAINS and before is not None:
            tokens = f"{before.tokens_per_batch:,.0f} to {after.tokens_per_batch:,.0f}"
            evidence += f"; real tokens a batch fell from {tokens}, which is {padding:.0%} of the drop"
            return Suspicion("padding", "Consistent with targets held up by padding.", evidence, ruled_out, padding)
        return Suspicion("target speed", "Consistent with the targets being the bottleneck.", evidence, ruled_out, padding)
    if after.empty_share >= EMPTY_SHARE and after.prefetched is not None:
        evidence = (
            f"the pool was empty in {after.empty_share:.0%} of the lines and {after.prefetched:.1f} batches waited for the targets"
        )
        return Suspicion("prefetch speed", "Consistent with prefetch being the bottleneck.", evidence, ruled_out, padding)
    return Suspicion(None, "The gauges fit no rule: the cause is unclear.", _summary(after), ruled_out, padding)


def _beside_items(after: Gauges, ruled_out: dict[str, str], padding: float | None) -> Suspicion:
    shares = after.bucket_empty_shares
    held = f"drafters took {after.drafter_batches_per_second:.2f} batches/s while the pool held {after.pooled:.0f} items"
    if shares is not None and after.by_bucket is not None:
        empty = [bucket for bucket, share in enumerate(shares) if share > EMPTY_BUCKET_SHARE]
        fullest = int(np.argmax(after.by_bucket))
        if empty and after.by_bucket[fullest] >= HELD_ITEMS:
            names = ", ".join(map(str, empty))
            evidence = (
                f"{held}, {after.by_bucket[fullest]:.0f} of them in bucket {fullest} and none in bucket {names} most of the time"
            )
            words = "Consistent with a pull policy that waits for buckets that are empty."
            return Suspicion("waiting", words, evidence, ruled_out | {"slow targets": _summary(after)}, padding)
    return Suspicion("drafter speed", "Consistent with slower drafters.", held, ruled_out, padding)


def _ruled_out(ratios: dict[str, float | None], after: Gauges, padding: float | None) -> dict[str, str]:
    found = {}
    if padding is not None and padding < PADDING_EXPLAINS:
        found["padding"] = (
            f"real tokens a batch changed by {_percent(ratios['tokens_per_batch'])}, which explains {max(padding, 0):.0%} of the drop"
        )
    if after.prefetched is not None and after.prefetched >= 1:
        found["prefetch"] = f"{after.prefetched:.0f} batches waited for the targets"
    target = ratios["target_batches_per_second"]
    if target is not None and target > 1 - FELL:
        found["slower targets"] = f"targets made {after.target_batches_per_second:.2f} batches/s, {_percent(target)} against before"
    return found


def _padding_explains(before: Gauges | None, after: Gauges) -> float | None:
    """Share of the drop that fewer real tokens a batch explain; None where it can't be told."""
    ratio = _ratio(before, after, "tokens_per_batch")
    rate = _ratio(before, after, "rate")
    return math.log(ratio) / math.log(rate) if ratio and rate and rate < 1 else None


def _ratio(before: Gauges | None, after: Gauges, name: str) -> float | None:
    old, new = (getattr(before, name) if before else None), getattr(after, name)
    return new / old if old and new is not None else None


def _percent(ratio: float | None) -> str:
    return "an unknown amount" if ratio is None else f"{ratio - 1:+.0%}"


def _summary(gauges: Gauges) -> str:
    parts = (
        ("targets {:.2f} batches/s", gauges.target_batches_per_second),
        ("drafters {:.2f} batches/s", gauges.drafter_batches_per_second),
        ("{:.0f} items in the pool", gauges.pooled),
        ("{:.0f} batches waiting", gauges.prefetched),
    )
    return ", ".join(words.format(value) for words, value in parts if value is not None)


def _mean(lines: pl.DataFrame, name: str) -> float | None:
    values = lines[name].drop_nulls().to_numpy() if name in lines.columns else np.zeros(0)
    return float(values.mean()) if values.size else None


def _buckets(lines: pl.DataFrame) -> Any:
    """Items a bucket [lines, buckets]; None without a histogram."""
    if "pool_histogram" not in lines.columns:
        return None
    rows = lines["pool_histogram"].drop_nulls().to_list()
    width = max((len(row) for row in rows), default=0)
    return np.array([row + [0] * (width - len(row)) for row in rows]) if width else None
