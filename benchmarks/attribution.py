"""How often `dflash explain` names the cause that was injected, both of two, and none where there is none.

    OMP_NUM_THREADS=1 python -m benchmarks.attribution [--seeds 10] [--json FILE]

Ten faults and their 45 pairs, a healthy run before and a faulty one after, each with seeds of their own; and pairs of healthy runs. A fault
counts only where it can be seen: by itself it must slow the simulated run by at least 7%. Of a pair, a fault that makes no difference
beside the other one (mending it would bring less than 5%, and alone it would cost less than 5%) is not asked for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.injected_faults import FAULTS, Machine, simulate_run
from dflash.analysis.attribution import Attribution, attribute
from dflash.analysis.eventlog import EventLog, load_events

WARM_UP_SECONDS = 120.0


def explain(before: EventLog, after: EventLog) -> Attribution:
    """Whole runs against each other, their first two minutes left out."""
    return attribute(before, (WARM_UP_SECONDS, before.seconds), after, (WARM_UP_SECONDS, after.seconds))


def run(folder: Path, name: str, machine: Machine, seed: int) -> EventLog:
    """One simulated run, loaded."""
    return load_events(simulate_run(folder, f"{name}-{seed}".replace(" ", "_"), machine, seed=seed))


def main() -> None:
    """Run it all and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        healthy = [run(folder, "healthy", Machine(), seed) for seed in range(2 * arguments.seeds)]
        console = Console()
        singles, drops = _singles(folder, healthy, arguments.seeds)
        pairs = _pairs(folder, healthy, arguments.seeds)
        accused = Counter(
            "named" if (found := explain(healthy[left], healthy[right])).causes else found.verdict
            for left, right in itertools.islice(itertools.permutations(range(len(healthy)), 2), 20 * arguments.seeds)
        )
    table = Table("fault", "drop", "named", "also or else named", title=f"one fault, {arguments.seeds} seeds each")
    for fault, answers in singles.items():
        right = sum(fault in answer for answer in answers)
        others = Counter(name for answer in answers for name in answer if name != fault)
        table.add_row(
            fault, f"{drops[fault]:.0%}", f"{right}/{len(answers)}", ", ".join(f"{name} x{n}" for name, n in others.items())
        )
    console.print(table)
    right = sum(fault in answer for fault, answers in singles.items() for answer in answers)
    exact = sum(answer == [fault] for fault, answers in singles.items() for answer in answers)
    total = sum(len(answers) for answers in singles.values())
    first = sum(answer[:1] == [fault] for fault, answers in singles.items() for answer in answers)
    both = sum(set(asked) <= set(answer) for asked, answer in pairs)
    wrong = Counter(tuple(asked) for asked, answer in pairs if not set(asked) <= set(answer))
    extra = sum(bool(set(answer) - set(asked)) for asked, answer in pairs)
    quiet = 1 - accused["named"] / sum(accused.values())
    console.print(f"one fault: named {right}/{total}, named first {first}/{total}, named and nothing else {exact}/{total}")
    console.print(
        f"two faults: both named {both}/{len(pairs)}; something else named too {extra}/{len(pairs)}; missed: {dict(wrong)}"
    )
    console.print(
        f"healthy pairs: no cause named {quiet:.1%} of {sum(accused.values())} ({dict(accused)}); {time.perf_counter() - began:.0f} s in all"
    )
    if arguments.json:
        result = {
            "one": right / total,
            "one_exact": exact / total,
            "two": both / len(pairs),
            "healthy": quiet,
            "seeds": arguments.seeds,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _singles(folder: Path, healthy: list[EventLog], seeds: int) -> tuple[dict[str, list[list[str]]], dict[str, float]]:
    answers: dict[str, list[list[str]]] = {}
    drops = {}
    for fault, change in track(FAULTS.items(), "one fault", transient=True):
        found = [explain(healthy[seed], run(folder, fault, change(Machine()), 1_000 + seed)) for seed in range(seeds)]
        answers[fault] = [[cause.factor for cause in each.causes] for each in found]
        drops[fault] = sum(each.change for each in found) / seeds
    return answers, drops


def _pairs(folder: Path, healthy: list[EventLog], seeds: int) -> list[tuple[list[str], list[str]]]:
    """(faults asked for, causes named) for every pair of faults and seed."""
    results = []
    for one, other in track(list(itertools.combinations(FAULTS, 2)), "two faults", transient=True):
        for seed in range(seeds):
            found = explain(healthy[seed], run(folder, f"{one}+{other}", FAULTS[other](FAULTS[one](Machine())), 2_000 + seed))
            effects = {cause.factor: (cause.alone, cause.relief) for cause in found.all_factors}
            asked = [
                fault for fault in (one, other) if fault not in effects or effects[fault][0] <= -0.05 or effects[fault][1] >= 0.05
            ]
            results.append((asked, [cause.factor for cause in found.causes]))
    return results


if __name__ == "__main__":
    main()
