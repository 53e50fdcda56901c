"""The shipped targets: found by name, small, loadable, and trained."""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash.data.documented import pairs_of, read_source
from dflash.errors import RefusedInput
from dflash.targets import SHIPPED, shipped_target

CHAT = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So: é\n"}, {"role": "user", "content": "And?"}]
LOSS_AT_MOST = 4.0
"""Nats a token; uniform is 7.62, counting tokens gives 6.5."""
RENDERED = "<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\nSo: é\n<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"


@pytest.fixture(scope="module", params=SHIPPED)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return AutoModelForCausalLM.from_pretrained(shipped_target(name), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(name):
    return AutoTokenizer.from_pretrained(shipped_target(name))


def test_a_folder_with_a_config_is_taken_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert shipped_target(str(tmp_path)) == tmp_path


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(RefusedInput, match=r"qwen3-tyni: did you mean qwen3-tiny\?.*qwen3-tiny, qwen3_5-tiny"):
        shipped_target("qwen3-tyni")


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(RefusedInput, match=r"no config\.json"):
        shipped_target(str(tmp_path))


def test_each_folder_is_at_most_5_mb_and_says_what_loss_was_reached(name):
    files = [file for file in shipped_target(name).iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 4.9e6
    note = (shipped_target(name) / "README.md").read_text()
    assert "uniform" in note
    assert "unigram" in note
    assert "steps" in note


def test_both_targets_share_one_tokenizer():
    one, other = ((shipped_target(name) / "tokenizer.json").read_bytes() for name in SHIPPED)
    assert one == other


def test_the_chat_template_renders_chatml_with_and_without_the_generation_prompt(tokenizer):
    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == RENDERED
    assert tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True) == RENDERED + "<|im_start|>assistant\n"


def test_one_template_marks_the_assistants_tokens_and_one_does_not(name, tokenizer):
    assert ("{% generation %}" in tokenizer.chat_template) == (name == "qwen3_5-tiny")
    if name == "qwen3_5-tiny":
        encoded = tokenizer.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
        marked = [t for t, m in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if m]
        assert tokenizer.decode(marked) == "So: é\n<|im_end|>"


def test_special_tokens_are_single_ids_inside_the_vocabulary(tokenizer, model):
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")}
    assert sorted(ids.values()) == [0, 1, 2, 3]
    assert tokenizer.mask_token_id == ids["<|mask|>"]
    assert tokenizer.eos_token_id == ids["<|im_end|>"]
    assert tokenizer.pad_token_id == ids["<|endoftext|>"]
    assert tokenizer.encode("<|im_start|>") == [ids["<|im_start|>"]]
    assert len(tokenizer) == model.config.vocab_size == model.get_input_embeddings().num_embeddings
    assert set(model.generation_config.eos_token_id) == {ids["<|im_end|>"], ids["<|endoftext|>"]}


@pytest.mark.parametrize(
    "text", ["def f(x):\n\treturn x ** 2  # ²\r\n", "  two  spaces\n\n\n", "日本語 🙂 e\u0301", "1234567890", "\x00\x7f"]
)
def test_any_text_comes_back_from_its_tokens(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def real_chats() -> list[list[dict[str, str]]]:
    chats = []
    for name in ("heapq", "textwrap", "shutil"):
        text = read_source(Path(sysconfig.get_path("stdlib")) / f"{name}.py")
        assert text is not None
        for pair in (pairs_of(text, name) or [])[:6]:
            chats.append([{"role": "user", "content": pair.request}, {"role": "assistant", "content": pair.answer}])
    return chats


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_loss_on_real_chats_shows_trained_weights(name, tokenizer, dtype):
    model = AutoModelForCausalLM.from_pretrained(shipped_target(name), dtype=dtype).eval()
    assert {p.dtype for p in model.parameters()} <= {dtype, torch.float32}
    total = count = 0.0
    for chat in real_chats():
        ids = torch.tensor([tokenizer.encode(tokenizer.apply_chat_template(chat, tokenize=False))[:512]])
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits.float()
        total += float(torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    assert count > 2000
    assert total / count < LOSS_AT_MOST < math.log(2048) / 1.5


def test_greedy_generation_runs_and_ends(tokenizer, model):
    prompt = tokenizer.apply_chat_template(real_chats()[0][:1], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
    assert 0 < out.shape[1] - prompt["input_ids"].shape[1] <= 12
    assert answer.startswith(("def", "@", "class"))
