"""What each objective (`drafter.loss`) costs against cross entropy: a drafter step, the target's pass, bytes of a token.

Rerun:  OMP_NUM_THREADS=1 python -m benchmarks.objectives [--repeats R] [--json]

The drafter's step is that of drafter_step.py (hidden 256, 5 layers, 64 anchors x 16, context 512, one thread) at two sizes of
vocabulary: forward, backward, clipping, optimiser. All objectives take turns in one process; a ratio is the median over the turns of
an objective's CPU seconds over those of cross entropy in the same turn. The target is the shipped qwen3-tiny on 16 rows of 128 tokens,
capturing the layers a drafter of 2 layers reads, and those with its last state. Tokens and features are random: that changes no work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.drafter_step import Shape, config_for, conversation, our_step, timed
from dflash.config import RunConfig
from dflash.data.rows import TokenRows
from dflash.model.capture import Capture
from dflash.model.facts import target_facts
from dflash.model.objectives.registry import OBJECTIVES
from dflash.model.shape import DrafterShape
from dflash.model.target import FrozenTarget
from dflash.model.trainer import DrafterTrainer

LOSSES = {
    **{name: {name: 1.0} for name in OBJECTIVES},
    "0.1 cross_entropy + 0.9 total_variation": {"cross_entropy": 0.1, "total_variation": 0.9},
    "all five": dict.fromkeys(OBJECTIVES, 1.0),
}
VOCABULARIES = (8192, 65_536)


def steps(vocabulary: int, repeats: int) -> dict[str, dict[str, float]]:
    """CPU seconds of a step under each objective, and its ratio to cross entropy's."""
    shape = Shape(vocabulary=vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        config = config_for(shape, Path(folder))
        rows, features = conversation(shape)
        state = torch.randn(len(features), shape.hidden, generator=torch.Generator().manual_seed(2))
        run = {}
        for name, loss in LOSSES.items():
            trainer = DrafterTrainer(config.model_copy(update={"drafter": config.drafter.model_copy(update={"loss": loss})}))
            wide = features if trainer.capture.last_state is None else torch.cat([features, state], dim=1)
            run[name] = our_step(trainer, rows, wide)
        turns = [{name: timed(step)[0] for name, step in run.items()} for _ in range(repeats + 1)][1:]
    return {
        name: {
            "cpu_seconds": statistics.median(turn[name] for turn in turns),
            "ratio": statistics.median(turn[name] / turn["cross_entropy"] for turn in turns),
        }
        for name in LOSSES
    }


def target_pass(repeats: int) -> dict[str, float]:
    """CPU seconds of the target's pass without and with its last state, and what a token's features take."""
    configs = [
        RunConfig.model_validate(
            {"data": {"path": "none"}, "target": {"path": "qwen3-tiny"}, "drafter": {"layers": 2, "loss": loss}}
        )
        for loss in ("cross_entropy", "kl")
    ]
    facts = target_facts("qwen3-tiny")
    captures = [Capture.of(config, DrafterShape.resolve(config.drafter, facts)) for config in configs]
    targets = [FrozenTarget.load("qwen3-tiny", layer_ids=capture.layer_ids) for capture in captures]
    tokens = np.random.default_rng(0).integers(0, facts.vocab_size, 16 * 128).astype(np.int32)
    rows = TokenRows(np.arange(16), tokens, np.ones(len(tokens), np.bool_), np.arange(17) * 128)

    def seconds(target: FrozenTarget) -> float:
        started = time.process_time()
        target.features(rows, packed=False)
        return time.process_time() - started

    turns = [[seconds(target) for target in targets] for _ in range(repeats + 1)][1:]
    return {
        "layers": captures[0].layer_ids[-1] + 1,
        "layers_with_last_state": facts.layers,
        "ratio": statistics.median(after / before for before, after in turns),
        "bytes_ratio": captures[1].width / captures[0].width,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="turns, after one to warm up")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=132)
    measured = {vocabulary: steps(vocabulary, options.repeats) for vocabulary in VOCABULARIES}
    table = Table(title="A drafter step by objective, one thread")
    table.add_column("drafter.loss")
    for vocabulary in VOCABULARIES:
        table.add_column(f"CPU s, vocabulary {vocabulary:,}", justify="right")
        table.add_column("ratio", justify="right")
    for name in LOSSES:
        figures = [measured[vocabulary][name] for vocabulary in VOCABULARIES]
        table.add_row(name, *(text for each in figures for text in (f"{each['cpu_seconds']:.3f}", f"{each['ratio']:.2f}")))
    console.print(table)
    target = target_pass(4 * options.repeats)
    console.print(
        f"target (qwen3-tiny, {target['layers']} of {target['layers_with_last_state']} layers captured by the drafter): its pass takes "
        f"{target['ratio']:.2f}x with its last state, a token's features {target['bytes_ratio']:.2f}x"
    )
    if options.json:
        print(json.dumps({"steps": measured, "target": target}))


if __name__ == "__main__":
    main()
