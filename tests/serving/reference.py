"""The released inference path, written plainly: reads an exported folder by itself and knows nothing of the package.

`PlainDrafter` is the draft model of z-lab/dflash in float64: one block at a time, big masks, its rotary embedding transformers' own, made
from the folder's config.json. `plain_decode` is greedy speculative decoding without any cache of the target: every round runs the whole
text through it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding


class PlainDrafter:
    """A drafter's folder as a server reads it."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.extra: dict[str, Any] = self.config["dflash_config"]
        self.tensors = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.rotary = Qwen3RotaryEmbedding(Qwen3Config(**self.config))
        self.kept: list[tuple[Tensor, Tensor]] = []  # with `remember`: each layer's context keys and values so far
        self.kept_length = 0

    def hidden(self, features: Tensor, start: int, block: Tensor, embedding: Tensor, *, remember: bool = False) -> Tensor:
        """Final states [slots, hidden] of a block of tokens at positions start ..; `features` are those before (all, or the new ones)."""
        cfg = self.config
        first = self.kept_length if remember else 0
        assert first + len(features) == start
        states = embedding[block].double() * self.extra.get("input_embedding_scale", 1.0)
        context = self._norm(features.double() @ self.tensors["fc.weight"].T, "hidden_norm")
        kept = []
        for layer in range(cfg["num_hidden_layers"]):
            name = f"layers.{layer}"
            normed = self._norm(states, f"{name}.input_layernorm")
            rows, leave = self._enter(f"{name}.attention_conv", normed)
            key, value = self._key_value(f"{name}.self_attn", context, torch.arange(first, start))
            if remember and self.kept:
                key, value = torch.cat([self.kept[layer][0], key]), torch.cat([self.kept[layer][1], value])
            kept.append((key, value))
            here = torch.arange(start, start + len(block))
            own_key, own_value = self._key_value(f"{name}.self_attn", rows, here)
            query = self._heads(f"{name}.self_attn.q", rows, here)
            attended = self._attend(layer, query, torch.cat([key, own_key]), torch.cat([value, own_value]), start)
            states = states + self._leave(
                f"{name}.attention_conv", attended @ self.tensors[f"{name}.self_attn.o_proj.weight"].T, leave
            )
            normed = self._norm(states, f"{name}.post_attention_layernorm")
            rows, leave = self._enter(f"{name}.mlp_conv", normed)
            gate, up, down = (self.tensors[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
            made = (torch.nn.functional.silu(rows @ gate.T) * (rows @ up.T)) @ down.T
            states = states + self._leave(f"{name}.mlp_conv", made, leave)
        if remember:
            self.kept, self.kept_length = kept, start
        return self._norm(states, "norm")

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        logits = hidden @ head.double().T
        cap = self.extra.get("final_logit_softcapping")
        return logits if not cap else torch.tanh(logits / cap) * cap

    def propose(self, hidden: Tensor, anchor: int, head: Tensor) -> list[int]:
        """The tokens of slots 1 .., greedily."""
        logits = self.logits(hidden, head)
        if self.config["architectures"] != ["DFlash2DraftModel"]:
            return logits.argmax(-1).tolist()
        names = ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")
        before, after, projection = (self.tensors[f"candidate_selector.{name}"] for name in names)
        tokens = [anchor]
        for slot in range(len(hidden)):
            best = logits[slot].topk(self.extra["selector_top_k"])
            scores = best.values + after[best.indices] @ (before[tokens[-1]] * (projection @ hidden[slot]))
            tokens.append(int(best.indices[scores.argmax()]))
        return tokens[1:]

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return rows * scale * self.tensors[f"{name}.weight"]

    def _heads(self, name: str, rows: Tensor, positions: Tensor) -> Tensor:
        heads = (rows @ self.tensors[f"{name}_proj.weight"].T).view(len(rows), -1, self.config["head_dim"])
        heads = self._norm(heads, f"{name}_norm")
        cos, sin = (part[0, :, None].double() for part in self.rotary(torch.zeros(1), positions[None]))
        first, second = heads.chunk(2, -1)
        return heads * cos + torch.cat([-second, first], -1) * sin

    def _key_value(self, name: str, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        value = (rows @ self.tensors[f"{name}.v_proj.weight"].T).view(len(rows), -1, self.config["head_dim"])
        return self._heads(f"{name}.k", rows, positions), value

    def _attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, start: int) -> Tensor:
        slots, heads, width = query.shape
        repeats = heads // key.shape[1]
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(repeats, 1)) * width**-0.5
        distance = (start + torch.arange(slots))[:, None] - torch.arange(len(key))[None]
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if self.config["is_causal"]:
            hidden |= distance < 0
        if self.config["layer_types"][layer] == "sliding_attention":
            hidden |= distance.abs() >= self.config["sliding_window"]
        shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", shares, value.repeat_interleave(repeats, 1)).reshape(slots, -1)

    def _enter(self, name: str, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        if f"{name}.base_kernel" not in self.tensors:
            return rows, None
        made = rows @ self.tensors[f"{name}.kernel_projection.weight"].T
        taps = self.extra["conv_kernel_size"]
        changes = made.view(len(rows), 2, taps, -1).repeat_interleave(self.extra["conv_group_size"], -1)
        return self._mix(rows, self.tensors[f"{name}.base_kernel"][0] + changes[:, 0]), changes[:, 1]

    def _leave(self, name: str, rows: Tensor, changes: Tensor | None) -> Tensor:
        return rows if changes is None else self._mix(rows, self.tensors[f"{name}.base_kernel"][1] + changes)

    @staticmethod
    def _mix(rows: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(rows)
        for slot in range(len(rows)):
            for tap in range(min(weights.shape[1], slot + 1)):
                out[slot] += weights[slot, tap] * rows[slot - tap]
        return out


@torch.no_grad()
def plain_decode(target: Any, drafter: PlainDrafter, prompt: Tensor, count: int) -> tuple[list[int], list[int]]:
    """Greedy speculative decoding of `count` tokens: the answer, and how many drafted tokens each round kept."""
    embedding, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    layers = [layer + 1 for layer in drafter.extra["target_layer_ids"]]

    def read(tokens: list[int]) -> tuple[Tensor, Tensor]:
        out = target(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        return out.logits[0], torch.cat([out.hidden_states[layer][0] for layer in layers], -1)

    text = prompt.tolist()
    logits, features = read(text)
    text.append(int(logits[-1].argmax()))
    kept = []
    while len(text) < len(prompt) + count:
        block = torch.tensor([text[-1], *[drafter.extra["mask_token_id"]] * (drafter.extra["block_size"] - 1)])
        hidden = drafter.hidden(features, len(text) - 1, block, embedding)[1:]
        left = len(prompt) + count - len(text)
        drafted = drafter.propose(hidden, text[-1], head)[: left - 1]  # the target's own token comes after them
        logits, features = read(text + drafted)
        choice = logits[len(text) - 1 :].argmax(-1).tolist()
        right = 0
        while right < len(drafted) and drafted[right] == choice[right]:
            right += 1
        kept += [right] * bool(drafted)
        text += [*drafted[:right], choice[right]]
        features = features[: len(text) - 1]
    return text[len(prompt) : len(prompt) + count], kept
