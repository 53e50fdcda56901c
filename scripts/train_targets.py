"""Train the two small targets that ship with the package, from nothing, on the sample corpus of this machine.

    python scripts/train_targets.py --minutes 25                      # both, into dflash/targets/
    python scripts/train_targets.py --only qwen3-tiny --minutes 11 --out elsewhere

They exist so that training, serving and the demo have a frozen target that has learnt something and still runs on a laptop. The recipe:
one byte-level BPE of 2,048 tokens for both; chats cut into chunks, a chunk never holding two chats, so that nothing can leak; batches
of chunks of nearly equal length, padded on the right; the loss on every token. Muon on the projections and AdamW on the rest: on this
corpus, after 0.5M tokens, 4.40 nats against 5.25 with AdamW alone. The schedule runs over TIME, so that a busy machine still ends it
inside the minutes given; the price is that steps, and so weights, differ from run to run. Ctrl-C saves what is there.

Held out are whole source files: nothing of a held-out chat's module is ever trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from dflash.data.sample import write_sample_corpus

VOCABULARY = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
END_OF_TEXT, IM_START, IM_END, MASK = range(4)
WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PHASES = ((0.6, 256, 2048), (0.9, 512, 4096), (1.0, 2048, 4096))
"""(until this share of the time, tokens a chunk, tokens a batch): at first short and many, at last long enough for long chats."""
WARMUP = 0.04
HELD_OUT_CHATS = 200
TOKENIZER_CHATS, TOKENIZER_CHARACTERS = 12_000, 4_000
"""The BPE is trained on so many chats and so much of each message."""

# Tools and calls as the Qwen3 family writes them; a chat without them is plain ChatML.
_TOOLS = (
    "{%- set first = messages[0] %}{%- if tools %}{{- '<|im_start|>system\\n' }}"
    "{%- if first['role'] == 'system' %}{{- first['content'] + '\\n\\n' }}{%- endif %}"
    "{{- '# Tools\\n\\nYou may call one or more functions. Their signatures are within <tools></tools>:\\n<tools>' }}"
    "{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}"
    "{{- '\\n</tools>\\n\\nA call is a JSON object with name and arguments within <tool_call></tool_call>.<|im_end|>\\n' }}{%- endif %}"
)
_SAID = (
    "{%- set said = namespace(text=message['content'] or '') %}"
    "{%- if message['reasoning_content'] %}"
    "{%- set said.text = '<think>\\n' + message['reasoning_content'] + '\\n</think>\\n\\n' + said.text %}{%- endif %}"
    "{%- for call in message['tool_calls'] or [] %}"
    "{%- set said.text = said.text + ('\\n' if said.text else '') + '<tool_call>\\n{\"name\": \"' + call['function']['name'] "
    "+ '\", \"arguments\": ' + (call['function']['arguments'] | tojson) + '}\\n</tool_call>' %}{%- endfor %}"
)
_EACH = "{%- for message in messages %}{%- if not (tools and loop.first and message['role'] == 'system') %}" + _SAID
_ASK = "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
PLAIN_TEMPLATE = _TOOLS + _EACH + "{{- '<|im_start|>' + message['role'] + '\\n' + said.text + '<|im_end|>\\n' }}" + _ASK
MARKED_TEMPLATE = (
    _TOOLS
    + _EACH
    + "{{- '<|im_start|>' + message['role'] + '\\n' }}"
    + "{%- if message['role'] == 'assistant' %}"
    + "{% generation %}{{- said.text + '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}"
    + "{%- else %}{{- said.text + '<|im_end|>\\n' }}{%- endif %}"
    + _ASK
)
TEMPLATES = {"qwen3-tiny": PLAIN_TEMPLATE, "qwen3_5-tiny": MARKED_TEMPLATE}


@dataclass(frozen=True)
class Corpus:
    """Tokenised chats, whole: those trained on and those of held-out source files."""

    train: list[NDArray[np.int32]]
    held_out: list[NDArray[np.int32]]


def build_model(name: str) -> PreTrainedModel:
    """The architecture of one shipped target with fresh weights."""
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": IM_END, "pad_token_id": END_OF_TEXT}
    if name == "qwen3-tiny":
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=VOCABULARY,
                hidden_size=128,
                intermediate_size=384,
                num_hidden_layers=6,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=32,
                max_position_embeddings=32768,
                rope_parameters={"rope_type": "default", "rope_theta": 1e6},
                tie_word_embeddings=True,
                **ids,
            )
        )
    return Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            linear_key_head_dim=16,
            linear_value_head_dim=32,
            linear_num_key_heads=4,
            linear_num_value_heads=4,
            max_position_embeddings=32768,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
            tie_word_embeddings=True,
            **ids,
        )
    )


def train_tokenizer(rows: list[dict[str, Any]]) -> Tokenizer:
    """Byte-level BPE; every text has exactly one way back, since nothing is normalised."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    texts = (message["content"][:TOKENIZER_CHARACTERS] for row in rows[:TOKENIZER_CHATS] for message in row["messages"])
    bpe.train_from_iterator(texts, trainer)
    return bpe


