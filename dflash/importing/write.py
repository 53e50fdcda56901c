"""An imported run on disk: a run's folder like any other, with `imported.json` in the place of what only a live run knows.

runs/<name>/imported.json       where it came from, what was understood, how time and rate were got
            events/imported-0000.jsonl
            config.yaml         only if the user gave the config the run had

Its events are those of docs/events.md under "Imported runs", in order of time.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from dflash.importing.sessions import ImportedRun, training_readings
from dflash.telemetry.recorder import SCHEMA_VERSION, encode

MOST_SAMPLES = 20_000
EVENTS_FILE = "imported-0000.jsonl"
_LINE_FIELDS = (
    "source_line", "step", "elapsed", "step_seconds", "rate", "tokens", "loss", "accuracy", "streak", "grad_norm", "lr", "noise", "epoch",
    "target_batches_per_second", "drafter_batches_per_second", "prefetched", "pooled", "pool_histogram", "eta_seconds",
)  # fmt: skip
_STEP_FIELDS = ("epoch", "loss", "grad_norm", "lr", "noise", "accuracy", "streak", "step_seconds")
_LAST_ROW = 2**62
_STARTED, _SAMPLE, _LINE, _EVALUATION, _STEP = range(5)  # of events of one reading, the order they are written in


class Batch:
    """Events of one part of a run, kind by kind, with the place of each among the others."""

    def __init__(self) -> None:
        self._frames: list[tuple[str, int, pl.DataFrame]] = []
        self._texts: list[tuple[int, int, str]] = []

    def add_frame(self, event: str, rank: int, frame: pl.DataFrame) -> None:
        """Add a row an event; `row` tells where."""
        if len(frame):
            self._frames.append((event, rank, frame))

    def add(self, event: dict[str, object], row: int, rank: int) -> None:
        """Add one event."""
        self._texts.append((row, rank, encode(event).decode().rstrip()))

    def as_lines(self) -> bytes:
        """All of them as JSON lines, in order."""
        schema = {"row": pl.Int64, "rank": pl.Int8, "text": pl.String}
        parts = [pl.DataFrame(self._texts, schema=schema, orient="row")]
        for event, rank, frame in self._frames:
            fields = pl.struct(pl.lit(event).alias("event"), pl.exclude("row"))
            parts.append(frame.select("row", pl.lit(rank, pl.Int8).alias("rank"), fields.struct.json_encode().alias("text")))
        buffer = io.BytesIO()
        pl.concat(parts).sort("row", "rank").select("text").write_csv(buffer, include_header=False, quote_style="never")
        return buffer.getvalue()


class RunWriter:
    """Turns one run's readings, which come part by part, into events.

    Args:
        name: of the run.
        run: what is known of it.
        rate_unit: of its rates.
        boundaries: its length buckets, if they are known.
    """

    def __init__(self, name: str, run: ImportedRun, rate_unit: str, boundaries: Sequence[int] = ()) -> None:
        self._name, self._run, self._rate_unit, self._boundaries = name, run, rate_unit, list(boundaries)
        self._session: int | None = None
        self._last_at: float | None = None  # of the training reading before
        self._open_step: pl.DataFrame | None = None
        self._held: pl.DataFrame | None = None
        self._end: dict[str, object] = {}
        self._gauges = _Gauges(run)

    def take(self, frame: pl.DataFrame) -> Batch:
        """Events of the next readings. The newest step is kept until it is over, and what follows it with it."""
        if self._held is not None:
            frame = pl.concat([self._held, frame])
            self._held = None
        if "phase" in frame.columns:
            training = (frame["phase"] != "evaluation").arg_true()
            kept = int(training[-1]) + 1 if len(training) else 0 if self._open_step is not None else len(frame)
            self._held, frame = (frame[kept:] if kept < len(frame) else None), frame[:kept]
        return self._events(frame)

    def finish(self) -> Batch:
        """Its last events."""
        batch = Batch() if self._held is None else self._events(self._held)
        if self._open_step is not None:
            batch.add_frame("step", _STEP, self._as_events(self._open_step))
        batch.add({"event": "run_ended", **self._end, "state": "imported"}, _LAST_ROW, _STEP)
        return batch

    def _events(self, frame: pl.DataFrame) -> Batch:
        batch = Batch()
        if frame.is_empty():
            return batch
        place = pl.int_range(pl.len(), dtype=pl.Int64).alias("row")
        frame = frame.with_columns(place, time=pl.col("at") + self._run.began, seconds=pl.col("at"))
        self._add_starts(batch, frame)
        training = self._with_tokens(training_readings(frame))
        self._gauges.add_samples(batch, training)
        fields = [name for name in _LINE_FIELDS if name in self._run.told or name == "source_line"]
        lines = training.rename({"line": "source_line"}).select("row", "time", "seconds", *fields)
        batch.add_frame("line", _LINE, lines.with_columns(rate_unit=pl.lit(self._rate_unit)))
        if "phase" in frame.columns and "loss" in frame.columns:
            evaluations = frame.filter(pl.col("phase") == "evaluation")
            batch.add_frame("evaluation", _EVALUATION, evaluations.select("row", "time", "seconds", "step", "loss"))
        batch.add_frame("step", _STEP, self._finished_steps(training))
        self._end = frame.select("time", "seconds", "step").row(-1, named=True)
        return batch

    def _add_starts(self, batch: Batch, frame: pl.DataFrame) -> None:
        sessions = frame["session"].to_numpy()
        began = np.flatnonzero(np.diff(sessions, prepend=-1 if self._session is None else self._session))
        self._session = int(sessions[-1])
        for row, time, seconds, step in frame[began.tolist()].select("row", "time", "seconds", "step").iter_rows():
            batch.add(
                {"event": "run_started", "time": time, "seconds": seconds, "schema": SCHEMA_VERSION, "run": self._name, "step": step,
                 "total_steps": self._run.most_step, "boundaries": self._boundaries, "imported": True}, row, _STARTED,
            )  # fmt: skip

    def _with_tokens(self, training: pl.DataFrame) -> pl.DataFrame:
        """Real tokens of each reading as `step_tokens`: logged, or rate x time since the reading before; none if neither is known."""
        if training.is_empty():
            return training
        since = np.diff(training["at"].to_numpy(), prepend=training["at"][0] if self._last_at is None else self._last_at)
        self._last_at = float(training["at"][-1])
        if "tokens" in self._run.told:
            return training.with_columns(step_tokens=pl.col("tokens"))
        if self._rate_unit != "Ktok/s" or "rate" not in self._run.told:
            return training
        return training.with_columns(step_tokens=(pl.col("rate").fill_null(0.0) * 1_000 * pl.Series(since)).round(0))

    def _finished_steps(self, training: pl.DataFrame) -> pl.DataFrame:
        """One row a step, the last its readings tell, but for the newest step, which may go on."""
        if training.is_empty():
            return training
        fields = [name for name in ("step_tokens", *_STEP_FIELDS) if name in training.columns]
        readings = training.select("row", "session", "time", "seconds", "step", *fields)
        if self._open_step is not None:
            readings = pl.concat([self._open_step, readings])
        tokens = [pl.col("step_tokens").sum()] if "step_tokens" in fields else []
        told = [pl.col(name).drop_nulls().last() for name in fields if name != "step_tokens" and readings[name].null_count()]
        last = pl.exclude("session", "step", "step_tokens", *(each.meta.output_name() for each in told)).last()
        steps = readings.group_by(pl.struct("session", "step").rle_id().alias("stretch"), maintain_order=True).agg(
            pl.col("session", "step").last(), last, *told, *tokens
        )
        steps = steps.select(readings.columns)
        self._open_step = steps.tail(1).with_columns(row=pl.lit(-1, pl.Int64))
        return self._as_events(steps.head(-1))

    def _as_events(self, steps: pl.DataFrame) -> pl.DataFrame:
        fields = [name for name in _STEP_FIELDS if name in self._run.told and name in steps.columns]
        tokens = [pl.col("step_tokens").alias("tokens")] if "step_tokens" in steps.columns else []
        return steps.select("row", "time", "seconds", "step", *fields, *tokens)


class _Gauges:
    """Samples of the queues from a console's gauges: counters over all lines, of which at most `MOST_SAMPLES` are written."""

    def __init__(self, run: ImportedRun) -> None:
        self._buckets = run.buckets
        self._every = max(-(-run.gauges // MOST_SAMPLES), 1)
        self._seen = 0
        self._last_at: float | None = None
        self._depth_seconds = np.zeros(run.buckets)
        self._empty_seconds = 0.0

    def add_samples(self, batch: Batch, training: pl.DataFrame) -> None:
        """Add the samples of some readings."""
        if "pool_histogram" not in training.columns:
            return
        gauges = training.filter(pl.col("pool_histogram").is_not_null())
        if gauges.is_empty():
            return
        columns = [
            pl.col("pool_histogram").list.get(at, null_on_oob=True).fill_null(0).alias(f"c{at}") for at in range(self._buckets)
        ]
        depths = gauges.select(columns).to_numpy()
        at = gauges["at"].to_numpy()
        since = np.diff(at, prepend=at[0] if self._last_at is None else self._last_at)
        depth_seconds = self._depth_seconds + np.cumsum(depths * since[:, None], axis=0)
        empty_seconds = self._empty_seconds + np.cumsum((depths.sum(axis=1) == 0) * since)
        wanted = range(-self._seen % self._every, len(gauges), self._every)
        for place, (row, time, seconds, step, prefetched) in zip(
            wanted, gauges[wanted].select("row", "time", "seconds", "step", "prefetched").iter_rows(), strict=True
        ):
            pool = {"queue": "pool", "depths": depths[place].tolist(), "depth_seconds": depth_seconds[place].tolist(),
                    "empty_seconds": float(empty_seconds[place])}  # fmt: skip
            ready = [] if prefetched is None else [{"queue": "prefetch", "depths": [prefetched]}]
            batch.add(
                {"event": "sample", "time": time, "seconds": seconds, "clock_seconds": seconds, "step": step, "workers": [],
                 "queues": [pool, *ready], "estimated": True}, row, _SAMPLE,
            )  # fmt: skip
        self._seen += len(gauges)
        self._last_at = float(at[-1])
        self._depth_seconds, self._empty_seconds = depth_seconds[-1], float(empty_seconds[-1])


def event_batches(
    placed: Iterator[tuple[ImportedRun, pl.DataFrame]], writers: dict[int, tuple[Path, RunWriter]]
) -> Iterator[tuple[Path, Batch]]:
    """Events of all runs with the files they go into; `writers` by the identity of the run."""
    for run, frame in placed:
        path, writer = writers[id(run)]
        yield path, writer.take(frame)
    for path, writer in writers.values():
        yield path, writer.finish()
