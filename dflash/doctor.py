"""Before a run: what it needs, what this machine has, and what can't fit, by how much, and what to change.

Nothing is built: sizes come from config.json, file headers and the data set's lengths, devices from the system and nvidia-smi (not tried
on a GPU). So an examination takes about a second and needs no torch. Only what is certain is refused (weights, gradients, AdamW, logits,
features, pool); what a forward pass keeps besides is an estimate, and when only that is too much there is a warning.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dflash.config import RunConfig
from dflash.data.dataset import TokenDataset
from dflash.errors import DFlashError, RefusedInput
from dflash.machine import Gpu, find_gpus, memory_limit_bytes, package_version, takes_gpu
from dflash.model.cache_facts import ROOM, CacheFacts, cache_facts
from dflash.model.capture import Capture, bytes_per_token
from dflash.model.facts import TargetFacts, target_facts
from dflash.model.families import attention_note, choose_attention
from dflash.model.footprint import (
    best_checkpoint_bytes,
    checkpoint_bytes,
    drafter_footprint,
    refuse_unfit_tables,
    target_activation_bytes,
    target_weight_bytes,
    whole_target_bytes,
)
from dflash.model.objectives.registry import mix_of
from dflash.model.quantisation import refuse_quantised
from dflash.model.shape import DrafterShape
from dflash.pipeline.init_from import plan_warm_start

GIB = 2**30
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "ray", "polars", "numpy", "flash-attn", "flash-linear-attention")
_RAY_PROCESS_BYTES = 350 * 2**20  # a worker that has loaded torch and transformers, before it holds anything
_RAY_STORE_LEAST_BYTES = 80 * 2**20


@dataclass(frozen=True)
class Need:
    """One thing a run needs.

    Attributes:
        what: its name.
        needs_bytes: how much; None where that can't be told.
        has_bytes: how much there is; None for a part of a sum that stands in another line.
        note: how it comes about.
        estimated: whether `needs_bytes` is an estimate.
    """

    what: str
    needs_bytes: int | None
    has_bytes: int | None = None
    note: str = ""
    estimated: bool = False


@dataclass
class Examination:
    """What was found. `faults` stop the run, `warnings` don't.

    Attributes:
        device: cpu or cuda, as the run will choose.
        devices: what there is: the CPU cores, and each GPU with its memory.
        needs: see `Need`.
        versions: of the packages that count; those not installed are left out.
        attention: the back end of target and of drafter.
        notes: what was chosen for the user and why, where another might be expected.
        faults: what can't work, each with by how much and what to change.
        warnings: what may go wrong or slowly.
    """

    device: str
    devices: list[str]
    needs: list[Need] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    attention: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values, with `fits`: whether there are no faults."""
        return {"fits": not self.faults, **asdict(self)}

    def lines(self) -> Iterator[tuple[str, str, str, str]]:
        """What, needs, has, note: a table for people."""
        for device in self.devices:
            yield "device", "", device, "used" if device.startswith(self.device) else ""
        for need in self.needs:
            about = "about " if need.estimated else ""
            has = "" if need.has_bytes is None else _size(need.has_bytes)
            yield need.what, "" if need.needs_bytes is None else about + _size(need.needs_bytes), has, need.note
        for what, name in self.attention.items():
            yield f"{what} attention", "", name, ""
        yield "versions", "", ", ".join(f"{name} {number}" for name, number in self.versions.items()), ""

    def refuse_faults(self) -> None:
        """Raise RefusedInput with all faults, if there are any."""
        if self.faults:
            raise RefusedInput("this run can't work here:\n" + "\n".join(f"- {fault}" for fault in self.faults))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """What is refused inside becomes a fault."""
        try:
            yield
        except DFlashError as error:
            self.faults.append(str(error))


