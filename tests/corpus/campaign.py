"""The whole corpus: sound things made once, every case made from them, every case taken through its door."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from unittest import mock

import orjson
import yaml

from dflash.config import build_config
from dflash.data import prepare as prepare_module
from dflash.data import tokenizer as tokenizer_module
from tests.corpus.cases import Case, Maker, Outcome, run
from tests.corpus.runs import eval_cases, import_cases, plan_cases, report_cases, train_cases
from tests.corpus.text import prepare_cases

DOORS: dict[str, Maker] = {
    "prepare": prepare_cases,
    "plan": plan_cases,
    "train": train_cases,
    "import": import_cases,
    "report": report_cases,
    "eval": eval_cases,
}
_WORDS = "the run plans its batches and trains a drafter on hidden states of the target".split()


@dataclass(frozen=True)
class Result:
    """A case and what became of it; `wrong` says how that differs from what is right, empty when it does not."""

    case: Case
    outcome: Outcome
    wrong: str


def make_sound(folder: Path) -> Path:
    """A prepared data set, its config, a short run on it with its console, and the drafter exported."""
    from dflash.data.options import PrepareOptions
    from dflash.pipeline.train import drive_run
    from dflash.runs.folder import create_run
    from dflash.serving.checkpoint import find_drafter
    from dflash.serving.export import export_drafter

    draws = random.Random(0)
    with (folder / "chats.jsonl").open("w") as file:
        for _ in range(24):
            said = [" ".join(draws.choices(_WORDS, k=draws.randint(4, 20))) for _ in range(2)]
            turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), said, strict=True)]
            file.write(json.dumps({"messages": turns}) + "\n")
    prepare_module.prepare([folder / "chats.jsonl"], "qwen3-tiny", folder / "data", options=PrepareOptions(workers=1))
    tree = {
        "data": {"path": str(folder / "data"), "holdout": 4},
        "target": {"path": "qwen3-tiny"},
        "drafter": {"layers": 1, "feature_layers": 2, "block_size": 4, "anchors": 4},
        "batching": {"token_budget": 200},
        "pipeline": {"device": "cpu", "threads": 1},
        "optim": {"accumulate": 2, "epochs": 12, "max_steps": 40},
        "telemetry": {"log_every": 0.001, "sample_every": 0.5},
        "checkpoint": {"every": 0},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    training = create_run(folder / "runs", "run", build_config(tree))
    lines: list[str] = []
    drive_run(training, lines.append)
    (training.path / "console.log").write_text("\n".join(lines) + "\n")
    export_drafter(find_drafter(str(training.path), folder / "runs", lines.append), folder / "drafter")
    return folder


def results(door: str, folder: Path, sound: Path) -> Iterator[Result]:
    """Every case of one door, taken through it."""
    folder.mkdir()
    cases = list(DOORS[door](folder, sound))
    loading = lru_cache(maxsize=None)(tokenizer_module.load_tokenizer)
    with mock.patch.object(prepare_module, "load_tokenizer", lambda name: loading(str(name))):
        for case in cases:
            outcome = run(case)
            yield Result(case, outcome, _wrong(case, outcome))


def _wrong(case: Case, outcome: Outcome) -> str:
    if outcome.verdict == "failed":
        return outcome.told
    if outcome.verdict != case.expected:
        return f"{outcome.verdict} in the place of {case.expected}: {outcome.told}"
    if case.rejected is None:
        return ""
    listed = Path(case.words[case.words.index("--out") + 1]) / "rejected.jsonl"
    rows = [orjson.loads(line) for line in listed.read_bytes().splitlines()]
    lines = tuple(row["line"] for row in rows)
    if lines != case.rejected:
        return f"rejected are the lines {lines} in the place of {case.rejected}: {rows}"
    if any(not row["reason"] or set(row) != {"file", "line", "reason"} for row in rows):
        return f"a row without its reason: {rows}"
    return "" if not rows or "to keep them" in outcome.told else f"no remedy told: {outcome.told}"
