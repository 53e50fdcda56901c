"""`dflash diff`: what differs between two runs, and only that: config, code, environment, data, results.

Values are compared leaf by leaf under dotted keys. Keys to ignore are patterns as of the shell (`telemetry.*`). Results are read at the same
time, step or number of tokens of both runs. Code is the commit and the uncommitted change that the manifest of the last session holds; the
change between two commits is asked of git where the command is run, if it knows both.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from dflash.analysis.eventlog import EventLog, load_events
from dflash.analysis.rates import rate_series
from dflash.errors import RefusedInput
from dflash.runs.folder import RunFolder

Align = Literal["time", "step", "tokens"]
POINTS = 10
MOST_DIFF_LINES = 2_000
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_ALWAYS_DIFFER = ("manifest.started*", "manifest.*time*")


@dataclass(frozen=True)
class Difference:
    """One leaf that differs. `old` or `new` is None where the key is missing."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Comparison:
    """Two runs held against each other. `code` is a unified diff, empty when the code is the same or unknown.

    `results` has a row a point of the common axis: position, then loss and rate of both runs.
    """

    config: list[Difference]
    code: str
    commits: tuple[str | None, str | None]
    environment: list[Difference]
    data: list[Difference]
    results: list[dict[str, float | None]]
    align: Align
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "config": [vars(each) for each in self.config],
            "code": self.code,
            "commits": list(self.commits),
            "environment": [vars(each) for each in self.environment],
            "data": [vars(each) for each in self.data],
            "results": self.results,
            "align": self.align,
            "notes": self.notes,
        }


def compare_runs(
    old: RunFolder,
    new: RunFolder,
    *,
    ignore: Sequence[str] = (),
    align: Align = "step",
    logs: tuple[EventLog, EventLog] | None = None,
) -> Comparison:
    """Compare two runs.

    Args:
        old, new: the runs.
        ignore: patterns of keys left out, as in telemetry.*
        align: what results are aligned by.
        logs: their events, if they are loaded already.
    """
    first, second = logs or (load_events(old), load_events(new))
    notes: list[str] = []
    configs = [_config(run, notes) for run in (old, new)]
    manifests = [run.manifest() for run in (old, new)]
    sessions = [(manifest.get("sessions") or [{}])[-1] for manifest in manifests]
    environments = [{key: value for key, value in session.items() if key != "git"} for session in sessions]
    gits = [session.get("git") or {} for session in sessions]
    known = all(configs)
    return Comparison(
        config=differences(configs[0], configs[1], ignore) if known else [],
        code=_code_diff(gits[0], gits[1], notes),
        commits=(gits[0].get("commit"), gits[1].get("commit")),
        environment=differences(environments[0], environments[1], ignore),
        data=differences(_data(manifests[0], first), _data(manifests[1], second), ignore),
        results=aligned_results(first, second, align),
        align=align,
        notes=notes,
    )


def differences(old: Any, new: Any, ignore: Sequence[str] = ()) -> list[Difference]:
    """Leaves that differ, in order of their dotted keys; lists are leaves."""
    flat = [dict(_leaves(tree, "")) for tree in (old, new)]
    keys = sorted(set(flat[0]) | set(flat[1]))
    skipped = (*ignore, *_ALWAYS_DIFFER)
    return [
        Difference(key, flat[0].get(key), flat[1].get(key))
        for key in keys
        if flat[0].get(key) != flat[1].get(key) and not any(fnmatch.fnmatchcase(key, pattern) for pattern in skipped)
    ]


