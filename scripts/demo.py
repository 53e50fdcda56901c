"""The demo: from text on this machine to a trained drafter, through the 5 -> 3 pipeline, in a few minutes on two cores.

Each step prints the command a user would type. It makes a corpus from the documented Python on this machine, prepares it, compares
four ways of batching on it (planned and measured), trains a drafter in the background on 5 targets and 3 drafters, changes settings live,
kills the run and resumes it, exports the drafter and measures it in real speculative decoding beside an untrained one. Last, a run is slowed
down on purpose while it trains, and a post-mortem has to find out why.

Run it with `make demo`; everything it writes is in demo-data/.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path("demo-data")
CONFIG = Path("configs/demo-cpu.yaml")
CHATS = 2_000
SLOWED_STEPS = 40
LARGE_BATCH = "4096"  # tokens: large enough for padding to show
BATCHINGS = (("sorted", "random"), ("shuffled", "random"), ("bucketed", "random"), ("jittered", "stratified"))
console = Console()


def main() -> None:
    """Run the steps in turn."""
    started = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    step("A corpus, with no download: documented Python on this machine, as chats")
    dflash("sample-data", "--out", f"{FOLDER}/chats.jsonl", "--limit", str(CHATS))
    step("Text to tokens: chat template, loss on the answers only")
    dflash("prepare", f"{FOLDER}/chats.jsonl", "--tokenizer", "qwen3-tiny", "--max-length", "1024", "--out", f"{FOLDER}/tokens")
    step("Four ways to batch the same data: planned, and measured for a few steps each")
    compare_batchings()
    step("What the run needs, and what this machine has")
    dflash("doctor", str(CONFIG))
    step("Train in the background: 5 targets -> pool -> 3 drafters")
    train()
    step("Hand the drafter over, and measure it in real speculative decoding on held-out chats")
    dflash("export", "demo", "--out", f"{FOLDER}/drafter")
    dflash("eval", "demo", "--untrained", "--limit", "12", "--max-new-tokens", "48")
    step("Slow a run down while it trains, and ask why it is slow")
    explain_a_slow_down()
    dflash("dashboard", "demo", "--out", f"{FOLDER}/dashboard.html")
    console.print(f"\n[bold]Done in {time.monotonic() - started:.0f} s.[/] Open {FOLDER}/dashboard.html and {FOLDER}/report.html.")


def compare_batchings() -> None:
    """Padding and mix of each plan, and the measured rate of a short run with it."""
    table = Table("batches", "padding efficiency", "mix vr at 8", "mix vr at 32", "measured Ktok/s")
    for strategy, order in BATCHINGS:
        chosen = ("--strategy", strategy, "--order", order)
        plan = quiet("plan", f"{FOLDER}/tokens", *chosen, "--token-budget", LARGE_BATCH, "--window", "8", "--json")
        run = quiet(
            "train", str(CONFIG), "--name", strategy, "--json", *settings(
                f"batching.strategy={strategy}", f"batching.order={order}", "pipeline.engine=inline", "pipeline.targets=1",
                "pipeline.drafters=1", f"batching.token_budget={LARGE_BATCH}", "optim.accumulate=2", "optim.max_steps=12",
                "evaluation.every=0", "data.holdout=0", "checkpoint.every=0",
            ),
        )  # fmt: skip
        mix = ("-" if plan["vr"][window] is None else f"{plan['vr'][window]:.2f}" for window in ("8", "32"))
        rate = run["committed_tokens"] / run["seconds"] / 1_000
        table.add_row(f"{strategy}, {order}", f"{plan['padding_efficiency']:.3f}", *mix, f"{rate:.2f}")
    console.print(table)
    console.print("vr: how uneven windows of so many batches are in length; 1 = as random, below 1 = more even", style="dim")


def train() -> None:
    """Launch, steer, kill, resume, follow to the end."""
    launched = quiet("train", str(CONFIG), "--name", "demo", "--background", "--json")
    steps_until("demo", 12)
    dflash("control", "demo", "set", "pool.policy", "deficit")
    dflash("control", "demo", "set", "batching.boundaries", "[0, 128, 256, 512, 1024]")
    dflash("control", "demo", "set", "pool.policy", "oldest")
    dflash("control", "demo", "checkpoint")
    wait_until(lambda: any((FOLDER / "runs/demo/checkpoints").glob("step-*")))
    console.print(f"\nkill -9 {launched['pid']}: what is in the checkpoint is safe, what came after is done again")
    os.kill(launched["pid"], signal.SIGKILL)
    wait_until(lambda: state("demo") == "crashed")
    dflash("runs")
    dflash("resume", "demo")


def explain_a_slow_down() -> None:
    """Train on batches of like length, switch to shuffled ones live, stop, report."""
    inline = settings(
        "pipeline.engine=inline", "pipeline.targets=1", "pipeline.drafters=1", f"batching.token_budget={LARGE_BATCH}", "optim.accumulate=1",
        "optim.epochs=9", "evaluation.every=0", "data.holdout=0", "checkpoint.every=0", "telemetry.sample_every=1",
    )  # fmt: skip
    quiet("train", str(CONFIG), "--name", "slowed", "--background", "--json", *inline)
    steps_until("slowed", SLOWED_STEPS)
    dflash("control", "slowed", "set", "batching.strategy", "shuffled")
    changed = next(event["step"] for event in events("slowed", "change"))
    steps_until("slowed", changed + SLOWED_STEPS)
    dflash("control", "slowed", "stop")
    wait_until(lambda: state("slowed") == "stopped")
    dflash("report", "slowed", "--at", str(changed), "--out", f"{FOLDER}/report.html")


def events(run: str, kind: str) -> list[dict[str, Any]]:
    """Events of a run, from its files."""
    lines = (line for path in sorted((FOLDER / "runs" / run / "events").glob("*.jsonl")) for line in path.read_text().splitlines())
    return [event for line in lines if (event := json.loads(line))["event"] == kind]


def state(name: str) -> str:
    """What `dflash runs` says of a run."""
    return next(str(run["state"]) for run in quiet("runs", "--json")["runs"] if run["run"] == name)


def steps_until(run: str, steps: int) -> None:
    """Follow a run's console until so many steps are done."""
    log = FOLDER / "runs" / run / "console.log"
    shown = 0

    def look() -> bool:
        nonlocal shown
        lines = log.read_text().splitlines() if log.exists() else []
        for line in lines[shown:]:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        shown = len(lines)
        done = [int(line.partition("step=")[2].split(" ")[0]) for line in lines if line.startswith("[") and "step=" in line]
        return max(done, default=0) >= steps

    wait_until(look)


