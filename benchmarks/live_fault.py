"""The worked example of a fault injected live: docs/examples/live-fault.md, from a real run on this machine.

    python -m benchmarks.live_fault [--out docs/examples] [--html] [--steps 60]

A drafter is trained on sample chats by one target and one drafter on the CPU, in the background. After so many steps the run is told to batch
shuffled rows in the place of rows of like length, as a user would (`dflash control RUN set batching.strategy shuffled`), and goes on for as
many steps again. Then `dflash report RUN --at STEP`. Takes about five minutes; other work on the machine shows in the figures.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from dflash.config import RunConfig, build_config
from dflash.data.quickstart import sample_tokens
from dflash.report.markdown import render_markdown
from dflash.report.page import write_document, write_page
from dflash.report.postmortem import investigate
from dflash.report.sections import postmortem_page
from dflash.runs.control import await_answer, send_command
from dflash.runs.folder import RunFolder
from dflash.runs.launch import launch, wait_until_ended
from dflash.runs.table import describe_run


def run_config(data: Path) -> RunConfig:
    """One target, one drafter, batches of rows of like length."""
    return build_config(
        {
            "data": {"path": str(data), "holdout": 16},
            "target": {"path": "qwen3-tiny"},
            "drafter": {"layers": 1, "feature_layers": 2, "block_size": 8, "anchors": 16},
            "batching": {"strategy": "jittered", "order": "stratified", "token_budget": 8192},
            "pipeline": {"engine": "ray", "device": "cpu", "targets": 1, "drafters": 1},
            "optim": {"accumulate": 2, "epochs": 40, "lr": 2e-3},
            "telemetry": {"sample_every": 1.0, "log_every": 5.0},
        }
    )


def slow_down(run: RunFolder, steps: int) -> int:
    """Let it train, change the batches live, let it train on, stop it; returns the step of the change."""
    wait_for_step(run, steps)
    command = send_command(run, "set", key="batching.strategy", value="shuffled", who="a user")
    changed = int(await_answer(run, command, seconds=120)["step"])
    wait_for_step(run, changed + steps)
    send_command(run, "stop", who="a user")
    wait_until_ended(run)
    return changed


def wait_for_step(run: RunFolder, step: int) -> None:
    """Wait until the run has taken so many steps, or is over."""
    while run.state() == "running" and (describe_run(run)["step"] or 0) < step:
        time.sleep(1)


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/examples"))
    parser.add_argument("--html", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = sample_tokens(Path(folder) / "data", chats=1_500, max_length=2_048)
        run = launch(run_config(data), runs=Path(folder) / "runs", name="live-fault")
        changed = slow_down(run, arguments.steps)
        page = postmortem_page(investigate(run, at_step=changed))
        text = render_markdown(page).replace(folder.replace("_", "\\_"), "").replace(folder, "").replace("/runs/", "runs/")
    write_document(arguments.out / "live-fault.md", f"{text}\nMade by `python -m benchmarks.live_fault`, on two CPU cores.\n")
    if arguments.html:
        write_page(arguments.out / "live-fault.html", page)


if __name__ == "__main__":
    main()
