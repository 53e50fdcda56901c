"""The simulator: how fast it is, and the field record's figures from configs/field-record.yaml alone.

Rerun:  python benchmarks/simulation.py [--write docs/field-record.md] [--json]

A batch event is a batch read, produced or trained (three a batch). Bound: 1 million simulated batch events a minute of one core. The
table holds the record's figure beside the simulated one; docs/field-record.md is this program's output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dflash.config import load_config
from dflash.predict.simulation import Simulation, simulate

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "field-record.yaml"
EVENTS_BOUND = 1e6
SECOND = ["simulation.target_per_padded_token=3.255e-4", "simulation.drafter_per_token=3.17e-4", "simulation.hours=4"]
JITTERED = ["batching.strategy=jittered", "batching.order=stratified", "pool.policy=oldest"]
SCENARIOS = {
    "sorted": ("32", ["batching.strategy=sorted"]),
    "shuffled": ("11.9", ["batching.strategy=shuffled"]),
    "bucketed, six by hand": ("25.1", ["batching.strategy=bucketed"]),
    "jittered, stratified, oldest": ("ours", JITTERED),
    "the same, workers twice as uneven": ("ours", [*JITTERED, "simulation.noise=0.1"]),
    "the same, four times as uneven": ("ours", [*JITTERED, "simulation.noise=0.2"]),
    "packed, stratified, oldest": ("ours", ["batching.strategy=packed", *JITTERED[1:]]),
    "drafter-bound, random item": ("9-10", SECOND),
    "drafter-bound, waiting round robin": ("5.4-6.0", [*SECOND, "pool.policy=round_robin_wait"]),
    "drafter-bound, waiting at most 5 s": ("-18%", [*SECOND, "pool.policy=round_robin_wait", "pool.wait_seconds=5"]),
    "drafter-bound, round robin that skips": ("9-10", [*SECOND, "pool.policy=round_robin"]),
    "drafter-bound, oldest": ("ours", [*SECOND, "pool.policy=oldest"]),
    "drafter-bound, jittered, stratified, oldest": ("ours", [*SECOND, *JITTERED]),
    "the same, 4 targets to 4 drafters": ("ours", [*SECOND, *JITTERED, "pipeline.targets=4", "pipeline.drafters=4"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = {name: simulate(load_config(CONFIG, sets)) for name, (_, sets) in SCENARIOS.items()}
    speed = statistics.median(run.events_per_minute for run in runs.values() if run.batches)
    table = Table(
        "", "record, Ktok/s", "simulated", "days", "busiest", "vr 32", "pool by bucket, mean items", title="the field record"
    )
    for name, run in runs.items():
        table.add_row(name, SCENARIOS[name][0], *cells(run))
    Console().print(table)
    print(f"{speed / 1e6:.2f} million batch events a minute (bound: 1)")
    if options.write:
        options.write.write_text(document(runs), encoding="utf-8")
    if options.json:
        print(json.dumps({"events_per_minute": speed, "ktok_s": {name: run.ktok_s for name, run in runs.items()}}))
    if speed < EVENTS_BOUND:
        sys.exit("slower than a million batch events a minute")


def cells(run: Simulation) -> list[str]:
    vr = run.mix["vr"].get("32") if run.mix["vr"] else None
    items = "[" + ", ".join(f"{each:.1f}" for each in run.pool["by_bucket"]) + "]"
    rate = "deadlock" if run.deadlock else f"{run.ktok_s:.1f}"
    return [rate, "-" if run.eta_days is None else f"{run.eta_days:.1f}", run.bottleneck, "-" if vr is None else f"{vr:.2f}", items]


def document(runs: dict[str, Simulation]) -> str:
    """docs/field-record.md."""
    rows = [
        f"| {name} | {SCENARIOS[name][0]} | {' | '.join(cells(run))} | {' '.join(f'`{each}`' for each in SCENARIOS[name][1])} |"
        for name, run in runs.items()
    ]
    shuffled, free = runs["shuffled"], runs["drafter-bound, random item"]
    waiting = runs["drafter-bound, waiting at most 5 s"]
    stuck = runs["drafter-bound, waiting round robin"]
    ours, uneven = runs["jittered, stratified, oldest"], runs["the same, four times as uneven"]
    skipping = runs["drafter-bound, round robin that skips"].pool["by_bucket"]
    return f"""# The field record, simulated