def wrap_tokenizer(bpe: Tokenizer, template: str) -> PreTrainedTokenizerFast:
    """The Hugging Face tokenizer around a BPE, with the chat template of one target."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=SPECIAL[IM_END],
        pad_token=SPECIAL[END_OF_TEXT],
        mask_token=SPECIAL[MASK],
        model_max_length=32768,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer


def read_rows(limit: int) -> list[dict[str, Any]]:
    """The sample corpus of this machine."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        write_sample_corpus(path, limit=limit)
        return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def tokenise(rows: list[dict[str, Any]], bpe: Tokenizer) -> Corpus:
    """Render every chat with the template and split them by source file: one file in fifty is held out."""
    tokenizer = wrap_tokenizer(bpe, PLAIN_TEMPLATE)
    corpus = Corpus([], [])
    for start in range(0, len(rows), 1000):  # all encodings at once would take gigabytes
        part = rows[start : start + 1000]
        texts = tokenizer.apply_chat_template([row["messages"] for row in part], tokenize=False)
        for row, encoding in zip(part, bpe.encode_batch_fast(texts, add_special_tokens=False), strict=True):
            side = corpus.held_out if hashlib.blake2b(row["file"].encode()).digest()[0] % 50 == 0 else corpus.train
            side.append(np.asarray(encoding.ids, dtype=np.int32))
    return corpus


def chunks_of(chats: list[NDArray[np.int32]], length: int) -> list[NDArray[np.int32]]:
    """Cut each chat every `length` tokens, four times at most: one generated table may not fill the corpus."""
    return [chat[i : i + length] for chat in chats for i in range(0, min(len(chat), 4 * length), length) if len(chat) - i > 16]