def examine(config: RunConfig, *, runs: Path = Path("runs"), checkpoints: Path | None = None) -> Examination:
    """Examine whether a run fits this machine.

    Args:
        config: the run's settings.
        runs: where its folder will be, for the room on that disk.
        checkpoints: of a run that goes on, its folder of checkpoints: they will make room for new ones.
    """
    gpus = find_gpus()
    versions = {name: number for name in _PACKAGES if (number := package_version(name))}
    cpu_build = versions.get("torch", "").endswith("+cpu")
    on_gpu = takes_gpu(config.pipeline.device, gpus, versions.get("torch", ""))
    cores = f"cpu: {len(os.sched_getaffinity(0))} cores, {_size(memory_limit_bytes())}"
    devices = [cores, *(f"cuda:{gpu.index} {gpu.name}, {_size(gpu.memory_bytes)}" for gpu in gpus)]
    found = Examination("cuda" if on_gpu else "cpu", devices, versions=versions)
    if gpus and not on_gpu:
        found.warnings.append(
            f"pipeline.device={config.pipeline.device}: the GPUs here are not used" + " (torch is a CPU build)" * cpu_build
        )
    if config.pipeline.engine == "simulated":
        return found
    _examine_devices(found, config, gpus, on_gpu)
    facts, shape, dataset = None, None, None
    with found.collecting():
        facts = target_facts(config.target.path)
        _examine_target(found, config, facts, on_gpu)
        shape = DrafterShape.resolve(config.drafter, facts)
        refuse_unfit_tables(facts)
    _examine_drafter_attention(found, config.drafter.attention, on_gpu)
    with found.collecting():
        dataset = TokenDataset.open(Path(config.data.path))
        _examine_data(dataset, config, facts)
    if shape is not None and checkpoints is None:
        with found.collecting():
            plan = plan_warm_start(config, shape, runs)
            if plan is not None:
                found.needs.append(Need("drafter: warm start", None, note=f"{plan.source}: {plan.told()}"))
                found.warnings += plan.warnings
    if facts is not None and shape is not None:
        _examine_bytes(found, config, facts, shape, dataset, gpus if on_gpu else [])
        _examine_disk(found, config, shape, runs, checkpoints)
        if dataset is not None and config.target.features == "cached":
            with found.collecting():
                cache = cache_facts(config, dataset, facts, Capture.of(config, shape).layer_ids, on_gpu=on_gpu)
                _examine_cache(found, cache)
    return found


def _examine_devices(found: Examination, config: RunConfig, gpus: list[Gpu], on_gpu: bool) -> None:
    pipeline = config.pipeline
    if on_gpu and found.versions.get("torch", "").endswith("+cpu"):
        found.faults.append(
            f"pipeline.device={pipeline.device}: the installed torch {found.versions['torch']} is a CPU build; install a CUDA build "
            "of the same version, or set pipeline.device=cpu"
        )
    if not on_gpu or pipeline.ray_address:
        return
    wanted = pipeline.targets + pipeline.drafters if pipeline.engine == "ray" else 1
    if len(gpus) < wanted:
        found.faults.append(
            f"pipeline: {pipeline.targets} targets and {pipeline.drafters} drafters need {wanted} GPUs, there are {len(gpus)}, "
            f"{wanted - len(gpus)} too few; lower pipeline.targets and pipeline.drafters, or set pipeline.device=cpu"
        )


def _examine_target(found: Examination, config: RunConfig, facts: TargetFacts, on_gpu: bool) -> None:
    """What is particular to the target's family: the attention it runs with, and what of its rope the drafter doesn't follow."""
    with found.collecting():
        found.attention["target"] = choose_attention(config.target.attention, facts.family, on_gpu=on_gpu)
        refuse_quantised(facts.folder, facts.quantisation, dequantise=config.target.dequantise, on_gpu=on_gpu)
    note = attention_note(facts.family)
    if note and config.target.attention == "auto":
        found.notes.append(f"target attention is {found.attention['target']}: {note}")
    if facts.rope_note:
        found.notes.append(f"rope: {facts.rope_note}")


def _examine_drafter_attention(found: Examination, name: str, on_gpu: bool) -> None:
    has_flash = on_gpu and importlib.util.find_spec("flash_attn") is not None
    best = "flash_attention_2" if has_flash else "flex_attention" if on_gpu else "sdpa"
    found.attention["drafter"] = best if name == "auto" else name
    if name == "flash_attention_2" and not has_flash:
        found.faults.append("drafter.attention=flash_attention_2 needs a GPU and the package flash-attn; set it to auto")
    if name == "flex_attention" and not on_gpu:
        found.faults.append("drafter.attention=flex_attention can't train on a CPU; set it to auto or sdpa")


def _examine_data(dataset: TokenDataset, config: RunConfig, facts: TargetFacts | None) -> None:
    if facts is not None:
        dataset.check_target(facts.vocab_size, name=config.target.path)
    longest = int(dataset.lengths.max(initial=0))
    if longest > config.batching.token_budget:
        raise RefusedInput(
            f"batching.token_budget={config.batching.token_budget} is {longest - config.batching.token_budget} below the longest row "
            f"({longest} tokens); raise it to {longest}, or prepare with --max-length {config.batching.token_budget}"
        )
    if config.data.holdout >= len(dataset):
        raise RefusedInput(f"data.holdout={config.data.holdout} leaves nothing of {len(dataset)} samples to train on; lower it")
    most = int(dataset.loss_tokens.max(initial=0))
    if config.drafter.block_size > max(most, 2):
        raise RefusedInput(
            f"drafter.block_size={config.drafter.block_size} is longer than any answer ({most} supervised tokens a conversation at most): "
            f"no block could be filled; lower it to {max(most, 2)}, or prepare longer answers"
        )