def wait_until(true: Any, seconds: float = 300.0) -> None:
    """Wait, or say that it did not come."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            sys.exit(f"the demo waited {seconds:.0f} s in vain; see {FOLDER}/runs/*/output.log")
        time.sleep(0.2)


def step(title: str) -> None:
    """A heading."""
    console.rule(f"[bold]{title}", align="left")


def settings(*pairs: str) -> list[str]:
    """`--set` for each."""
    return [word for pair in pairs for word in ("--set", pair)]


def command(*words: str) -> list[str]:
    """The command line, runs in the demo's folder."""
    takes_runs = words[0] in ("train", "resume", "control", "attach", "runs", "export", "eval", "doctor", "dashboard", "report")
    return ["dflash", *words, *(["--runs", f"{FOLDER}/runs"] if takes_runs else [])]


def dflash(*words: str) -> None:
    """Show and run a command."""
    line = command(*words)
    console.print(f"\n$ {' '.join(line)}", style="bold cyan", highlight=False, soft_wrap=True)
    ran = subprocess.run([sys.executable, "-m", *line], check=False)
    if ran.returncode:
        sys.exit(f"the demo stopped: the command above ended with {ran.returncode}")


def quiet(*words: str) -> Any:
    """Run a command and return its JSON."""
    ran = subprocess.run([sys.executable, "-m", *command(*words)], check=False, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"the demo stopped: {' '.join(command(*words))}\n{ran.stderr}")
    return json.loads(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