def batches_of(chunks: list[NDArray[np.int32]], budget: int, rng: np.random.Generator) -> Iterator[torch.Tensor]:
    """Endless batches [rows, longest] of at most `budget` tokens, -1 where padded; lengths differ little within one."""
    while True:
        pools = np.array_split(rng.permutation(len(chunks)), max(1, len(chunks) // 2048))
        for pool in pools:  # sorted by length within a pool only, so that the epoch stays well mixed
            order = sorted(pool, key=lambda i: len(chunks[i]))
            groups: list[list[int]] = [[]]
            for i in order:
                if (len(groups[-1]) + 1) * len(chunks[i]) > budget:
                    groups.append([])
                groups[-1].append(i)
            for g in rng.permutation(len(groups)):
                yield pad([chunks[i] for i in groups[g]])


def pad(rows: list[NDArray[np.int32]]) -> torch.Tensor:
    """Rows on top of each other, -1 after their end."""
    batch = torch.full((len(rows), max(map(len, rows))), -1)
    for i, row in enumerate(rows):
        batch[i, : len(row)] = torch.from_numpy(row)
    return batch


def loss_sum(model: PreTrainedModel, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Summed next-token loss in nats and how many tokens it covers. Padding is on the right, so no real token sees it."""
    labels = batch[:, 1:]
    real = labels >= 0
    hidden = model.model(input_ids=batch[:, :-1].clamp(min=0), use_cache=False).last_hidden_state[real]
    logits = model.lm_head(hidden).float()
    logits = logits - logits.detach().amax(-1, keepdim=True)
    log_total = logits.exp().sum(-1).log()  # on a CPU three times as fast as F.cross_entropy
    return (log_total - logits.gather(1, labels[real][:, None])[:, 0]).sum(), int(real.sum())


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, chats: list[NDArray[np.int32]], length: int) -> float:
    """Mean loss in nats a token over the first chunk of a fixed choice of held-out chats."""
    model.eval()
    chosen = chats[:: max(1, len(chats) // HELD_OUT_CHATS)]
    parts = [loss_sum(model, pad([chat[:length]])) for chat in chosen]
    model.train()
    return float(sum(loss for loss, _ in parts)) / sum(count for _, count in parts)


def unigram_loss(corpus: Corpus) -> float:
    """What a model knows that has only counted tokens (add-one smoothed), on the held-out chats."""
    counts = np.bincount(np.concatenate(corpus.train), minlength=VOCABULARY) + 1.0
    nll = -np.log(counts / counts.sum())
    return float(nll[np.concatenate(corpus.held_out)].mean())


def optimisers(model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    """Muon for the projections, AdamW for embeddings, norms, convolutions and other small things."""
    projections = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(projections, lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def lr_scale(done: float) -> float:
    """Share of the peak learning rate at a share of the time: warm-up, then cosine to a fiftieth."""
    if done < WARMUP:
        return done / WARMUP
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (done - WARMUP) / (1 - WARMUP))))


def phase_of(done: float) -> int:
    """Which of the PHASES holds at a share of the time."""
    return sum(done >= until for until, _, _ in PHASES[:-1])


def train(model: PreTrainedModel, corpus: Corpus, minutes: float, seed: int, label: str) -> dict[str, float]:
    """Train in place until the minutes are over or Ctrl-C; give steps, tokens, seconds and CPU seconds."""
    rng = np.random.default_rng(seed)
    steppers = optimisers(model)
    groups = [(group, group["lr"]) for stepper in steppers for group in stepper.param_groups]
    streams = [batches_of(chunks_of(corpus.train, length), budget, rng) for _, length, budget in PHASES]
    steps = tokens = 0
    line = ProgressLine(label, 60 * minutes)
    cpu_started = time.process_time()
    try:
        while (seconds := line.seconds()) < 60 * minutes:
            done = seconds / (60 * minutes)
            for group, peak in groups:
                group["lr"] = peak * lr_scale(done)
            with torch.autocast("cpu", torch.bfloat16):
                loss, count = loss_sum(model, next(streams[phase_of(done)]))
            (loss / count).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for stepper in steppers:
                stepper.step()
                stepper.zero_grad()
            steps, tokens = steps + 1, tokens + count
            line.show(steps, tokens, float(loss.detach()) / count)
    except KeyboardInterrupt:
        print(f"\n{label}: stopped at step {steps}; saving what is there", file=sys.stderr)
    return {"steps": steps, "tokens": tokens, "seconds": line.seconds(), "cpu_seconds": time.process_time() - cpu_started}


class ProgressLine:
    """Loss, rate and time left on standard error: one line redrawn on a terminal, a line a minute elsewhere."""

    def __init__(self, label: str, budget: float) -> None:
        self._label, self._budget, self._started = label, budget, time.monotonic()
        self._drawn, self._smooth = -math.inf, math.nan
        self._terminal = sys.stderr.isatty()

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def show(self, steps: int, tokens: int, loss: float) -> None:
        """Take in the loss of one step, and draw when it is time."""
        self._smooth = loss if math.isnan(self._smooth) else 0.98 * self._smooth + 0.02 * loss
        now = self.seconds()
        if now - self._drawn >= (1 if self._terminal else 60):
            self._drawn = now
            left = max(0, self._budget - now)
            text = f"{self._label} step {steps} loss {self._smooth:.3f} {tokens / now:,.0f} tok/s {left / 60:.1f} minutes left"
            print(f"\r{text}  " if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)


def save(name: str, model: PreTrainedModel, bpe: Tokenizer, folder: Path, note: str) -> None:
    """Write the Hugging Face folder: bfloat16 weights, tokenizer with its template, generation config, the note."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(eos_token_id=[IM_END, END_OF_TEXT], pad_token_id=END_OF_TEXT)
    model.save_pretrained(folder)
    wrap_tokenizer(bpe, TEMPLATES[name]).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that servers on transformers 4 know as well
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    (folder / "README.md").write_text(note, encoding="utf-8")


NOTE = """# {name}

{architecture}, {parameters:,} parameters, trained from nothing by scripts/train_targets.py: a small frozen target for demos and tests.
It has learnt what documented Python looks like, not what it means.

- Corpus: `dflash sample-data` on the training machine, that is documented functions and classes of the standard library and of the
  installed packages: {chats:,} chats, {corpus_tokens:,} tokens. {held_out:,} chats of other source files were held out.
- Tokenizer: byte-level BPE of {vocabulary:,} trained on the same corpus; special tokens {special}.
- Training: {steps:,} steps, {tokens:,} tokens, {minutes:.0f} minutes, {cpu_minutes:.0f} of them CPU time. Chunks of {chunks} tokens;
  loss on every token; Muon and AdamW, cosine; bfloat16 autocast, weights stored as bfloat16.

Mean loss a token on the held-out chats, of the weights as stored:

| | nats |
|---|---|
{losses}
"""


def note_of(name: str, model: PreTrainedModel, corpus: Corpus, spent: dict[str, float], losses: dict[str, float]) -> str:
    """The README of a target: how it was made and what it reached."""
    return NOTE.format(
        name=name,
        architecture=type(model).__name__,
        parameters=model.num_parameters(),
        chats=len(corpus.train),
        corpus_tokens=sum(map(len, corpus.train)),
        held_out=len(corpus.held_out),
        vocabulary=VOCABULARY,
        special=", ".join(f"`{token}`" for token in SPECIAL),
        steps=spent["steps"],
        tokens=spent["tokens"],
        minutes=spent["seconds"] / 60,
        cpu_minutes=spent["cpu_seconds"] / 60,
        chunks=", then ".join(f"{length:,}" for _, length, _ in PHASES),
        losses="\n".join(f"| {what} | {loss:.3f} |" for what, loss in losses.items()),
    )


def make_target(name: str, corpus: Corpus, bpe: Tokenizer, folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Train one target, round it to bfloat16, measure what is shipped, and write its folder."""
    torch.manual_seed(seed)
    model = build_model(name)
    spent = train(model, corpus, minutes, seed, name)
    model.to(torch.bfloat16)
    as_shipped = build_model(name)
    as_shipped.load_state_dict(model.state_dict())
    losses = {
        "uniform": math.log(VOCABULARY),
        "unigram": unigram_loss(corpus),
        **{f"this model, at most {n:,} tokens": held_out_loss(as_shipped, corpus.held_out, n) for _, n, _ in PHASES},
    }
    save(name, model, bpe, folder, note_of(name, as_shipped, corpus, spent, losses))
    return {"target": name, **spent, **losses, "bytes": sum(file.stat().st_size for file in folder.iterdir())}


def main() -> None:
    """Make the tokenizer (or take the shipped one), then train and save the targets asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TEMPLATES), help="train this one; both when left out")
    parser.add_argument("--minutes", type=float, default=25.0, help="time to train each, minutes")
    parser.add_argument("--rows", type=int, default=60_000, help="chats of the sample corpus, at most")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to use; trained anew when left out")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "dflash" / "targets", help="folder of the target folders"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of the batches")
    arguments = parser.parse_args()

    rows = read_rows(arguments.rows)
    bpe = Tokenizer.from_file(str(arguments.tokenizer)) if arguments.tokenizer else train_tokenizer(rows)
    corpus = tokenise(rows, bpe)
    del rows
    for name in [arguments.only] if arguments.only else list(TEMPLATES):
        print(json.dumps(make_target(name, corpus, bpe, arguments.out / name, arguments.minutes, arguments.seed)), flush=True)


if __name__ == "__main__":
    main()
