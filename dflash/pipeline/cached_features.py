"""The feature cache of a run: made or found before it starts, and told in its events and its manifest."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dflash.config import RunConfig
from dflash.data.dataset import TokenDataset
from dflash.model.cache_facts import CacheFacts, cache_facts
from dflash.model.capture import Capture
from dflash.model.facts import target_facts
from dflash.model.feature_cache import FeatureCache, make_cache
from dflash.model.shape import DrafterShape
from dflash.pipeline.stages import pick_device


def prepare_cache(config: RunConfig, dataset: TokenDataset, shape: DrafterShape) -> CacheFacts | None:
    """Make or find the cache of a run; None when its features are live.

    Raises:
        RefusedInput: another cache, or something else, lies in its folder, or its disk hasn't the room.
        RunFailed: the folder can't be written.
    """
    if config.target.features == "live":
        return None
    on_gpu = pick_device(config.pipeline.device).type == "cuda"
    facts = cache_facts(config, dataset, target_facts(config.target.path), Capture.of(config, shape).layer_ids, on_gpu=on_gpu)
    facts.refuse_another()
    facts.refuse_small_disk()
    make_cache(facts)
    return facts


def describe_cache(facts: CacheFacts, dataset: TokenDataset) -> dict[str, Any]:
    """How far a cache is filled and what it takes, as JSON values: for a run's events and its manifest."""
    state = FeatureCache(facts, dataset.lengths).state()
    return {
        "folder": str(facts.folder),
        "fingerprint": facts.fingerprint,
        "kept_as": facts.dtype,
        "of_samples": facts.samples,
        "size_bytes": facts.size_bytes,
        "missing_bytes": facts.missing_bytes(),
        "free_bytes": facts.free_bytes(),
        **asdict(state),
    }


def cache_line(told: dict[str, Any]) -> str:
    """`describe_cache` for people."""
    gib = {name: told[f"{name}_bytes"] / 2**30 for name in ("size", "missing", "free")}
    error = f"; kept as {told['kept_as']}: relative rms error {told['relative_rms_error']:.2%}, cosine {told['cosine']:.6f}"
    return (
        f"cached features in {told['folder']}: {told['samples']:,} of {told['of_samples']:,} samples there, {gib['missing']:.2f} of "
        f"{gib['size']:.2f} GiB to be written, {gib['free']:.1f} GiB free" + (error if told["samples"] else "")
    )
