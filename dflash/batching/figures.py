"""The figures of a plan, defined once: padding, fill, how even windows are, how much of a batch comes back next epoch.

**Padding.** padding_efficiency = real tokens / padded tokens, where a padded batch counts rows x longest row and a packed one the
sum of its lengths. fill = padded tokens / (batches x token budget).

**Evenness of a window.** Let l be a sample's tokens, y = ln l, N the samples and T = sum l the tokens of the plan,
mu = sum(l y) / T. A window W of w consecutive batches (counted from batch 0; an incomplete last one is left out) holds T_W tokens,
and its token-weighted mean log-length is off by D_W / T_W, where D_W = sum over W of l (y - mu). Because E[l (y - mu)] = 0, samples
drawn independently until they amount to T_W tokens on average have exactly (Wald's second identity)

    E[D_W^2] = s2 T_W,   s2 = sum(l^2 (y - mu)^2) / T.

An epoch draws without replacement, which lowers this by the factor (1 - T_W / T) N / (N - 1); we take it in, so that a random order
scores 1 in a small data set too. With every window weighted by its tokens,

    vr_w = sum_W D_W^2 / sum_W s2 T_W (1 - T_W / T) N / (N - 1).

chi_w is the same ratio for the Pearson divergence sum_c (p_c - q_c)^2 / q_c of a window's token shares p_c from the plan's shares
q_c: with D_Wc = sum over W of l (1[in c] - q_c) it has sum_c D_Wc^2 / q_c above, and below

    s2 = (sum_c sum(l^2 in c) / q_c - sum(l^2)) / T.

1 = as random, below 1 = more even, above 1 = less. None where nothing can be measured: no complete window, only one window, or one
length.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dflash.batching.boundaries import bucket_of, length_class_edges
from dflash.batching.plan import EpochPlan
from dflash.config import BatchingConfig

WINDOWS = (1, 8, 16, 32)


@dataclass(frozen=True)
class PlanFigures:
    """What a plan costs and how it mixes; definitions in the module's docstring.

    Attributes:
        batches: number of batches.
        padding_efficiency: real tokens / padded tokens, 0 to 1.
        fill: padded tokens / (batches x token budget), 0 to 1.
        max_padded_tokens: padded tokens of the largest batch.
        vr: keyed "1", "8", "16", "32" (batches a window): variance of the mean log-length, 1 = as random.
        chi: likewise: divergence over 16 equal-token length classes, 1 = as random.
        membership_reuse: share of co-batched sample pairs that shared a batch in the epoch before; None without that epoch.
    """

    batches: int
    padding_efficiency: float
    fill: float
    max_padded_tokens: int
    vr: dict[str, float | None]
    chi: dict[str, float | None]
    membership_reuse: float | None

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values, ready for JSON."""
        return asdict(self)


def plan_figures(plan: EpochPlan, lengths: ArrayLike, settings: BatchingConfig, previous: EpochPlan | None = None) -> PlanFigures:
    """Measure a plan.

    Args:
        plan: the plan.
        lengths: tokens of every sample of the data set [all samples].
        settings: what it was planned with; only the token budget is read.
        previous: the plan of the epoch before, for `membership_reuse`. Epoch 0 has none: give epoch 1's, the measure is symmetric.
    """
    rows = np.asarray(lengths)[plan.samples].astype(np.int64)
    tokens = np.add.reduceat(rows, plan.offsets[:-1])
    padded = padded_tokens(plan, lengths)
    padded_total = int(padded.sum())
    vr, chi = _evenness(rows, plan.offsets, tokens)
    return PlanFigures(
        batches=len(plan),
        padding_efficiency=int(tokens.sum()) / padded_total,
        fill=padded_total / (len(plan) * settings.token_budget),
        max_padded_tokens=int(padded.max()),
        vr=vr,
        chi=chi,
        membership_reuse=None if previous is None else membership_reuse(plan, previous),
    )


def padded_tokens(plan: EpochPlan, lengths: ArrayLike) -> NDArray[np.int64]:
    """Tokens each batch occupies [batches]: rows x longest row, or the sum of the lengths when packed."""
    rows = np.asarray(lengths)[plan.samples]
    if plan.packed:
        return np.add.reduceat(rows, plan.offsets[:-1], dtype=np.int64)
    return np.maximum.reduceat(rows, plan.offsets[:-1]).astype(np.int64) * np.diff(plan.offsets)


def membership_reuse(plan: EpochPlan, previous: EpochPlan) -> float:
    """Share of the sample pairs in one batch of `plan` that shared one in `previous`; 0 when no batch has two rows.

    Exact: samples are grouped by (batch now, batch then), and a group of n holds n (n - 1) / 2 such pairs. Samples that `previous`
    doesn't hold have shared a batch with none.
    """
    batch_then = np.full(int(max(plan.samples.max(), previous.samples.max())) + 1, -1, np.int64)
    batch_then[previous.samples] = np.repeat(np.arange(len(previous)), np.diff(previous.offsets))
    then = batch_then[plan.samples]
    now = np.repeat(np.arange(len(plan)), np.diff(plan.offsets))
    groups = np.sort((now * len(previous) + then)[then >= 0])
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    pairs = _pairs(np.diff(plan.offsets))
    return _pairs(np.diff(starts, append=groups.size)) / pairs if pairs else 0.0


def _pairs(sizes: NDArray[np.int64]) -> int:
    return int((sizes * (sizes - 1) // 2).sum())


def _evenness(
    rows: NDArray[np.int64], offsets: NDArray[np.int64], tokens: NDArray[np.int64]
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    if int(rows.min()) == int(rows.max()):
        return dict.fromkeys(map(str, WINDOWS)), dict.fromkeys(map(str, WINDOWS))
    total = int(tokens.sum())
    finite = rows.size / (rows.size - 1)
    logs = np.log(rows)
    off = rows * (logs - float(rows @ logs) / total)
    log_off = np.add.reduceat(off, offsets[:-1])[:, None]
    log_rate = float(off @ off) / total * finite

    edges = length_class_edges(rows)
    class_of, classes = bucket_of(rows, edges), edges.size - 1
    batch_of = np.repeat(np.arange(tokens.size), np.diff(offsets))
    held = np.bincount(batch_of * classes + class_of, rows, minlength=tokens.size * classes).reshape(tokens.size, classes)
    shares = held.sum(axis=0) / total
    class_off = (held - tokens[:, None] * shares) / np.sqrt(shares)
    squares = rows.astype(np.float64) ** 2
    class_rate = float((np.bincount(class_of, squares) / shares).sum() - squares.sum()) / total * finite

    vr = {str(window): _ratio(log_off, tokens, window, log_rate) for window in WINDOWS}
    chi = {str(window): _ratio(class_off, tokens, window, class_rate) for window in WINDOWS}
    return vr, chi


def _ratio(deviations: NDArray[np.float64], tokens: NDArray[np.int64], window: int, rate: float) -> float | None:
    """sum_W |sum of deviations in W|^2 over sum_W rate T_W (1 - T_W / T)."""
    windows = tokens.size // window
    held = tokens[: windows * window].reshape(windows, window).sum(axis=1).astype(np.float64)
    expected = rate * float((held * (1.0 - held / int(tokens.sum()))).sum())
    if expected <= 0.0:
        return None
    sums = deviations[: windows * window].reshape(windows, window, -1).sum(axis=1)
    return float((sums**2).sum()) / expected
