"""Loading a tokenizer: what is refused, and what its fingerprint depends on."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dflash.data.tokenizer import TextTokenizer, fingerprint_of, load_tokenizer
from dflash.errors import RefusedInput
from tests.data.conftest import make_tokenizer


def test_tokenises_as_transformers_does(tokenizer: TextTokenizer, tokenizer_folder: Path) -> None:
    whole = AutoTokenizer.from_pretrained(tokenizer_folder)
    text = "<|im_start|>user\nthe fox <think>\u00e9\U0001f98a</think><|im_end|>"
    assert pickle.loads(pickle.dumps(tokenizer)).backend().encode(text, add_special_tokens=False).ids == whole.encode(
        text, add_special_tokens=False
    )
    assert tokenizer.vocab_size == len(whole)
    assert tokenizer.special_ids["eos_token"] == whole.eos_token_id


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": "{}"}, {"tokenizer.json": "{", "tokenizer_config.json": "[]"}])
def test_folder_without_usable_tokenizer_is_refused_by_name(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RefusedInput, match=f"{tmp_path.name}: no tokenizer could be loaded"):
        load_tokenizer(tmp_path)


def test_slow_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "a"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CanineTokenizer"}))
    with pytest.raises(RefusedInput, match="a slow one"):
        load_tokenizer(tmp_path)


def test_fingerprint_follows_the_vocabulary_and_not_the_spelling(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    tree = json.loads(tokenizer.core)
    respelled = json.dumps({**tree, "decoder": None, "padding": None}, indent=3)
    assert fingerprint_of(respelled) == tokenizer.fingerprint
    tree["model"]["merges"] = [" ".join(pair) for pair in tree["model"]["merges"]]
    assert fingerprint_of(json.dumps(tree)) == tokenizer.fingerprint
    tree["added_tokens"][0]["content"] = "<|other|>"
    assert fingerprint_of(json.dumps(tree)) != tokenizer.fingerprint


def test_same_tokenizer_in_another_folder_has_the_same_fingerprint(
    tokenizer: TextTokenizer, tokenizer_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tokenizer_folder, tmp_path / "copy")
    assert load_tokenizer(tmp_path / "copy").fingerprint == tokenizer.fingerprint
    assert load_tokenizer(make_tokenizer(tmp_path / "same", None)).fingerprint == tokenizer.fingerprint


def test_name_that_is_neither_folder_nor_shipped_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="no such folder"):
        load_tokenizer(tmp_path / "gone")
    with pytest.raises(RefusedInput, match="did you mean qwen3-tiny"):
        load_tokenizer("qwen3-tny")


def test_shipped_targets_share_one_tokenizer() -> None:
    assert load_tokenizer("qwen3-tiny").fingerprint == load_tokenizer("qwen3_5-tiny").fingerprint
