"""Building a target from its folder: one way for training and for decoding, with everything that can be wrong said first.

Transformers fills what a folder lacks with random numbers, asks on the terminal whether to run code, and names packages instead of reasons.
So the folder is examined before (`weight_headers`, `quantisation`), and what was loaded is held against it after.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from dflash.errors import RefusedInput
from dflash.model.dequantise import read_dequantised
from dflash.model.facts import TargetFacts, read_json, target_facts
from dflash.model.families import choose_attention
from dflash.model.quantisation import refuse_quantised
from dflash.model.weight_headers import stored_tensors

_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")
_NAMES_SHOWN = 3


@dataclass(frozen=True)
class Loading:
    """How a target is loaded.

    Attributes:
        device: where to run it.
        dtype: bfloat16, float32, or auto: bfloat16 on a GPU, float32 on a CPU.
        attention: auto, or one by name; see `choose_attention`.
        dequantise: whether quantised weights become plain numbers.
        trust_remote_code: whether code in the folder may run.
    """

    device: str | torch.device = "cpu"
    dtype: str = "auto"
    attention: str = "auto"
    dequantise: bool = False
    trust_remote_code: bool = False

    @property
    def place(self) -> torch.device:
        """The device."""
        return torch.device(self.device)

    @property
    def number_type(self) -> torch.dtype:
        """The dtype of the weights."""
        if self.dtype == "auto":
            return torch.bfloat16 if self.place.type == "cuda" else torch.float32
        chosen: torch.dtype = getattr(torch, self.dtype)
        return chosen


def load_causal_lm(path: str | Path, loading: Loading, *, layers: int | None = None) -> Any:
    """The Hugging Face model of a folder, or of a shipped target by name, on its device.

    Args:
        path: the folder or the name.
        loading: see there.
        layers: how many layers are built; None: all. With fewer, a missing vocabulary head is no fault.

    Raises:
        RefusedInput: what lies there is not a whole causal language model, or this machine can't run it.
    """
    from transformers import AutoConfig

    facts = target_facts(path)
    _refuse_unloadable(facts, loading)
    attention = choose_attention(loading.attention, facts.family, on_gpu=loading.place.type == "cuda")
    try:
        config = AutoConfig.from_pretrained(facts.folder, trust_remote_code=loading.trust_remote_code)
        if layers is not None:
            _cut_layers(config.get_text_config(), layers)
        with _quiet():
            model, report = _build(facts, config, loading, attention)
    except (OSError, ValueError, ImportError, SafetensorError, RuntimeError) as error:
        raise RefusedInput(f"{facts.folder}: can't be loaded as a causal language model: {_first_lines(error)}") from error
    lacking = sorted(name for name in report["missing_keys"] if layers is None or "lm_head" not in name)
    lacking += sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        raise RefusedInput(
            f"{facts.folder}: its weights don't fill the model of its config.json (missing or misshapen: "
            f"{', '.join(lacking[:_NAMES_SHOWN])}); fetch or copy the folder again. A head that is the embedding table needs "
            "tie_word_embeddings true in config.json"
        )
    return model.to(loading.place)


def _refuse_unloadable(facts: TargetFacts, loading: Loading) -> None:
    from transformers import CONFIG_MAPPING

    config = read_json(facts.folder / "config.json")
    _refuse_remote_code(facts.folder, config, known=config.get("model_type") in CONFIG_MAPPING, trusted=loading.trust_remote_code)
    stored_tensors(facts.folder)
    refuse_quantised(facts.folder, facts.quantisation, dequantise=loading.dequantise, on_gpu=loading.place.type == "cuda")


def _refuse_remote_code(folder: Path, config: dict[str, Any], *, known: bool, trusted: bool) -> None:
    """Refuse a model that only code in its folder can build, unless the user trusts that code.

    Args:
        folder: the target's.
        config: its config.json.
        known: whether transformers has the family of its own.
        trusted: whether the user said so (`target.trust_remote_code`).
    """
    if known or trusted:
        return
    family = config.get("model_type", "missing")
    if config.get("auto_map"):
        raise RefusedInput(
            f"{folder}: model_type {family!r} is not in transformers, and the code that comes with the folder is not run unasked. Read it, "
            "then set target.trust_remote_code=true; or install a transformers that has this family"
        )
    raise RefusedInput(f"{folder / 'config.json'}: model_type {family!r} is not in transformers; install one that has this family")


def _build(facts: TargetFacts, config: Any, loading: Loading, attention: str) -> tuple[Any, dict[str, Any]]:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {
        "config": config,
        "dtype": loading.number_type,
        # transformers knows of families that our table doesn't list and lets them fall to eager, unless it is told a name
        "attn_implementation": None if loading.attention == "auto" and attention == "sdpa" else attention,
        "output_loading_info": True,
    }
    if facts.quantisation is None or not loading.dequantise:
        return AutoModelForCausalLM.from_pretrained(  # type: ignore[no-any-return]
            facts.folder,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=loading.trust_remote_code,
            ignore_mismatched_sizes=True,  # they are reported, and refused with the others
            **options,
        )
    for part in (config, config.get_text_config()):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    last = config.get_text_config().num_hidden_layers
    numbers = read_dequantised(facts.folder, loading.number_type, facts.quantisation.block, lambda name: _layer_of(name) < last)
    with torch.device("meta"):
        kind = type(AutoModelForCausalLM.from_config(config))
    return kind.from_pretrained(None, state_dict=numbers, ignore_mismatched_sizes=True, **options)  # type: ignore[no-any-return]


def _layer_of(name: str) -> int:
    """The layer a tensor belongs to; -1 for those of none."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else -1


def _cut_layers(config: Any, keep: int) -> None:
    """Make a text config describe only its first `keep` layers; every list with one entry a layer is cut as well."""
    whole = config.num_hidden_layers
    for name, value in list(vars(config).items()):
        if "layer" in name and isinstance(value, list) and len(value) == whole:
            setattr(config, name, value[:keep])
    config.num_hidden_layers = keep


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:_NAMES_SHOWN])


@contextmanager
def _quiet() -> Iterator[None]:
    """Transformers warns of every stored tensor that a cut model has no place for, which is the purpose, and shows bars of its own."""
    from transformers.utils import logging as transformers_logging

    logger = logging.getLogger("transformers")
    level, had_bar = logger.level, transformers_logging.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if had_bar:
            transformers_logging.enable_progress_bar()
