"""What coordination costs: the share of wall time that is the stages' own, and the rate against what the slower side allows.

Rerun:  python benchmarks/coordination.py [--seconds S] [--json]

`ray` runs with stages that only sleep, 5 targets -> 3 drafters, once with the targets slower and once with the drafters slower; what is allowed
is workers / seconds of the slower side, in batches per second. `inline` trains the shipped qwen3-tiny on synthetic rows; its stages'
seconds are what workers report as busy. Telemetry is the time spent encoding and writing events, as a share of wall time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dflash.config import RunConfig, build_config
from dflash.data.rows import TokenRows
from dflash.model.results import BatchResult, StepResult
from dflash.pipeline.coordinator import Coordinator
from dflash.pipeline.engines import make_engine
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reporting import RunReporter
from dflash.pipeline.stages import RealStages
from dflash.telemetry.accounts import STATES
from dflash.telemetry.recorder import Recorder

STEP_SECONDS = 0.02


@dataclass(frozen=True)
class SleepingStages:
    """Stages that only sleep."""

    target_seconds: float
    drafter_seconds: float

    def reader(self):
        """Rows of one token."""
        return self

    def target(self, number):
        """Features of one number."""
        return self

    def drafter(self, rank, replicas, meeting):
        """Learns nothing."""
        return self

    def read(self, samples):
        """See `reader`."""
        return TokenRows(samples, np.zeros(len(samples), np.int32), np.ones(len(samples), bool), np.arange(len(samples) + 1))

    def features(self, rows, *, packed):
        """See `target`."""
        time.sleep(self.target_seconds)
        return torch.zeros(len(rows.tokens), 4, dtype=torch.bfloat16)

    def accumulate(self, rows, features, **options):
        """See `drafter`."""
        time.sleep(self.drafter_seconds)
        return BatchResult(1.0, 1.0, len(rows.tokens), len(rows.tokens), 1, 1, self.drafter_seconds)

    def apply_step(self, lr):
        """See `drafter`."""
        time.sleep(STEP_SECONDS)
        return StepResult(1.0, 1.0, 1.0, False, "", STEP_SECONDS)


def run(config: RunConfig, stages, lengths: np.ndarray, seconds: float) -> tuple[Coordinator, float, float, float]:
    """Train for about so many seconds. Returns the coordinator, the wall seconds and batches of whole steps, and the telemetry share."""
    ledger = Ledger()
    stream = PlanStream(lengths, np.arange(len(lengths)), config, ledger)
    with tempfile.TemporaryDirectory() as folder, Recorder(Path(folder), "benchmark") as recorder:
        with make_engine(config, stages, Path(folder)) as engine:
            reporter = RunReporter(config, recorder, lambda line: None, run_tokens=int(lengths.sum()))
            coordinator = Coordinator(config, stream, ledger, engine, reporter, feature_bytes_per_token=8)
            marks: list[tuple[float, int]] = []
            stepped = reporter.stepped

            def mark(report):
                stepped(report)
                marks.append((engine.now(), coordinator.progress.committed_batches))
                coordinator.stop_requested = marks[-1][0] - marks[0][0] > seconds

            reporter.stepped = mark
            started = engine.now()
            coordinator.run()
            wall = engine.now() - started
        share = recorder.write_seconds / wall
    return coordinator, marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1], share


def ray_case(name: str, target_seconds: float, drafter_seconds: float, seconds: float) -> dict[str, object]:
    """Batches per second of sleeping stages against what the slower side allows."""
    config = build_config(
        {"data": {"path": "-"}, "target": {"path": "-"}},
        ["pipeline.engine=ray", "pipeline.device=cpu", "pipeline.targets=5", "pipeline.drafters=3", "batching.token_budget=1000",
         "optim.accumulate=30", "optim.epochs=50", "pool.capacity_bytes=67108864"],
    )  # fmt: skip
    _, wall, batches, telemetry = run(
        config, SleepingStages(target_seconds, drafter_seconds), np.full(6_000, 100, np.int32), seconds
    )
    window = 30
    drafter_side = window / (window / 3 * drafter_seconds + STEP_SECONDS)
    allowed = min(5 / target_seconds, drafter_side)
    return {
        "case": name,
        "batches_per_second": batches / wall,
        "allowed": allowed,
        "ratio": batches / wall / allowed,
        "telemetry": telemetry,
    }


def inline_case(seconds: float) -> dict[str, object]:
    """Share of wall time that is the stages' own."""
    from dflash.data.dataset import TokenDataset
    from dflash.data.options import PrepareOptions
    from dflash.data.prepare import prepare
    from dflash.data.sample import write_sample_corpus  # the real stages need a real data set

    with tempfile.TemporaryDirectory() as folder:
        write_sample_corpus(Path(folder) / "chats.jsonl", limit=400, progress=False)
        prepare(
            [Path(folder) / "chats.jsonl"],
            "qwen3-tiny",
            Path(folder) / "data",
            options=PrepareOptions(max_length=512),
            progress=False,
        )
        config = build_config(
            {"data": {"path": f"{folder}/data"}, "target": {"path": "qwen3-tiny"}},
            ["drafter.layers=2", "drafter.block_size=8", "drafter.anchors=32", "batching.token_budget=4096", "optim.accumulate=8",
             "optim.epochs=50", "pipeline.device=cpu"],
        )  # fmt: skip
        lengths = TokenDataset.open(Path(folder) / "data").lengths
        coordinator, _, _, telemetry = run(config, RealStages(config), lengths, seconds)
    accounts = coordinator.crew.accounts.values()
    snapshot = next(iter(accounts)).snapshot(coordinator.engine.now())
    wall = sum(float(snapshot[f"{state}_seconds"]) for state in STATES)
    busy = sum(account.seconds["busy"] for account in accounts)  # of jobs that ended: one that is queued is not at work
    return {"case": "inline, real stages", "ratio": busy / wall, "telemetry": telemetry}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each case")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    arguments = parser.parse_args()
    rows = [
        inline_case(arguments.seconds),
        ray_case("ray, targets slower (0.5 s, 0.2 s)", 0.5, 0.2, arguments.seconds),
        ray_case("ray, drafters slower (0.2 s, 0.3 s)", 0.2, 0.3, arguments.seconds),
    ]
    table = Table("case", "batches/s", "allowed", "share reached", "telemetry")
    for row in rows:
        rate, allowed = (f"{row[key]:.2f}" if key in row else "" for key in ("batches_per_second", "allowed"))
        table.add_row(str(row["case"]), rate, allowed, f"{row['ratio']:.1%}", f"{row['telemetry']:.2%}")
    Console().print(table)
    if arguments.json:
        print(json.dumps({"cases": rows}))


if __name__ == "__main__":
    main()
