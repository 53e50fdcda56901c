"""Whole run folders written by the simulated engine: what calibration and replay read."""

from dflash.config import build_config
from dflash.pipeline.coordinator import Coordinator
from dflash.pipeline.engines.simulated import CostModel, SimulatedEngine
from dflash.pipeline.evaluation import plan_holdout
from dflash.pipeline.jobs import Save
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reporting import RunReporter
from dflash.predict.workload import Workload, load_workload
from dflash.runs.folder import create_run, write_json
from dflash.telemetry.recorder import Recorder

TRUE = CostModel(
    prefetch_fixed=0.002,
    target_fixed=0.05,
    target_per_padded_token=2e-4,
    drafter_fixed=0.03,
    drafter_per_token=2e-5,
    drafter_per_anchor=1e-3,
    step_fixed=0.2,
    noise=0.03,
)


class NoStore:
    """Takes a checkpoint's time and writes none."""

    def begin(self, step, *, weights_only=False):
        return Save(None)

    def commit(self, step, state):
        pass


class Lagging(SimulatedEngine):
    """An engine that is late to notice, as one of processes is: what ends within `lag` seconds comes in one turn."""

    lag = 0.1

    def wait(self, patience_seconds):
        found = super().wait(patience_seconds)
        while found and (end := self._machine.next_end(self._clock)) is not None and end <= self._clock + self.lag:
            found += super().wait(None)
        return found


def record_run(folder, name, *sets, costs=TRUE, cores=0, engine_kind=SimulatedEngine):
    """Simulate a run and write its folder as a real one is written, on the engine's clock."""
    tree = {
        "data": {"path": "none"},
        "target": {"path": "none"},
        "drafter": {"anchors": 16},
        "batching": {"token_budget": 4096},
        "pipeline": {"engine": "ray", "device": "cpu", "targets": 1, "drafters": 1},
        "optim": {"accumulate": 4, "epochs": 1},
        "telemetry": {"sample_every": 1},
        "simulation": {"lengths": "lognormal", "samples": 900, "median_length": 300, "longest": 2048, "shortest": 4},
    }
    config = build_config(tree, list(sets))
    run = create_run(folder, name, config)
    write_json(run.path / "manifest.json", {"sessions": [{"machine": {"cpus": 2, "gpus": []}}]})
    workload: Workload = load_workload(config)
    serial = config.pipeline.engine == "inline"
    engine = engine_kind(
        config.pipeline, costs, 1, blocks=workload.blocks, evaluation=config.evaluation, cores=cores,
        feature_bytes_per_token=8, serial=serial,
    )  # fmt: skip
    ledger = Ledger()
    with Recorder(run.events, "coordinator") as recorder:
        record = recorder.record

        def on_engines_clock(event, **fields):
            record(event, **{**fields, "seconds": engine.now(), "time": 1e9 + engine.now()})

        recorder.record = on_engines_clock
        reporter = RunReporter(config, recorder, lambda line: None, run_tokens=workload.tokens)
        stream = PlanStream(workload.lengths, workload.kept, config, ledger, reporter.planned)
        coordinator = Coordinator(
            config,
            stream,
            ledger,
            engine,
            reporter,
            feature_bytes_per_token=8,
            checkpointer=NoStore(),
            holdout=plan_holdout(stream, workload.supervised, workload.held_out),
        )
        coordinator.run()
        reporter.close(coordinator)
    return run, coordinator
