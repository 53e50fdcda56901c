"""Tiny random targets of several families, and rows of random tokens to run them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dflash.config import RunConfig
from dflash.data.rows import TokenRows

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"num_hidden_layers": 4, "head_dim": 16},
    "llama": {"num_hidden_layers": 4, "tie_word_embeddings": True},
    "qwen3_5_text": {
        "num_hidden_layers": 8,
        "head_dim": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    },
    "gemma2": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "final_logit_softcapping": 2.0,
    },
    "gemma3_text": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "mistral": {"num_hidden_layers": 4, "head_dim": 16, "sliding_window": 7, "rms_norm_eps": 1e-6},
    "gpt_oss": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-6,
        "pad_token_id": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 15e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
    },
}

DFLASH2 = {"architecture": "dflash2", "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 4}


def save_target(folder: Path, family: str, seed: int = 0, **changes: Any) -> Path:
    """A random target, its norms moved away from their trivial first values, saved as Hugging Face does."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES.get(family, {}), **changes})
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
        else:
            parameter.data *= 5  # so that context matters
    model.save_pretrained(folder)
    return folder


def random_rows(lengths: list[int], seed: int = 0, supervised: float = 0.8, vocabulary: int = VOCABULARY) -> TokenRows:
    """Rows of random tokens; about `supervised` of the tokens carry loss, in runs."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    mask = np.repeat(rng.random(-(-total // 7)) < supervised, 7)[:total]
    return TokenRows(
        sample_ids=rng.permutation(1000)[: len(lengths)].astype(np.int64),
        tokens=rng.integers(0, vocabulary - 1, total).astype(np.int32),
        loss_mask=mask,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def tiny_config(target: Path, drafter: dict[str, Any] | None = None, **sections: dict[str, Any]) -> RunConfig:
    """A run's config around a tiny target: 2 layers, blocks of 5, at most 6 anchors a conversation."""
    sizes = {"layers": 2, "block_size": 5, "anchors": 6, "mask_token_id": VOCABULARY - 1, "target_layer_ids": [0, 2]}
    return RunConfig.model_validate(
        {
            "data": {"path": "unused"},
            "target": {"path": str(target), "feature_dtype": "float32"},
            "drafter": {**sizes, **(drafter or {})},
            **sections,
        }
    )
