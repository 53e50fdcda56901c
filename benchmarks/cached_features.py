"""Features computed once against computed every epoch: tokens a second of whole runs with the demo's target, inline, one target, six epochs.

Rerun:  python -m benchmarks.cached_features [--chats N] [--json]

The same run (the demo's drafter and batches, one thread, fixed seed) in turn in one process: features live, cached while the first epoch
fills the cache, cached with the cache filled before, and the same with features kept as float8_e4m3. Tokens are real ones committed by
optimiser steps; CPU seconds are the process's, for the whole run. The loss is that of the last step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dflash.config import build_config
from dflash.data.options import PrepareOptions
from dflash.data.prepare import prepare
from dflash.data.sample import write_sample_corpus
from dflash.pipeline.train import drive_run
from dflash.runs.folder import create_run
from dflash.telemetry.reader import read_events

WAYS = {
    "live": (),
    "cached, filled meanwhile": ("target.features=cached", "target.cache={folder}/bfloat16"),
    "cached, filled before": ("target.features=cached", "target.cache={folder}/bfloat16"),
    "float8, filled meanwhile": ("target.features=cached", "target.cache={folder}/float8", "target.cache_dtype=float8_e4m3"),
    "float8, filled before": ("target.features=cached", "target.cache={folder}/float8", "target.cache_dtype=float8_e4m3"),
}


def measure(folder: Path, data: Path, name: str) -> dict[str, Any]:
    """One whole run."""
    tree: dict[str, Any] = {
        "data": {"path": str(data)},
        "target": {"path": "qwen3-tiny"},
        "drafter": {"layers": 2, "feature_layers": 3, "block_size": 8, "anchors": 32},
        "batching": {"token_budget": 1024, "window": 8},
        "pipeline": {"engine": "inline", "device": "cpu", "threads": 1},
        "optim": {"accumulate": 3, "epochs": 6, "lr": 3e-3},
        "checkpoint": {"every": 0},
    }
    config = build_config(tree, [setting.format(folder=folder) for setting in WAYS[name]])
    run = create_run(folder / "runs", name.replace(" ", "-").replace(",", ""), config)
    wall, cpu = time.monotonic(), time.process_time()
    outcome = drive_run(run, lambda line: None)
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    last = read_events(run.events, "sample")[-1]["workers"]
    busy = {worker["name"].partition("-")[0]: worker["busy_seconds"] for worker in last}
    kept = run.manifest().get("feature_cache", {})
    return {
        "tokens": outcome.committed_tokens,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "tokens_per_cpu_second": outcome.committed_tokens / cpu,
        "target_busy_seconds": busy["target"],
        "drafter_busy_seconds": busy["drafter"],
        "loss": outcome.loss,
        "relative_rms_error": kept.get("relative_rms_error"),
        "cosine": kept.get("cosine"),
        "size_bytes": kept.get("size_bytes"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_sample_corpus(folder / "chats.jsonl", limit=arguments.chats, seed=0)
        options = PrepareOptions(workers=1, max_length=1024)
        prepare([folder / "chats.jsonl"], "qwen3-tiny", folder / "tokens", options=options, progress=False)
        found = {name: measure(folder, folder / "tokens", name) for name in WAYS}
    if arguments.json:
        print(json.dumps(found))
        return
    table = Table("", "tokens / CPU s", "of live", "wall s", "target busy s", "drafter busy s", "loss", "rms error")
    for name, each in found.items():
        error = each["relative_rms_error"]
        table.add_row(
            name,
            f"{each['tokens_per_cpu_second']:,.0f}",
            f"{each['tokens_per_cpu_second'] / found['live']['tokens_per_cpu_second']:.2f}x",
            f"{each['wall_seconds']:.1f}",
            f"{each['target_busy_seconds']:.1f}",
            f"{each['drafter_busy_seconds']:.1f}",
            f"{each['loss']:.6f}",
            "" if error is None else f"{error:.2%}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
