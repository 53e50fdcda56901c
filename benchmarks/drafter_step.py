"""One drafter step against a plain implementation, and how time and memory grow.

Rerun:  OMP_NUM_THREADS=1 python benchmarks/drafter_step.py [--repeats R] [--skip-growth] [--json]

The shape: hidden 256, intermediate 768, 8 heads, 2 kv heads, head_dim 32, 5 layers, vocabulary 8,192, 5 captured layers, one
conversation of 512 tokens, 64 anchors x 16, float32, one thread. A step is forward, backward, clipping and AdamW. Ours is
`DrafterTrainer.accumulate` + `apply_step`; the other is benchmarks/plain_drafter.py: one dense mask over [context ; all blocks], logits of
all slots, autograd. Both start from the same weights, see the same anchors, and their losses are printed to agree. The
two take turns in one process, and medians of CPU seconds are compared, so another job on the machine disturbs little.

Growth: each point runs in a process of its own, one step to warm up and two measured; memory is the process's peak
while stepping, PyTorch itself (some 300 MiB), weights and optimiser state included.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs as a script from anywhere

from benchmarks.plain_drafter import PlainDrafter, PlainSizes, plain_loss
from dflash.config import RunConfig
from dflash.data.rows import TokenRows
from dflash.model.anchors import draw_anchors
from dflash.model.trainer import DrafterTrainer

LR = 6e-4
CLEAR_PEAK = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Shape:
    """One point: what grows. The other sizes stand in the module's text."""

    context: int = 512
    anchors: int = 64
    vocabulary: int = 8192
    hidden: int = 256
    block_size: int = 16


GROWTH = {
    "anchors": [Shape(anchors=count) for count in (16, 64, 256)],
    "context": [Shape(context=length) for length in (512, 2048, 8192)],
    "vocabulary": [Shape(vocabulary=size) for size in (8192, 32_768, 131_072)],
}


def config_for(shape: Shape, folder: Path) -> RunConfig:
    """A run around a target folder that holds nothing but what a drafter takes from it."""
    sizes = {
        "model_type": "qwen3", "hidden_size": shape.hidden, "intermediate_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": shape.vocabulary, "rope_theta": 1e4,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(sizes))
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "model.embed_tokens.weight": torch.randn(shape.vocabulary, shape.hidden, generator=generator),
        "lm_head.weight": torch.randn(shape.vocabulary, shape.hidden, generator=generator) * 0.1,
        "model.norm.weight": torch.ones(shape.hidden),
    }
    save_file(tensors, folder / "model.safetensors")
    return RunConfig.model_validate(
        {
            "data": {"path": "none"},
            "target": {"path": str(folder)},
            "drafter": {"block_size": shape.block_size, "anchors": shape.anchors, "mask_token_id": shape.vocabulary - 1},
        }
    )


def conversation(shape: Shape) -> tuple[TokenRows, torch.Tensor]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, shape.vocabulary - 1, shape.context).astype(np.int32)
    rows = TokenRows(np.array([7]), tokens, np.ones(shape.context, np.bool_), np.array([0, shape.context]))
    return rows, torch.randn(shape.context, 5 * shape.hidden, generator=torch.Generator().manual_seed(1))


def our_step(trainer: DrafterTrainer, rows: TokenRows, features: torch.Tensor) -> Callable[[], float]:
    def step() -> float:
        trainer.accumulate(rows, features, epoch=0)
        return trainer.apply_step(LR).loss

    return step


def plain_step(trainer: DrafterTrainer, rows: TokenRows, features: torch.Tensor) -> Callable[[], float]:
    """The plain drafter with the same first weights, anchors and optimiser settings."""
    shape, optim = trainer.shape, trainer.config.optim
    sizes = PlainSizes(
        shape.hidden_size, shape.intermediate_size, shape.heads, shape.kv_heads, shape.head_dim, len(shape.target_layer_ids),
        shape.block_size, shape.mask_token_id, (None,) * shape.layers, theta=shape.rope.theta,
    )  # fmt: skip
    model = PlainDrafter(sizes)
    model.load_state_dict(trainer.drafter.state_dict())
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    norms = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": optim.weight_decay}, {"params": norms, "weight_decay": 0.0}],
        lr=LR, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True,
    )  # fmt: skip
    anchors = draw_anchors(rows, budget=trainer.config.drafter.anchors, seed=optim.seed, epoch=0)
    positions = torch.from_numpy(anchors.position)[None]
    tokens = torch.from_numpy(rows.tokens.astype(np.int64))[None]
    mask = torch.from_numpy(rows.loss_mask)[None]
    embedding, head = trainer._embedding, trainer._head

    def step() -> float:
        loss_sum, weight_sum = plain_loss(
            model, features[None], tokens, mask, torch.tensor([tokens.shape[1]]), positions, torch.ones_like(positions, dtype=torch.bool),
            embedding, head, shape.gamma,
        )  # fmt: skip
        loss = loss_sum / weight_sum
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def timed(step: Callable[[], float]) -> tuple[float, float]:
    """CPU seconds and loss of one step."""
    started = time.process_time()
    loss = step()
    return time.process_time() - started, loss


