from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging as hf_logging

from dflash.model.attention import attention_backend
from dflash.model.drafter import Drafter
from dflash.model.facts import target_facts
from dflash.model.shape import DrafterShape
from dflash.model.trainer import DrafterTrainer
from dflash.pipeline.checkpoints import CheckpointStore
from dflash.runs.folder import RunFolder, create_run
from tests.model.tiny import save_target, tiny_config

torch.set_num_threads(1)
hf_logging.disable_progress_bar()

SLIDING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "use_sliding_window": True, "sliding_window": 9}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "llama": ("llama", {}),
    "qwen3_5": ("qwen3_5_text", {}),
    "sliding": ("qwen3", SLIDING),
    "gemma3": ("gemma3_text", SLIDING),
    "gemma2": ("gemma2", SLIDING),
    "gpt_oss": ("gpt_oss", SLIDING),
    "mistral": ("mistral", {"sliding_window": 9}),
}


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random target of a family (see FAMILIES), made once a session."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            family, changes = FAMILIES[name]
            made[name] = save_target(tmp_path_factory.mktemp(name), family, **changes)
        return made[name]

    return folder


def random_drafter(target: Path | str, drafter: dict[str, Any] | None = None, seed: int = 0) -> Drafter:
    """A drafter with random weights, its norms moved off 1."""
    shape = DrafterShape.resolve(tiny_config(target, drafter).drafter, target_facts(target))
    made = Drafter(shape, attention_backend("sdpa", torch.device("cpu")))
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 1 + 0.2 * noise if parameter.ndim == 1 else 0.2 * noise
    return made.eval().requires_grad_(False)


def run_with_checkpoints(
    runs: Path, target: Path | str, steps: list[int], fingerprint: str = "abc", **sections: dict[str, Any]
) -> RunFolder:
    """A run's folder as training leaves it; each checkpoint's weights differ."""
    config = tiny_config(target, **sections)
    run = create_run(runs, "tiny", config)
    store = CheckpointStore(run.checkpoints, 9, {"data": fingerprint, "data.holdout": 2, "optim.seed": 5}, print)
    trainer = DrafterTrainer(config)
    for step in steps:
        for parameter in trainer.drafter.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        trainer.save(store.begin(step).folder)
        store.commit(step, {})
    return run
