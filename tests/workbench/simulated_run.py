"""Runs made by the simulated engine, with the events a real one writes: what charts and widgets are tried on without training."""

import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dflash.config import build_config, dump_config
from dflash.model.results import BatchResult, BlockMetrics, StepResult
from dflash.pipeline.coordinator import Coordinator
from dflash.pipeline.engines.simulated import CostModel, SimulatedEngine
from dflash.pipeline.jobs import Completion, Step, Train
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.live import LiveControl
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reporting import RunReporter
from dflash.runs.folder import RunFolder
from dflash.telemetry.recorder import SCHEMA_VERSION, Recorder, encode


class LearningEngine(SimulatedEngine):
    """A simulated engine whose loss falls and whose streak grows with the steps."""

    def __init__(self, pipeline, costs, total_steps):
        super().__init__(pipeline, costs)
        self.total_steps, self.step, self.draws = total_steps, 0, random.Random(1)

    def wait(self, patience_seconds):
        return [Completion(each.job, each.busy_seconds, self._result(each)) for each in super().wait(patience_seconds)]

    def _result(self, completion):
        progress = self.step / self.total_steps
        loss = 1.5 + 4.0 * math.exp(-4 * progress) + self.draws.gauss(0, 0.12)
        if isinstance(completion.job, Train):
            batch = completion.job.batch
            right = [int(1000 * (0.2 + 0.5 * progress) ** slot) for slot in range(1, 8)]
            metrics = BlockMetrics(tuple(right), (1000,) * 7, sum(right), 1000) if completion.job.with_metrics else None
            return BatchResult(loss * 10, 10.0, batch.tokens, batch.tokens, 16, 1000, 0.0, metrics)
        if isinstance(completion.job, Step):
            self.step += 1
            norm = 1.0 + abs(self.draws.gauss(0, 0.3))
            return StepResult(loss=loss, grad_norm=norm, weight_sum=1.0, skipped=False, reason="", seconds=0.0)
        return completion.result


class VirtualRecorder(Recorder):
    """Writes events at the engine's virtual time; `pace` makes a virtual second last so many real ones."""

    def __init__(self, folder: Path, writer: str, pace: float = 0.0):
        super().__init__(folder, writer)
        self.began, self.engine, self.pace, self.clock = time.time(), None, pace, 0.0

    def record(self, event, **fields):
        seconds = self.engine.now() if self.engine else 0.0
        time.sleep(max(seconds - self.clock, 0.0) * self.pace)
        self.clock = max(seconds, self.clock)
        os.write(self._file, encode({"event": event, "time": self.began + seconds, "seconds": seconds, **fields}))


def configure(*settings: str):
    """The config of a simulated run."""
    tree = {
        "data": {"path": "none"},
        "target": {"path": "none"},
        "pipeline": {"engine": "simulated", "targets": 5, "drafters": 3},
        "optim": {"accumulate": 16, "epochs": 1},
        "simulation": {"lengths": "lognormal", "samples": 20_000},
    }
    return build_config(tree, list(settings))


def simulate_run(folder: Path, *settings: str, samples: int = 20_000, pace: float = 0.0, seed: int = 0) -> Path:
    """Write config and events of a whole simulated run into `folder`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_config(configure(*settings)))
    _drive(RunFolder(folder), samples, pace, seed)
    return folder


def launch_paced(folder: Path, *settings: str, samples: int = 20_000, pace: float = 0.05) -> subprocess.Popen:
    """Start a simulated run in a process of its own that can be watched and steered; returns when it has taken hold of its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_config(configure(*settings)))
    command = [sys.executable, "-m", "tests.workbench.simulated_run", str(folder), str(samples), str(pace)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True)
    deadline = time.monotonic() + 60
    while not (RunFolder(folder).is_driven() and list((folder / "events").glob("*.jsonl"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def simulated_lengths(samples: int, seed: int = 0):
    """The lengths such a run trains on, like the field's."""
    return np.clip(np.random.default_rng(seed).lognormal(math.log(1617), 0.7, samples), 16, 8192).astype(np.int32)


def _drive(run: RunFolder, samples: int, pace: float, seed: int) -> str:
    config = run.config()
    lengths = simulated_lengths(samples, seed)
    ledger = Ledger()
    stream = PlanStream(lengths, np.arange(samples), config, ledger)
    costs = CostModel(target_per_padded_token=3.3e-4, drafter_per_token=2.6e-4, noise=0.1)
    engine = LearningEngine(config.pipeline, costs, stream.total_steps(0))
    with VirtualRecorder(run.events, "coordinator", pace) as recorder, run.console_log.open("a") as console:

        def show(line):
            print(line, file=console, flush=True)

        recorder.engine = engine
        reporter = RunReporter(
            config, recorder, show, run_tokens=int(lengths.sum()), live=LiveControl(run, recorder, show) if pace else None
        )
        coordinator = Coordinator(config, stream, ledger, engine, reporter, feature_bytes_per_token=8)
        recorder.record(
            "run_started", schema=SCHEMA_VERSION, run=run.name, step=0, total_steps=coordinator.total_steps, boundaries=stream.boundaries,
            targets=engine.targets, drafters=engine.drafters, engine="simulated",
        )  # fmt: skip
        state = coordinator.run()
        reporter.sample(coordinator, engine.now())
        recorder.record("run_ended", state=state, step=coordinator.progress.step)
    return state


if __name__ == "__main__":
    place = RunFolder(Path(sys.argv[1]))
    with place.driven():
        place.write_exit(_drive(place, int(sys.argv[2]), float(sys.argv[3]), 0))
