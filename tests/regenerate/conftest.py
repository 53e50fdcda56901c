from __future__ import annotations

import json
import random

import pytest
import torch

from dflash.data.tokenizer import load_tokenizer
from dflash.regenerate.chat_format import ChatFormat
from dflash.serving.cached_target import DecodingTarget
from tests.conftest import WORDS

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def form():
    return ChatFormat(load_tokenizer("qwen3-tiny"))


@pytest.fixture(scope="session")
def shipped_target():
    """A shipped target, loaded once a session."""
    loaded = {}

    def load(name):
        if name not in loaded:
            loaded[name] = DecodingTarget.load(name, layer_ids=[])
        return loaded[name]

    return load


def chat_rows(count, turns=1, seed=0):
    """Chats of random words, some with a system message and several turns."""
    draws = random.Random(seed)

    def words():
        return " ".join(draws.choices(WORDS, k=draws.randint(2, 25)))

    rows = []
    for number in range(count):
        messages = [{"role": "system", "content": "Answer briefly."}] if number % 3 == 0 else []
        for _ in range(draws.randint(1, turns)):
            messages += [{"role": "user", "content": words()}, {"role": "assistant", "content": words()}]
        rows.append({"messages": messages, "source": f"row {number}"})
    return rows


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
