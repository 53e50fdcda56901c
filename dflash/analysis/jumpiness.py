"""`dflash jumpiness`: is a jumpy loss the wanted diversity of the batches, or a training that comes apart?

    J1 = 1.4826 MAD(l_t - l_{t-1}) / sqrt 2,   J2 = 1.4826 MAD(l_t - rolling median of 101), both in nats; J2 / level is what to compare.

J1 / J2 near 1 and a lag-1 autocorrelation of the residual near 0: the noise of batches. Autocorrelation above 0.3: drift, or instability.
A spike is z = (loss - rolling median) / J2 above 7. The first fall of a fresh run, from its first row until one is first on its rolling
median or below, is none: the median looks ahead, and a falling loss stays above it however it wavers.

Batches of one length class are easier or harder than those of another, so the residual follows the mix of the step. How much: the residual is
regressed on the token shares of the length classes (spikes left out), adjusted R^2, and its p by circular shifts of the residual against the
shares, which keeps both series' autocorrelation. At least 200 rows are needed for a modest effect.

    healthy     R^2 >= 0.3 with p < 0.01 (or residuals that correlate >= 0.8 with those of a run of the same data order), and no spike of the
                gradient norm within 5 steps of a spike of the loss
    unstable    a spike of the gradient norm (z > 7) comes with or before a spike of the loss, by at most 5 steps
    undecided   otherwise
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dflash.analysis.eventlog import EventLog

WINDOW = 101
SPIKE, HIGH = 7.0, 5.0
NEAR_STEPS = 5
FEWEST_ROWS = 200
EXPLAINED, LARGEST_P, SAME_ORDER = 0.3, 0.01, 0.8
SHIFTS = 499
MOST_SPIKES = 50
_TO_SIGMA = 1.4826
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spike:
    """A row whose loss stands out: where, how far, its gradient norm's z, and the batches that made it, the worst first."""

    step: int
    at_seconds: float
    loss: float
    z: float
    grad_z: float | None
    batches: list[dict[str, Any]]


@dataclass(frozen=True)
class Jumpiness:
    """The verdict and its evidence.

    Attributes:
        verdict: healthy, unstable, undecided, or too little data.
        rows, source: how many losses, of "steps" or "batches".
        level: median loss; j1, j2: see above; autocorrelation: of the residual, lag 1.
        explained: adjusted R^2 of the residual on the length mix; None where the mix is unknown or rows are too few. p: of it.
        same_order: correlation with the residuals of the run it was compared with; None without one.
        above_5, above_7: rows with z above 5 and 7.
    """

    verdict: str
    sentence: str
    source: str
    rows: int
    level: float | None = None
    j1: float | None = None
    j2: float | None = None
    autocorrelation: float | None = None
    explained: float | None = None
    p: float | None = None
    same_order: float | None = None
    above_5: int = 0
    above_7: int = 0
    grad_spikes: int = 0
    spikes: tuple[Spike, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "spikes": [vars(spike) for spike in self.spikes]}


def loss_rows(log: EventLog) -> tuple[str, pl.DataFrame]:
    """Rows with a finite loss: of steps; of batches if there are too few steps and the batches have losses; of an imported log its lines."""
    steps = _with_loss(log.steps)
    if len(steps) < FEWEST_ROWS:
        batches = _with_loss(log.batches)
        if len(batches) >= FEWEST_ROWS and "bucket" in batches.columns:
            return "batches", batches
        lines = _with_loss(log.lines)
        if len(lines) > len(steps):
            return "log lines", lines
    return "steps", steps


def judge_jumpiness(log: EventLog, same_order: EventLog | None = None) -> Jumpiness:
    """Judge a run's loss; `same_order` is a run over the same data in the same order, if there is one."""
    source, rows = loss_rows(log)
    losses = rows["loss"].to_numpy() if len(rows) else np.zeros(0)
    if len(losses) < WINDOW:
        words = f"{len(losses)} rows with a loss are too few ({WINDOW} are needed)."
        return Jumpiness("too little data", words, source, len(losses))
    residual = losses - rolling_median(losses)
    j1 = _TO_SIGMA * _mad(np.diff(losses)) / np.sqrt(2)
    j2 = max(_TO_SIGMA * _mad(residual), 1e-12)
    z = residual / j2
    z[: int(np.argmax(residual <= 0))] = 0.0  # the first fall
    grad_z = _grad_z(rows)
    calm = np.abs(residual / j2) <= SPIKE
    explained, p = _explained_by_mix(residual, rows, calm)
    correlation = _correlation(rows, residual, same_order)
    spikes = tuple(_spike(log, rows, row, z, grad_z, source) for row in np.flatnonzero(z > SPIKE)[:MOST_SPIKES])
    follows = [spike for spike in spikes if spike.grad_z is not None and spike.grad_z > SPIKE]
    told = (explained is not None and p is not None and explained >= EXPLAINED and p < LARGEST_P) or (
        correlation or 0
    ) >= SAME_ORDER
    verdict = "unstable" if follows else "healthy" if told else "undecided"
    found = Jumpiness(
        verdict, "", source, len(losses), float(np.median(losses)), float(j1), float(j2), _lag1(residual[calm]), explained, p, correlation,
        int((z > HIGH).sum()), int((z > SPIKE).sum()), 0 if grad_z is None else int((grad_z > SPIKE).sum()), spikes,
    )  # fmt: skip
    return Jumpiness(**{**vars(found), "sentence": _sentence(found)})


def rolling_median(values: Floats) -> Floats:
    """Centred median of 101, shorter at the ends."""
    return pl.Series(values).rolling_median(WINDOW, min_samples=1, center=True).to_numpy()