def race(repeats: int) -> dict[str, float]:
    """Both in turns at the record's shape."""
    with tempfile.TemporaryDirectory() as folder:
        shape = Shape()
        trainer = DrafterTrainer(config_for(shape, Path(folder)))
        rows, features = conversation(shape)
        plain, ours = plain_step(trainer, rows, features), our_step(trainer, rows, features)
        turns = [(timed(ours), timed(plain)) for _ in range(repeats + 1)][1:]
    our_seconds = statistics.median(mine[0] for mine, _ in turns)
    plain_seconds = statistics.median(other[0] for _, other in turns)
    return {
        "ours_cpu_seconds": our_seconds,
        "plain_cpu_seconds": plain_seconds,
        "ratio": our_seconds / plain_seconds,
        "largest_loss_difference": max(abs(mine[1] - other[1]) for mine, other in turns),
        "ours_peak_mib": point("ours", shape)["peak_mib"],
        "plain_peak_mib": point("plain", shape)["peak_mib"],
    }


def point(which: str, shape: Shape) -> dict[str, float]:
    """CPU seconds and peak memory of one implementation at one shape, in a fresh process."""
    command = [sys.executable, __file__, "--point", which, json.dumps(asdict(shape))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def measure_here(which: str, shape: Shape) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = DrafterTrainer(config_for(shape, Path(folder)))
        rows, features = conversation(shape)
        step = (our_step if which == "ours" else plain_step)(trainer, rows, features)
        forget_peak()
        seconds = [timed(step)[0] for _ in range(3)][1:]
    return {"cpu_seconds": min(seconds), "peak_mib": peak_mib()}


def forget_peak() -> None:
    """Start the peak anew, where Linux lets us: a child begins with its parent's, and loading has one of its own."""
    if CLEAR_PEAK.exists():
        CLEAR_PEAK.write_text("5")


def peak_mib() -> float:
    if CLEAR_PEAK.exists():
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def growth(console: Console) -> list[dict[str, object]]:
    points: list[dict[str, object]] = []
    for grows, shapes in GROWTH.items():
        for shape in shapes:
            console.print(f"growth: {grows} {getattr(shape, grows):,}", style="dim")
            both = {f"{which}_{figure}": value for which in ("ours", "plain") for figure, value in point(which, shape).items()}
            points.append({"grows": grows, **asdict(shape), **both})
    return points


def show(raced: dict[str, float], points: list[dict[str, object]], console: Console) -> None:
    table = Table(title="One step: 64 anchors x 16, context 512, vocabulary 8,192, one thread")
    for name in ("", "CPU seconds", "peak MiB"):
        table.add_column(name, justify="right" if name else "left")
    for which, label in (("ours", "dflash"), ("plain", "plain (dense mask, all logits)")):
        table.add_row(label, f"{raced[f'{which}_cpu_seconds']:.3f}", f"{raced[f'{which}_peak_mib']:.0f}")
    console.print(table)
    console.print(f"ratio {raced['ratio']:.3f}; losses agree to {raced['largest_loss_difference']:.1e} nats over the steps raced")
    if not points:
        return
    table = Table(title="Growth (one of the three at a time)")
    for name in ("grows", "context", "anchors", "vocabulary", "CPU s", "plain CPU s", "ratio", "peak MiB", "plain peak MiB"):
        table.add_column(name, justify="left" if name == "grows" else "right")
    for row in points:
        ours, plain = float(str(row["ours_cpu_seconds"])), float(str(row["plain_cpu_seconds"]))
        table.add_row(
            str(row["grows"]), *(f"{row[name]:,}" for name in ("context", "anchors", "vocabulary")),
            f"{ours:.2f}", f"{plain:.2f}", f"{ours / plain:.2f}", f"{row['ours_peak_mib']:.0f}", f"{row['plain_peak_mib']:.0f}",
        )  # fmt: skip
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="turns of the race, after one to warm up")
    parser.add_argument("--skip-growth", action="store_true", help="race only")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--point", nargs=2, metavar=("ours|plain", "SHAPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.point:
        print(json.dumps(measure_here(options.point[0], replace(Shape(), **json.loads(options.point[1])))))
        return
    raced = race(options.repeats)
    points = [] if options.skip_growth else growth(Console(stderr=True))
    show(raced, points, Console(width=132))
    if options.json:
        print(json.dumps({**raced, "growth": points}))


if __name__ == "__main__":
    main()
