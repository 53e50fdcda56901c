"""The three engines: `inline` (this process), `ray` (one actor a device), `simulated` (a virtual clock)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.config import RunConfig
from dflash.errors import RefusedInput
from dflash.pipeline.jobs import Engine

if TYPE_CHECKING:  # stages need torch, and the simulated engine is to work without
    from dflash.pipeline.stages import Stages


@contextmanager
def make_engine(config: RunConfig, stages: Stages, folder: Path) -> Iterator[Engine]:
    """The engine a training run asks for; its workers end with the context. `folder` is seen by all workers.

    Raises:
        RefusedInput: the machine has not the devices of the topology, or the engine can't train.
    """
    engine: Engine
    if config.pipeline.engine == "inline":
        from dflash.pipeline.engines.inline import InlineEngine

        engine = InlineEngine(config.pipeline, stages)
    elif config.pipeline.engine == "ray":
        from dflash.pipeline.engines.ray import RayEngine

        engine = RayEngine(config, stages, folder)
    else:
        raise RefusedInput("pipeline.engine=simulated predicts and can't train: use inline or ray")
    try:
        yield engine
    finally:
        engine.close()
