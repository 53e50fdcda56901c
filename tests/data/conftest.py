"""A small real byte-level tokenizer, made on the spot."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dflash.data.tokenizer import TextTokenizer, load_tokenizer
from tests.data.templates import THINKING, unmarked

_SPECIAL = ["<|im_start|>", "<|im_end|>", "<|head|>", "<|body|>", "<|eot|>", "<|channel|>", "<s>", "</s>"]
_PLAIN = ["<think>", "</think>", "<tool_response>", "</tool_response>"]
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def make_tokenizer(folder: Path, template: str | None, *, swallowing: bool = False) -> Path:
    """A byte-level BPE of 600 tokens; `swallowing`: its end-of-turn token takes the white space behind it along."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    texts = ["the quick brown fox\n\n\njumps over it.\n\n user assistant system\n", "def one(two):\n    return three\n\n\n"] * 9
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    core.train_from_iterator(texts, trainer)
    special = [AddedToken(text, special=True, normalized=False, rstrip=swallowing and text == "<|im_end|>") for text in _SPECIAL]
    core.add_special_tokens(special)
    core.add_tokens([AddedToken(text, normalized=False) for text in _PLAIN])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<|eot|>")
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a template that thinks and has no markers."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"), unmarked(THINKING))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> TextTokenizer:
    return load_tokenizer(tokenizer_folder)
