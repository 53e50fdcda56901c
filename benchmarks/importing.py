"""Time and memory of `dflash import` on logs of a million lines, the whole command in a process of its own.

    python -m benchmarks.importing [--lines 1000000] [--formats console,megatron,steps,csv,jsonl] [--folder DIR]

The console log is as the field record's: `---` where nothing was sampled, last fields cut off, colours, other output between the lines and torn
into them, restarts. Megatron's has the settings it prints first and warnings between. Bound: 10 s wall a million lines on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dflash.telemetry.console import ConsoleLine, format_line

COMMAND = "from dflash.cli import main; main()"
LINES_A_STEP, SECONDS_A_LINE = 20, 10
OTHER_OUTPUT = (
    "Loading checkpoint shards: 100%|##########| 15/15 [00:42<00:00,  2.81s/it]",
    "WARNING 05-01 12:00:00 [cuda.py:151] Detected different devices in the system",
    "[W501 12:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
)


def console_lines(lines: int) -> Iterator[str]:
    """This trainer's lines: 4% with another's output before them, coloured, cut off, or not ours at all."""
    rng = random.Random(0)
    restart = lines // 2
    for number in range(lines):
        at = number - restart if number >= restart else number
        odd = rng.random()
        if odd < 0.01:
            yield rng.choice(OTHER_OUTPUT)
            continue
        sampled = number % 8 == 0
        histogram = tuple(rng.randint(0, 11) for _ in range(6))
        text = format_line(
            ConsoleLine(
                at * SECONDS_A_LINE, number // LINES_A_STEP + 1, 2 + rng.random() if sampled else None, rng.random() if sampled else None,
                3 * rng.random() if sampled else None, 1e-4 if sampled else None, 0.0, 0.31 + rng.gauss(0, 0.01), 0.14 + rng.gauss(0, 0.01),
                5.7 + rng.gauss(0, 0.3), rng.randint(150, 250), sum(histogram), histogram, number / lines * 6, 1e6 - number / 10,
            )
        )  # fmt: skip
        if odd < 0.02:
            text = f"\x1b[32m{text}\x1b[0m"
        elif odd < 0.03:
            text = text[: len(text) - rng.randint(1, 60)] + "..."
        elif odd < 0.04:
            text = f"{OTHER_OUTPUT[0][:50]}\r{text}"
        yield text


def megatron_lines(lines: int) -> Iterator[str]:
    """Iteration lines after `seq_length`, every hundredth followed by a warning."""
    rng = random.Random(0)
    yield "  seq_length ...................................... 4096"
    for number in range(1, lines):
        if number % 100 == 0:
            yield rng.choice(OTHER_OUTPUT)
            continue
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1.7e9 + 2 * number))
        yield (
            f" [{moment}] iteration {number:8d}/ {lines:8d} | consumed samples: {number * 256:12d} | "
            f"elapsed time per iteration (ms): {1200 + rng.gauss(0, 40):.1f} | throughput per GPU (TFLOP/s/GPU): {400 + rng.gauss(0, 9):.1f} | "
            f"learning rate: {1e-4:.6E} | global batch size: {256:5d} | lm loss: {2 + rng.random():.6E} | loss scale: 1.0 | "
            f"grad norm: {rng.random():.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )


def step_lines(lines: int) -> Iterator[str]:
    """A speed run's lines, every 125th a validation."""
    rng = random.Random(0)
    for number in range(lines):
        loss = f"{'val' if number % 125 == 0 else 'train'}_loss:{3 + rng.random():.4f}"
        yield f"step:{number}/{lines} {loss} train_time:{125 * number + rng.randint(0, 60)}ms step_avg:{125 + rng.random():.2f}ms"


def csv_lines(lines: int) -> Iterator[str]:
    """A table with six columns, one of them of no use."""
    rng = random.Random(0)
    yield "step,wall_time,tokens_per_sec,train/loss,lr,note"
    for number in range(1, lines):
        yield f"{number},{1.7e9 + 2 * number:.1f},{9500 + rng.gauss(0, 300):.1f},{2 + rng.random():.4f},1e-4,{'ok' if number % 9 else ''}"


def jsonl_lines(lines: int) -> Iterator[str]:
    """JSON lines, one value of them nested."""
    rng = random.Random(0)
    for number in range(lines):
        perf = {"tokens_per_sec": round(9500 + rng.gauss(0, 300), 1)}
        yield json.dumps(
            {"_step": number, "_timestamp": 1.7e9 + 2 * number, "perf": perf, "loss": round(2 + rng.random(), 4), "note": "ok"}
        )


LOGS: dict[str, Callable[[int], Iterator[str]]] = {
    "console": console_lines,
    "megatron": megatron_lines,
    "steps": step_lines,
    "csv": csv_lines,
    "jsonl": jsonl_lines,
}


def write_log(path: Path, texts: Iterator[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in texts)


def measure(log: Path, out: Path) -> tuple[float, float, float, dict[str, object]]:
    """Wall seconds, CPU seconds and peak resident MiB of the command, and what it said."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "import", str(log), "--out", str(out), "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"dflash import failed with {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, json.loads(said.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--formats", default=",".join(LOGS), help="comma-separated")
    parser.add_argument("--folder", type=Path, help="where logs and runs are written for a while (default: the system's)")
    asked = parser.parse_args()
    table = Table(
        "format",
        "MB",
        "wall s",
        "CPU s",
        "lines/s",
        "peak MiB",
        "understood",
        "run, MB",
        title=f"dflash import of {asked.lines:,} lines",
    )
    for name in asked.formats.split(","):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            log, out = Path(folder) / f"{name}.log", Path(folder) / "run"
            write_log(log, LOGS[name](asked.lines))
            wall, cpu, peak, said = measure(log, out)
            size = sum(path.stat().st_size for path in Path(folder).rglob("*.jsonl"))
            table.add_row(
                name, f"{log.stat().st_size / 1e6:,.0f}", f"{wall:.1f}", f"{cpu:.1f}", f"{asked.lines / wall:,.0f}", f"{peak:,.0f}",
                f"{said['lines_understood']:,}", f"{size / 1e6:,.0f}",
            )  # fmt: skip
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
