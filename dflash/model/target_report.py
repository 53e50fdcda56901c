"""What of a target works here, before a run is configured: one line for each use, from its folder alone. No torch, no weights are read.

A line says yes, no or what to know. What the package can't tell without loading (whether the numbers are sound, whether they fit the memory)
is not among them: `dflash doctor CONFIG` knows the sizes, the first batch the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash.config import DrafterConfig
from dflash.errors import RefusedInput
from dflash.model.facts import TargetFacts, read_json, resolve_target, target_facts
from dflash.model.families import attention_note, choose_attention
from dflash.model.footprint import refuse_unfit_tables
from dflash.model.mask_token import mask_token_id
from dflash.model.quantisation import refuse_quantised
from dflash.model.shape import spread_layer_ids
from dflash.model.weight_headers import stored_tensors


@dataclass(frozen=True)
class Aspect:
    """One line.

    Attributes:
        what: its name.
        works: whether it does; None where the line only informs.
        note: how, or why not and what to do.
    """

    what: str
    works: bool | None
    note: str


@dataclass(frozen=True)
class TargetReport:
    """All lines of a target.

    Attributes:
        folder: where it lies.
        family: its model_type.
        aspects: see `Aspect`.
    """

    folder: Path
    family: str
    aspects: tuple[Aspect, ...]

    @property
    def faults(self) -> list[str]:
        """What doesn't work, in words."""
        return list(dict.fromkeys(aspect.note for aspect in self.aspects if aspect.works is False))

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values, with `works`: whether nothing fails."""
        return {"works": not self.faults, **asdict(self), "folder": str(self.folder)}

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """What, yes or no, note: a table for people."""
        for aspect in self.aspects:
            yield aspect.what, {True: "yes", False: "no", None: ""}[aspect.works], aspect.note

    def refuse_faults(self) -> None:
        """Raise RefusedInput with all faults, if there are any."""
        if self.faults:
            raise RefusedInput(f"{self.folder}: can't be used as it is:\n" + "\n".join(f"- {fault}" for fault in self.faults))


def report_target(path: str | Path, *, on_gpu: bool, dequantise: bool = False) -> TargetReport:
    """Say what of a target works.

    Args:
        path: folder, or the name of a shipped target.
        on_gpu: whether it would run on a GPU.
        dequantise: `target.dequantise`.

    Raises:
        RefusedInput: there is no such folder, or its config.json can't be understood.
    """
    facts = target_facts(path)
    weights = _tried("weights", lambda: _weights(facts))
    runs = _tried("runs here", lambda: _runs(facts, on_gpu=on_gpu, dequantise=dequantise))
    lends = _tried("export", lambda: _lends(facts))
    mask = _tried("mask token", lambda: _mask(facts))
    loads = _both(weights, runs)
    aspects = (
        Aspect("family", None, _sizes(facts)),
        weights,
        Aspect("quantisation", None, _quantisation(facts)),
        _stands_on("features", loads, "for training; " + _captured(facts)),
        _stands_on("generate", loads, "speculative decoding, evaluation"),
        _stands_on("export", _both(lends, mask), lends.note),
        Aspect("attention", None, runs.note if runs.works else "see features"),
        Aspect("rope", None, _rope(facts)),
        Aspect("embedding scale", None, f"{facts.embedding_scale:g}"),
        Aspect("logit cap", None, "none" if facts.final_logit_softcap is None else f"{facts.final_logit_softcap:g}"),
        mask,
        *(Aspect(f"served by {engine}", None, note) for engine, note in _engines(facts).items()),
    )
    return TargetReport(resolve_target(path), facts.family, aspects)


def _tried(what: str, note: Callable[[], str]) -> Aspect:
    try:
        return Aspect(what, True, note())
    except RefusedInput as error:
        return Aspect(what, False, str(error))


def _both(first: Aspect, second: Aspect) -> Aspect:
    return first if not first.works else second


def _stands_on(what: str, needed: Aspect, note: str) -> Aspect:
    return Aspect(what, needed.works, note if needed.works else needed.note)


def _sizes(facts: TargetFacts) -> str:
    return f"{facts.family}, {facts.layers} layers of {facts.hidden_size}, vocabulary {facts.vocab_size:,}, {facts.max_positions:,} positions"


def _weights(facts: TargetFacts) -> str:
    files = {stored.file for stored in stored_tensors(facts.folder).values()}
    size = sum(file.stat().st_size for file in files)
    return f"{len(files)} file{'s' * (len(files) > 1)}, {size / 2**20:,.1f} MiB"


def _runs(facts: TargetFacts, *, on_gpu: bool, dequantise: bool) -> str:
    config = read_json(facts.folder / "config.json")
    if config.get("auto_map"):
        from transformers import CONFIG_MAPPING  # seconds, so only where it matters

        if config.get("model_type") not in CONFIG_MAPPING:
            raise RefusedInput(
                f"{facts.folder}: model_type {config.get('model_type')!r} needs the code that lies in the folder; read it, then set "
                "target.trust_remote_code=true"
            )
    refuse_quantised(facts.folder, facts.quantisation, dequantise=dequantise, on_gpu=on_gpu)
    chosen = choose_attention("auto", facts.family, on_gpu=on_gpu)
    note = attention_note(facts.family)
    return f"{chosen} ({note})" if note else chosen


def _lends(facts: TargetFacts) -> str:
    refuse_unfit_tables(facts)
    return "embedding and head are there" + (", one table for both" if facts.tie_word_embeddings else "")


def _mask(facts: TargetFacts) -> str:
    return str(mask_token_id(facts, None))


def _quantisation(facts: TargetFacts) -> str:
    stored = facts.quantisation
    if stored is None:
        return "none"
    undo = "target.dequantise=true loads plain numbers" if stored.can_dequantise else "can't be undone here"
    return f"{stored.words}; as it is it needs {stored.needs}; {undo}"


def _captured(facts: TargetFacts) -> str:
    count = min(DrafterConfig().layers, max(1, facts.layers - 1))
    return f"layers {', '.join(map(str, spread_layer_ids(facts.layers, count)))} unless the config says others"


def _rope(facts: TargetFacts) -> str:
    scaling = "" if facts.rope.type == "default" else f", factor {facts.rope.factor:g}"
    return f"{facts.rope.type}, base {facts.rope.theta:g}{scaling}" + (f"; {facts.rope_note}" if facts.rope_note else "")


def _engines(facts: TargetFacts) -> dict[str, str]:
    """What is known of serving such a drafter; nothing of it was tried."""
    vllm = sglang = "loads the exported layout; not tried here"
    if facts.embedding_scale != 1.0:
        vllm = "scales the drafter's embeddings for Gemma 4 since pull request 41703; else check for input_embedding_scale; not tried here"
        sglang = "doesn't scale the drafter's embeddings as this family does (input_embedding_scale); not tried here"
    return {"vLLM": vllm, "SGLang": sglang}
