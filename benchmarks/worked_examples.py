"""The worked examples of docs/examples: logs of the field record's two regressions, and the post-mortems `dflash report` writes of them.

    python -m benchmarks.worked_examples [--out docs/examples]

`shuffle`: batches sorted by length, then shuffled, on the record's machine as it was then (targets the bottleneck). Both logs are simulated.
`round-robin`: the log before is simulated (bucketed batches, random pulls); the log after is the record's three lines, as they were printed.
Beside each log stand the commands that make a run and a report of it. With --html the pages are written too (1.5 MB each).
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import tempfile
from pathlib import Path

from benchmarks.injected_faults import HEALTHY, Machine, simulate_run
from dflash.importing.command import import_logs
from dflash.report.markdown import render_markdown
from dflash.report.page import write_document, write_page
from dflash.report.postmortem import investigate
from dflash.report.sections import postmortem_page
from dflash.runs.folder import RunFolder

RECORD_LINES = (
    "[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.31b/s dft=0.13b/s (5.4Ktok/s) | q_pre=[178] q_hs=[13] "
    "q_hsb=[0, 0, 0, 1, 1, 11] | epoch~0.00 ETA=13.5d\n"
    "[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.31b/s dft=0.15b/s (6.0Ktok/s) | q_pre=[199] q_hs=[13] "
    "q_hsb=[0, 0, 0, 1, 1, 11] | epoch~0.00 ETA=13.6d\n"
    "[2m] step=1 loss=--- acc=--- streak=--- lr=--- noise=0.0000 | tgt=0.30b/s dft=0.14b/s (5.7Ktok/s) | q_pre=[221] q_hs=[15] "
    "q_hsb=[0, 1, 0, 1, 2, 11] | epoch~...\n"
)
BUCKETS = "batching.boundaries=[0,770,1216,1728,2432,3296,8192]"
PART_1 = dataclasses.replace(
    HEALTHY,
    target_per_padded_token=1.45e-4,
    target_per_length_squared=4.4e-9,
    drafter_per_row=0.02,
    drafter_per_token=6e-5,
    drafter_metrics=0.5,
)
"""Targets that give the record's 32 Ktok/s when nothing is padded, and drafters that keep up."""
LOG_SETTINGS = ("telemetry.log_every=10", BUCKETS)


def main() -> None:
    """Write logs and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/examples"))
    parser.add_argument("--html", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_logs(arguments.out)
    for name in ("shuffle", "round-robin"):
        write_report(arguments.out, name, html=arguments.html)


def write_logs(out: Path) -> None:
    """The four logs."""
    sorted_batches = Machine(PART_1, (*LOG_SETTINGS, "batching.strategy=sorted", "batching.order=random"))
    shuffled = Machine(PART_1, (*LOG_SETTINGS, "batching.strategy=shuffled", "batching.order=random"))
    bucketed = Machine(HEALTHY, (*LOG_SETTINGS, "batching.strategy=bucketed", "batching.order=random", "pool.policy=random"))
    for name, machine, batches in (
        ("shuffle-before", sorted_batches, 1_200),
        ("shuffle-after", shuffled, 1_200),
        ("round-robin-before", bucketed, 320),
    ):
        with tempfile.TemporaryDirectory() as folder:
            lines: list[str] = []
            simulate_run(Path(folder), name, machine, batches=batches, seed=1, show=lines.append)
        (out / f"{name}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "round-robin-after.log").write_text(RECORD_LINES, encoding="utf-8")


def write_report(out: Path, name: str, *, html: bool) -> None:
    """What `dflash import` of both logs and `dflash report after --baseline before` write."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for side in ("before", "after"):
            log = Path(folder) / f"{name}-{side}.log"
            shutil.copy(out / log.name, log)
            import_logs([log], Path(folder) / f"{name}-{side}")
            runs[side] = Path(folder) / f"{name}-{side}"
        page = postmortem_page(investigate(RunFolder(runs["after"]), baseline=RunFolder(runs["before"])))
        text = render_markdown(page).replace(folder.replace("_", "\\_"), "runs").replace(folder, "runs")
    commands = "\n".join(f"dflash import docs/examples/{name}-{side}.log --out runs/{name}-{side}" for side in ("before", "after"))
    commands += f"\ndflash report runs/{name}-after --baseline runs/{name}-before --out {name}.md"
    write_document(out / f"{name}.md", f"{text}\nMade by\n\n```\n{commands}\n```\n")
    if html:
        write_page(out / f"{name}.html", page)


if __name__ == "__main__":
    main()
