"""What tests of several rooms share: a small prepared data set, and the settings of a run on it that takes seconds."""

import json
import random

import pytest
from hypothesis import settings

from dflash.config import build_config

settings.register_profile("project", deadline=None)  # speed is judged in benchmarks/, never by a test on a busy machine
settings.load_profile("project")

WORDS = "the run plans its batches and trains a drafter on hidden states of the target while the pool stays bounded".split()


@pytest.fixture(scope="session")
def token_folder(tmp_path_factory):
    """Sixty short chats, prepared with the tokenizer of qwen3-tiny."""
    from dflash.data.options import PrepareOptions
    from dflash.data.prepare import prepare

    folder = tmp_path_factory.mktemp("tokens")
    draws = random.Random(0)
    with (folder / "chats.jsonl").open("w") as file:
        for _ in range(60):
            turns = [
                {"role": role, "content": " ".join(draws.choices(WORDS, k=draws.randint(4, 30)))} for role in ("user", "assistant")
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    prepare([folder / "chats.jsonl"], "qwen3-tiny", folder / "data", options=PrepareOptions(workers=1), progress=False)
    return folder / "data"


@pytest.fixture
def small_config(token_folder):
    """Build the config of a run of a few seconds: `small_config("optim.epochs=2", ...)`."""

    def build(*settings):
        return build_config(
            {
                "data": {"path": str(token_folder), "holdout": 8},
                "target": {"path": "qwen3-tiny"},
                "drafter": {"layers": 1, "feature_layers": 2, "block_size": 4, "anchors": 4},
                "batching": {"token_budget": 400},
                "pipeline": {"device": "cpu", "threads": 1},
                "optim": {"accumulate": 3, "epochs": 1, "lr": 1e-3},
                "telemetry": {"log_every": 1, "sample_every": 0.5},
                "checkpoint": {"every": 2},
            },
            list(settings),
        )

    return build
