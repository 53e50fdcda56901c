"""The whole loop on a CPU: text to optimiser steps, real tokens per CPU second.

Rerun:  OMP_NUM_THREADS=1 python benchmarks/whole_loop.py [--json]

The shape is the one a peer was run at: a target of 12 layers (hidden 256, intermediate 768, 8 heads, 2 kv heads, head_dim 32,
vocabulary 8,192, random weights), a drafter of 5 such layers on 5 captured ones, 48 chats cut at 512 tokens, 2 rows a batch, 64 anchors
x 16 a chat, one step a batch, one thread. The peer (Automodel, the one trainer found to run on a CPU) did 24 steps in 64 CPU seconds: 241
real tokens per CPU second, with 63% of the padded tokens real; that was taken on another day, so only its size can be compared.
Ours is counted twice: with the peer's batches (rows in the order of the file), and with ours (jittered).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash.config import build_config
from dflash.data.options import PrepareOptions
from dflash.data.prepare import prepare
from dflash.data.sample import write_sample_corpus
from dflash.pipeline.train import drive_run
from dflash.runs.folder import create_run
from dflash.targets import shipped_target
from dflash.telemetry.reader import read_events

PEER_TOKENS_PER_CPU_SECOND = 241
CHATS = 48


def make_target(folder: Path) -> None:
    """A target of the benchmark's shape with random weights; its tokenizer is the shipped one's."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192, hidden_size=256, intermediate_size=768, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=2,
        head_dim=32, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(shipped_target("qwen3-tiny") / name, folder)


def measure(folder: Path, strategy: str) -> dict[str, float]:
    """One epoch of 24 steps on the inline engine."""
    config = build_config(
        {"data": {"path": str(folder / "data")}, "target": {"path": str(folder / "target")}},
        ["drafter.layers=5", "drafter.block_size=16", "drafter.anchors=64", "batching.token_budget=1024", "batching.max_rows=2",
         f"batching.strategy={strategy}", "batching.order=random", "optim.accumulate=1", "optim.epochs=1", "pipeline.device=cpu",
         "pipeline.threads=1", "target.feature_dtype=float32", "checkpoint.every=0"],
    )  # fmt: skip
    run = create_run(folder, strategy, config)
    started = time.process_time()
    outcome = drive_run(run, lambda line: None)
    whole = time.process_time() - started
    steps, batches = read_events(run.events, "step"), read_events(run.events, "batch")
    padded = sum(step["padded_tokens"] for step in steps)
    return {
        "steps": outcome.step,
        "real_tokens": outcome.committed_tokens,
        "real_share": outcome.committed_tokens / padded,
        "cpu_seconds": whole,
        "tokens_per_cpu_second": outcome.committed_tokens / whole,
        "target_seconds": sum(batch["target_seconds"] for batch in batches),
        "drafter_seconds": sum(batch["drafter_seconds"] for batch in batches),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_target(folder / "target")
        write_sample_corpus(folder / "all.jsonl", limit=400, progress=False)
        lines = (folder / "all.jsonl").read_text().splitlines()
        (folder / "chats.jsonl").write_text("\n".join(lines[: CHATS * 2]) + "\n")
        prepare(
            [folder / "chats.jsonl"],
            str(folder / "target"),
            folder / "whole",
            options=PrepareOptions(max_length=512),
            progress=False,
        )
        kept = _first_usable(folder)
        (folder / "kept.jsonl").write_text("\n".join(kept) + "\n")
        prepare(
            [folder / "kept.jsonl"], str(folder / "target"), folder / "data", options=PrepareOptions(max_length=512), progress=False
        )
        rows = {strategy: measure(folder, strategy) for strategy in ("shuffled", "jittered")}
    table = Table(
        "batches",
        "steps",
        "real tokens",
        "real share",
        "CPU s",
        "real tokens / CPU s",
        "against the peer's 241",
        "target s",
        "drafter s",
    )
    for strategy, row in rows.items():
        table.add_row(
            strategy, f"{row['steps']}", f"{row['real_tokens']:,}", f"{row['real_share']:.0%}", f"{row['cpu_seconds']:.1f}",
            f"{row['tokens_per_cpu_second']:.0f}", f"{row['tokens_per_cpu_second'] / PEER_TOKENS_PER_CPU_SECOND:.2f}x",
            f"{row['target_seconds']:.1f}", f"{row['drafter_seconds']:.1f}",
        )  # fmt: skip
    Console(width=140).print(table)
    if arguments.json:
        print(json.dumps(rows))


def _first_usable(folder: Path) -> list[str]:
    """The first chats that `prepare` kept, so that the data set has exactly `CHATS` rows."""
    rejected = folder / "whole" / "rejected.jsonl"
    bad = {json.loads(line)["line"] for line in rejected.read_text().splitlines()} if rejected.exists() else set()
    lines = (folder / "chats.jsonl").read_text().splitlines()
    return [line for number, line in enumerate(lines, 1) if number not in bad][:CHATS]


if __name__ == "__main__":
    main()
