"""A coordinator on the simulated engine: what most tests of the pipeline run."""

from collections import Counter

import numpy as np
import pytest

from dflash.config import build_config
from dflash.pipeline.coordinator import Coordinator
from dflash.pipeline.engines.simulated import CostModel, SimulatedEngine
from dflash.pipeline.ledger import Ledger
from dflash.pipeline.plans import PlanStream
from dflash.pipeline.reports import Progress


class Watcher:
    """A listener that keeps what it is told."""

    def __init__(self):
        self.steps, self.batches, self.evaluations, self.losses = [], [], [], []
        self.trained_samples = Counter()

    def trained(self, trained):
        self.batches.append(trained)

    def stepped(self, report):
        self.steps.append(report)
        for trained in report.batches:
            self.trained_samples.update((report.epoch, int(sample)) for sample in trained.batch.samples)

    def evaluated(self, report):
        self.evaluations.append(report)

    def lost(self, worker, reason, step):
        self.losses.append(worker)

    def turned(self, coordinator):
        pass


@pytest.fixture
def simulate():
    """Build a coordinator: `simulate(lengths, "pool.policy=random", ...)`; run it with `.run()`."""

    def build(lengths, *settings, costs=None, state=None, watcher=None, config_tree=None, **extra):
        config = build_config(
            {"data": {"path": "none"}, "target": {"path": "none"}, "pipeline": {"engine": "simulated"}, **(config_tree or {})},
            list(settings),
        )
        ledger = Ledger.restored(state["ledger"]) if state else Ledger()
        progress = Progress(**state["progress"]) if state else Progress()
        lengths = np.asarray(lengths, np.int32)
        stream = PlanStream(lengths, np.arange(len(lengths)), config, ledger)
        watcher = watcher or Watcher()
        coordinator = Coordinator(
            config,
            stream,
            ledger,
            SimulatedEngine(config.pipeline, costs or CostModel()),
            watcher,
            feature_bytes_per_token=8,
            progress=progress,
            saved_policy=state["policy"] if state else None,
            **extra,
        )
        return coordinator, watcher

    return build