def _examine_bytes(
    found: Examination,
    config: RunConfig,
    facts: TargetFacts,
    shape: DrafterShape,
    dataset: TokenDataset | None,
    gpus: list[Gpu],
) -> None:
    """Fill `needs` and hold their sums against devices, shared memory and disk."""
    tokens = config.batching.token_budget
    if dataset is not None:
        tokens = min(tokens, int(dataset.lengths.sum(dtype=np.int64)))
    drafter = drafter_footprint(
        shape,
        optimizer=config.optim.name,
        tied=facts.tie_word_embeddings,
        element_bytes=_element_bytes(config.drafter.precision, gpus),
        logits_chunk=config.drafter.logits_chunk,
        positions_at_once=min(config.drafter.positions_at_once, tokens * shape.block_size),
        context_tokens=tokens,
        mix=mix_of(config.drafter.loss),
    )
    capture = Capture.of(config, shape)
    target_element = _element_bytes(config.target.dtype, gpus)
    try:
        target = target_weight_bytes(facts, capture.layer_ids, target_element)
        decoding = whole_target_bytes(facts, target_element) if config.evaluation.decode_every else 0
    except RefusedInput:  # said already
        target = decoding = 0
    largest = tokens * bytes_per_token(config, shape)
    activations = target_activation_bytes(facts, tokens, target_element)
    pool = min(config.pool.capacity_bytes, config.pool.capacity_items * largest)
    last = max(capture.layer_ids)
    found.needs += [
        Need("target: weights", target, note=f"layers 0 .. {last} of {facts.layers}, no head; {target_element} bytes each"),
        Need("target: forward pass", activations, note=f"{tokens:,} tokens", estimated=True),
        Need("drafter: weights", drafter.weights, note=f"{drafter.parameters:,} parameters, float32"),
        Need("drafter: gradients", drafter.gradients),
        Need("drafter: optimiser", drafter.moments, note=f"{config.optim.name}'s states, float32"),
        Need("drafter: embedding and head", drafter.tables, note="the target's" + (", tied" if facts.tie_word_embeddings else "")),
        Need("drafter: logits chunk", drafter.logits, note=f"drafter.logits_chunk={config.drafter.logits_chunk:,}"),
        Need("drafter: forward pass", drafter.activations, note="kept for its backward", estimated=True),
        Need("features of the largest batch", largest, note=f"{tokens:,} tokens x {capture.width:,}{_last_state_note(capture)}"),
        Need("pool when full", pool, note=f"{config.pool.capacity_items} items, at most {_size(config.pool.capacity_bytes)}"),
    ]
    if decoding:
        found.needs.append(Need("drafter 0: the whole target", decoding, note="decodes held-out prompts (evaluation.decode_every)"))
    if largest > config.pool.capacity_bytes:
        found.faults.append(
            f"pool.capacity_bytes={config.pool.capacity_bytes:,} is {_size(largest - config.pool.capacity_bytes)} smaller than the "
            f"features of the largest batch ({_size(largest)}): raise it to {largest}, or lower batching.token_budget"
        )
    workers = _Workers(target + largest, activations, drafter.certain + largest, drafter.activations, decoding)
    if config.pipeline.ray_address is None:
        if gpus:
            _examine_gpus(found, config, workers, gpus)
        _examine_memory(found, config, workers, pool, on_gpu=bool(gpus))
        if config.pipeline.engine == "ray":
            _examine_store(found, config, pool, largest)
    else:
        found.warnings.append(f"the memory of the cluster at pipeline.ray_address={config.pipeline.ray_address} was not examined")


def _last_state_note(capture: Capture) -> str:
    return "" if capture.last_state is None else ", the target's last state for drafter.loss among them"


@dataclass(frozen=True)
class _Workers:
    """Bytes of one target and of one drafter: certain, and estimated on top; `decoding` are drafter 0's besides."""

    target: int
    target_more: int
    drafter: int
    drafter_more: int
    decoding: int


def _examine_gpus(found: Examination, config: RunConfig, workers: _Workers, gpus: list[Gpu]) -> None:
    smallest = min(gpu.memory_bytes for gpu in gpus)
    parts = {
        "a target": (workers.target, workers.target_more),
        "a drafter": (workers.drafter + workers.decoding, workers.drafter_more),
    }
    if config.pipeline.engine == "inline":
        certain = workers.target + workers.drafter + workers.decoding
        parts = {"target and drafter": (certain, max(workers.target_more, workers.drafter_more))}
    for name, (certain, more) in parts.items():
        remedy = "lower batching.token_budget, drafter.logits_chunk or drafter.positions_at_once, or take GPUs with more memory"
        _hold_against(found, f"GPU memory of {name}", certain, more, smallest, remedy)