def _with_loss(frame: pl.DataFrame) -> pl.DataFrame:
    if "loss" not in frame.columns:
        return pl.DataFrame()
    return frame.filter(pl.col("loss").cast(pl.Float64, strict=False).is_finite())


def _mad(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _lag1(residual: Floats) -> float | None:
    if len(residual) < 3 or residual.std() == 0:
        return None
    return float(np.corrcoef(residual[1:], residual[:-1])[0, 1])


def _grad_z(rows: pl.DataFrame) -> Floats | None:
    """How far each row's gradient norm stands out, at most over the row and the five before it."""
    if "grad_norm" not in rows.columns:
        return None
    norms = rows["grad_norm"].fill_null(strategy="forward").fill_null(0.0).to_numpy().astype(np.float64)
    residual = norms - rolling_median(norms)
    z = residual / max(_TO_SIGMA * _mad(residual), 1e-12)
    return z if residual.any() else None


def _explained_by_mix(residual: Floats, rows: pl.DataFrame, calm: NDArray[np.bool_]) -> tuple[float | None, float | None]:
    """Adjusted R^2 of the residual on the length mix, and its p by circular shifts."""
    shares = _shares(rows)
    if shares is None or calm.sum() < FEWEST_ROWS:
        return None, None
    design, target = shares[calm], residual[calm]
    design = design[:, design.std(axis=0) > 0]
    target = target - target.mean()
    basis, triangle = np.linalg.qr(design - design.mean(axis=0))
    basis = basis[:, np.abs(np.diag(triangle)) > 1e-9]
    total = float(target @ target)
    if not basis.shape[1] or total == 0:
        return None, None
    rows_used, columns = len(target), basis.shape[1]
    raw = float(((basis.T @ target) ** 2).sum()) / total
    shifts = np.random.default_rng(0).integers(rows_used // 20, rows_used - rows_used // 20, SHIFTS)
    as_high = sum(float(((basis.T @ np.roll(target, int(shift))) ** 2).sum()) / total >= raw for shift in shifts)
    adjusted = 1 - (1 - raw) * (rows_used - 1) / max(rows_used - columns - 1, 1)
    return adjusted, (1 + as_high) / (1 + SHIFTS)


def _shares(rows: pl.DataFrame) -> Floats | None:
    """Token shares of the length classes a row [rows, classes], one left out since they add up; of single batches their bucket."""
    if "class_tokens" in rows.columns and rows["class_tokens"].null_count() == 0:
        tokens = np.array(rows["class_tokens"].to_list(), np.float64)
        return np.asarray((tokens / np.maximum(tokens.sum(axis=1, keepdims=True), 1))[:, :-1])
    if "bucket" in rows.columns:
        buckets = rows["bucket"].to_numpy()
        return np.asarray((buckets[:, None] == np.unique(buckets)[None, :-1]).astype(np.float64))
    return None


def _correlation(rows: pl.DataFrame, residual: Floats, other: EventLog | None) -> float | None:
    """Correlation with the other run's residuals at the same steps."""
    if other is None or "step" not in rows.columns:
        return None
    theirs = _with_loss(other.steps)
    if len(theirs) < WINDOW:
        return None
    mine = pl.DataFrame({"step": rows["step"], "mine": residual})
    others = pl.DataFrame({"step": theirs["step"], "theirs": theirs["loss"].to_numpy() - rolling_median(theirs["loss"].to_numpy())})
    both = mine.join(others, on="step")
    return float(np.corrcoef(both["mine"], both["theirs"])[0, 1]) if len(both) >= WINDOW else None


def _spike(log: EventLog, rows: pl.DataFrame, row: int, z: Floats, grad_z: Floats | None, source: str) -> Spike:
    values = rows.row(row, named=True)
    near = None if grad_z is None else float(grad_z[max(row - NEAR_STEPS, 0) : row + 1].max())
    if source == "batches":
        batches = [{"batch": values.get("batch"), "loss": values["loss"]}]
    else:
        ids = [] if source == "log lines" else values.get("batch_ids") or []
        batches = _worst_batches(log, ids)
    step = values.get("step")
    return Spike(int(step) if step is not None else row, values["at"], values["loss"], float(z[row]), near, batches)


def _worst_batches(log: EventLog, ids: list[str]) -> list[dict[str, Any]]:
    if not ids or not len(log.batches) or "loss" not in log.batches.columns:
        return [{"batch": each} for each in ids[:5]]
    wanted = [name for name in ("batch", "loss", "bucket", "longest", "rows") if name in log.batches.columns]
    found = log.batches.filter(pl.col("batch").is_in(ids)).select(wanted).sort("loss", descending=True, nulls_last=True)
    return found.head(5).to_dicts()


def _sentence(found: Jumpiness) -> str:
    assert found.j1 is not None
    assert found.j2 is not None
    assert found.level is not None
    share = f", {found.j2 / found.level:.1%} of its level" if found.level > 0 else ""
    size = f"The loss jumps by {found.j2:.3g} nats around its trend{share}."
    mix = (
        ""
        if found.explained is None
        else f" The length mix of the step explains {max(found.explained, 0):.0%} of it (p = {found.p:.2g})."
    )
    order = (
        ""
        if found.same_order is None
        else f" It follows the run of the same data order with a correlation of {found.same_order:.2f}."
    )
    match found.verdict:
        case "healthy":
            return f"{size}{mix}{order} That is the wanted diversity of the batches, no fault."
        case "unstable":
            led = sum(1 for spike in found.spikes if (spike.grad_z or 0) > SPIKE)
            return f"{size}{mix} The gradient norm leaps with or before {led} spike(s) of the loss."
    why = " Whether the length mix explains it can't be told here." if found.explained is None else ""
    return f"{size}{mix}{order}{why} The evidence decides neither way."