def aligned_results(old: EventLog, new: EventLog, align: Align) -> list[dict[str, float | None]]:
    """Loss and rate of both runs at the same ten positions of the range they share; medians over the tenth before each."""
    tables = [_results(log) for log in (old, new)]
    if any(table.is_empty() or table[align].null_count() == len(table) for table in tables):
        return []
    begin = max(float(table[align].min()) for table in tables)  # type: ignore[arg-type]
    end = min(float(table[align].max()) for table in tables)  # type: ignore[arg-type]
    edges = np.linspace(begin, end, POINTS + 1)
    rows = []
    for left, right in pairwise(edges):
        parts = [table.filter((pl.col(align) >= left) & (pl.col(align) <= right)) for table in tables]
        row: dict[str, float | None] = {"position": float(right)}
        for name in ("loss", "rate"):
            for side, part in zip(("old", "new"), parts, strict=True):
                value = part[name].drop_nulls().median()
                row[f"{name}_{side}"] = None if value is None else float(value)  # type: ignore[arg-type]
        rows.append(row)
    return rows


def _results(log: EventLog) -> pl.DataFrame:
    """time, step, tokens, loss, rate by step (or line)."""
    series = rate_series(log).kept
    losses = log.steps if "loss" in log.steps.columns else log.lines
    source = losses if len(losses) else series
    if source.is_empty():
        return pl.DataFrame()
    time = source["at"].to_numpy()
    rate = np.interp(time, series["at"].to_numpy(), series["rate"].to_numpy()) if len(series) else np.full(len(time), np.nan)
    nothing = pl.lit(None, pl.Float64)
    return source.select(
        time="at",
        step=pl.col("step").cast(pl.Float64),
        tokens=pl.col("tokens").cast(pl.Float64).cum_sum() if "tokens" in source.columns else nothing,
        loss=pl.col("loss") if "loss" in source.columns else nothing,
        rate=pl.Series(rate).fill_nan(None),
    )


def _config(run: RunFolder, notes: list[str]) -> dict[str, Any]:
    if not (run.path / "config.yaml").is_file():
        notes.append(f"{run.name} was imported without its config (`dflash import --config FILE` keeps it)")
        return {}
    try:
        return run.config().model_dump(mode="json")
    except RefusedInput as error:
        notes.append(f"{run.name}: {error}")
        return {}


def _data(manifest: dict[str, Any], log: EventLog) -> dict[str, Any]:
    """Fingerprint of the data, and what the batches show of their lengths."""
    found: dict[str, Any] = {"fingerprint": manifest.get("data_fingerprint")}
    if len(log.batches) and "length_squared" in log.batches.columns:
        tokens = float(log.batches["tokens"].sum())
        found["token_weighted_mean_length"] = round(float(log.batches["length_squared"].sum()) / max(tokens, 1))
        found["mean_length"] = round(tokens / max(int(log.batches["rows"].sum()), 1))
    plans = log.rare["plan"]
    if plans:
        found |= {name: plans[0].get(name) for name in ("samples", "batches", "tokens")}
        found["padding_efficiency"] = round(plans[0].get("padding_efficiency") or 0.0, 3)
    return found


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def _code_diff(old: dict[str, Any], new: dict[str, Any], notes: list[str]) -> str:
    """The commits' change, as far as git here knows both, then the change of what was not committed."""
    parts = []
    commits = old.get("commit"), new.get("commit")
    if commits[0] != commits[1] and all(_COMMIT.fullmatch(str(commit)) for commit in commits):
        between = _git_diff(str(commits[0]), str(commits[1]))
        if between is None:
            notes.append(f"git here doesn't know both of {commits[0]} and {commits[1]}: only what was uncommitted is compared")
        else:
            parts.append(between)
    patches = [str(git.get("diff") or "") for git in (old, new)]
    if patches[0] != patches[1]:
        changed = difflib.unified_diff(
            patches[0].splitlines(), patches[1].splitlines(), "uncommitted before", "uncommitted after", lineterm=""
        )
        parts.append("\n".join(changed))
    lines = "\n".join(parts).splitlines()
    if len(lines) > MOST_DIFF_LINES:
        notes.append(f"the code's diff has {len(lines):,} lines; the first {MOST_DIFF_LINES:,} are shown")
    return "\n".join(lines[:MOST_DIFF_LINES])


def _git_diff(old: str, new: str) -> str | None:
    try:
        command = ["git", "diff", "--no-color", "--no-ext-diff", old, new, "--"]
        done = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