def _examine_memory(found: Examination, config: RunConfig, workers: _Workers, pool: int, *, on_gpu: bool) -> None:
    pipeline = config.pipeline
    on_ray = pipeline.engine == "ray"
    targets, drafters = (pipeline.targets, pipeline.drafters) if on_ray else (1, 1)
    processes = targets + drafters + pipeline.prefetch_workers if on_ray else 1
    certain = pool + processes * _RAY_PROCESS_BYTES
    more = 0
    if not on_gpu:
        certain += targets * workers.target + drafters * workers.drafter + workers.decoding
        more = targets * workers.target_more + drafters * workers.drafter_more
    remedy = "lower pool.capacity_bytes, pipeline.targets, pipeline.drafters or batching.token_budget"
    _hold_against(found, "memory of this machine", certain, more, memory_limit_bytes(), remedy)
    available = psutil.virtual_memory().available
    if certain > available:
        found.warnings.append(
            f"memory: the run needs {_size(certain)}, at this moment {_size(available)} are free; end other programs"
        )


def _examine_store(found: Examination, config: RunConfig, pool: int, largest: int) -> None:
    """Ray's object store lies in shared memory: the pool, and what the drafters hold."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return
    free = int(shutil.disk_usage(shared).free * 0.9)  # the share of it that is used, see engines/cluster.py
    held = config.pipeline.drafters * largest
    least = max(_RAY_STORE_LEAST_BYTES, held + largest)
    remedy = "enlarge it (containers: --shm-size), or lower batching.token_budget"
    _hold_against(
        found, "shared memory for Ray's object store", least, 0, free, remedy, note="features in the drafters' hands and one more"
    )
    if least <= free < pool + held:
        found.warnings.append(
            f"shared memory: a full pool takes {_size(pool + held)}, {_size(free)} are free: Ray would spill to disk, which is slow. "
            f"Enlarge it (containers: --shm-size), or set pool.capacity_bytes={max(largest, free - held)}"
        )


def _examine_disk(found: Examination, config: RunConfig, shape: DrafterShape, runs: Path, checkpoints: Path | None) -> None:
    folder = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.is_dir())
    kept = config.checkpoint.keep + 1  # the oldest goes when the newest is whole
    written = checkpoint_bytes(shape, config.optim.name)
    held = sum(file.stat().st_size for file in checkpoints.rglob("*") if file.is_file()) if checkpoints is not None else 0
    needs, free = kept * written, shutil.disk_usage(folder).free + held
    note = f"{kept} checkpoints of {_size(written)}"
    if config.checkpoint.best and config.data.holdout:
        needs += 2 * best_checkpoint_bytes(shape)  # the one before goes when the new one is whole
        note += f", and 2 best ones of {_size(best_checkpoint_bytes(shape))}"
    _hold_against(found, "disk for checkpoints", needs, 0, free, "make room, or lower checkpoint.keep", note=note)


def _examine_cache(found: Examination, cache: CacheFacts) -> None:
    is_there = cache.refuse_another()
    missing = cache.missing_bytes()
    note = f"{_size(cache.size_bytes)} as {cache.dtype} in {cache.folder}"
    note += f", {_size(cache.size_bytes - missing)} of it there" if is_there else ""
    _hold_against(found, "disk for cached features", missing, 0, cache.free_bytes(), ROOM, note=note)


def _hold_against(found: Examination, what: str, certain: int, more: int, has: int, remedy: str, note: str = "") -> None:
    found.needs.append(Need(what, certain + more, has, note or (f"{_size(certain)} certain" if more else ""), estimated=bool(more)))
    if certain > has:
        found.faults.append(f"{what}: {_size(certain)} needed, {_size(has)} there, {_size(certain - has)} too little; {remedy}")
    elif certain + more > has:
        found.warnings.append(
            f"{what}: about {_size(certain + more)} needed (an estimate), {_size(has)} there, about {_size(certain + more - has)} too "
            f"little; if it runs out: {remedy}"
        )


def _element_bytes(precision: str, gpus: list[Gpu]) -> int:
    return 2 if precision == "bfloat16" or (precision == "auto" and gpus) else 4


def _size(size_bytes: int) -> str:
    """Bytes for people, binary units."""
    if size_bytes >= GIB:
        return f"{size_bytes / GIB:,.1f} GiB"
    return f"{size_bytes / 2**20:,.1f} MiB"
