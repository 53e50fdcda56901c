"""Who answers: what the job needs of a target, wherever it runs, and the target in this process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dflash.regenerate.answers import Answer, Request
from dflash.regenerate.options import RegenerateOptions


class Engine(Protocol):
    """Takes requests, gives answers in any order."""

    @property
    def wanted(self) -> int:
        """How many more requests would find something to do soon."""

    def add(self, requests: Iterable[Request]) -> None:
        """Take requests."""

    def collect(self) -> list[Answer]:
        """Work or wait until there are answers; none only when no request is left."""

    def close(self) -> None:
        """Let go of what it holds."""


@dataclass(frozen=True)
class TargetPlan:
    """How a target is to be loaded; picklable, for workers.

    Attributes:
        target: folder or shipped name.
        device: auto, cpu or cuda.
        dtype: auto, float32 or bfloat16.
        end_tokens: tokens that end a turn in the chat template, beside the target's own.
        threads: CPU threads of this process; 0 leaves them as they are.
    """

    target: str
    device: str = "auto"
    dtype: str = "auto"
    end_tokens: frozenset[int] = frozenset()
    threads: int = 0


def load_engine(plan: TargetPlan, options: RegenerateOptions) -> Engine:
    """Load the target into this process.

    Raises:
        RefusedInput: it can't be loaded.
    """
    import torch

    from dflash.pipeline.stages import pick_device
    from dflash.regenerate.alone import TargetAlone, rows_change_each_other
    from dflash.regenerate.batch import BatchedTarget
    from dflash.regenerate.slots import SlotCache
    from dflash.serving.cached_target import DecodingTarget

    if plan.threads:
        torch.set_num_threads(plan.threads)
    target = DecodingTarget.load(plan.target, layer_ids=[], device=pick_device(plan.device), dtype=plan.dtype)
    config = target.model.config.get_text_config()
    if SlotCache.holds(config) and not rows_change_each_other(config):
        return BatchedTarget(target, options, plan.end_tokens)
    return TargetAlone(target, options, plan.end_tokens)