Made by `python benchmarks/simulation.py --write docs/field-record.md`; a test holds the figures. Every row is
`dflash simulate configs/field-record.yaml` with the settings of its last column (`--set`). Ktok/s are thousands of real tokens committed
by optimiser steps a second; a job's seconds vary by 5% where nothing else is set; days are for all six epochs; vr 32 is how uneven
windows of 32 batches are as trained (1 = as random, less is more even).

| what | record | simulated | days | busiest | vr 32 | pool by bucket | settings |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

## What goes in

Lengths are drawn from LogNormal(median 1,617, sigma 0.70), clipped to [64, 8192]: 902,000 of them, mean 2,040, which stand in for the
record's data. Two numbers are fitted, one a part. First part: a target works through 6,400 padded tokens a second, so that five give 32
Ktok/s without padding; drafters keep up easily. Second part: a target takes 16 s a full batch of 49,152 tokens and a drafter 13 s a batch
of 41,000 real tokens, as the record says. Everything else is what the code does: planner, pool, policies and coordinator are those that
train.

## What comes out, and what it means

- **Sorted and bucketed** come out as recorded: padding is the whole difference between 32 and 25.1 Ktok/s.
- **Shuffled**: padding alone gives {shuffled.ktok_s:.1f} Ktok/s, and the record has 11.9. Padding does not explain the remaining
  {1 - 11.9 / shuffled.ktok_s:.0%}, nor does anything else in this model. Attention would explain a part (a cost that grows by 3e-5 a token
  of length takes another 5%), memory pressure or slower kernels at odd shapes may; the record holds nothing to tell them apart.
- **The days** of the record agree with its rates for bucketed (5.1), and are longer than its own rates give, for 902,000 samples of this
  mean and six epochs, for sorted (5, not 4.0) and shuffled (13, not 10.7). The rates are reproduced here, not those days.
- **Three drafters bound** the second part at {free.ktok_s:.1f} Ktok/s (the record worked out 9.3), whatever the policy, as long as it
  never waits.
- **Waiting round robin deadlocks**: {stuck.deadlock}. The record's run was seen for three minutes, on its way there.
- **With a time-out** of 5 s it loses {1 - waiting.ktok_s / free.ktok_s:.0%}.
- **Round robin that skips empty buckets** leaves a pool of the longest, {[round(each, 1) for each in skipping]} items by bucket: the
  histogram that was read as the cause is a result of pulling evenly.
- **What we offer**: jittered batches in stratified order, pulled in plan order: {ours.ktok_s:.1f} Ktok/s, vr 32 =
  {ours.mix["vr"]["32"]:.2f} as trained ({uneven.mix["vr"]["32"]:.2f} when a job's seconds vary by 20%). It costs 1.4% against sorting;
  batches are drawn anew each epoch, and every optimiser step holds every length class in its share.

## What the model leaves out

The warm-up of compilers and caches; the memory of workers besides the pool; anything that slows all workers at once (a network file
system, a thermal limit). Held-out evaluation is simulated (`data.holdout`, `evaluation.every`): without a measurement it is taken to cost a
third of training on the same batches. `dflash calibrate` fits the terms to real runs of one machine, and `benchmarks/prediction.py` shows
how far off the predictions are there.

On a CPU a job that runs alone is faster than one beside others, even with a core for each (caches, memory, the coordinator's own process):
`inline` runs took 8-20% less time than terms fitted to `ray` runs say. So costs carry the engine they were measured on, and a simulation of
another engine warns; calibrate on an `inline` run to predict `inline` runs.
"""


if __name__ == "__main__":
    main()
