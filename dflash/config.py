"""Every setting of a run: its unit, bounds and default, once.

A run is one `RunConfig`. It is read from YAML (`load_config`), changed with `--set section.key=value` (YAML values), and written
whole into the run's folder. Unknown keys are errors that name the nearest known one. Nothing else in the package holds a default.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dflash.errors import RefusedInput
from dflash.overrides import explain, parse_override, read_weights

Strategy = Literal["sorted", "shuffled", "bucketed", "jittered", "packed"]
Order = Literal["random", "stratified"]
Policy = Literal["oldest", "random", "longest_queue", "round_robin", "deficit", "round_robin_wait"]
EngineName = Literal["inline", "ray", "simulated"]
Precision = Literal["auto", "bfloat16", "float32"]
LossName = Literal["cross_entropy", "dpace", "kl", "total_variation", "acceptance"]

Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A group of settings; immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class DataConfig(Section):
    """What is trained on."""

    path: str = Field(description="folder written by `dflash prepare`")
    holdout: NonNegative = Field(0, description="samples kept out of training for evaluation, drawn by optim.seed")


class TargetConfig(Section):
    """The frozen model whose hidden states are the drafter's context."""

    path: str = Field(description="a Hugging Face causal LM folder, or the name of a shipped target (qwen3-tiny, qwen3_5-tiny)")
    dtype: Precision = Field("auto", description="weights of the target; auto: bfloat16 on a GPU, float32 on a CPU")
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = Field(
        "auto", description="auto: flash_attention_2 with flash-attn and a GPU, else sdpa, else eager, as the family has it"
    )
    dequantise: bool = Field(False, description="load quantised weights (fp8, mxfp4) as plain numbers: any device, more memory")
    trust_remote_code: bool = Field(
        False, description="run code that lies in the target's folder, for families not in transformers"
    )
    feature_dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="how features are kept in the pool")
    features: Literal["live", "cached"] = Field(
        "live", description="cached: computed once, written to target.cache and read from there"
    )
    cache: str | None = Field(None, description="folder of the cached features; empty: data.path with -features behind it")
    cache_dtype: Literal["bfloat16", "float8_e4m3"] = Field(
        "bfloat16", description="how features are kept in the cache; float8_e4m3 takes half the disk and rounds to 3 bits"
    )

    @property
    def feature_number_bytes(self) -> int:
        """Bytes of one number of the features, by `feature_dtype`."""
        return {"bfloat16": 2, "float32": 4}[self.feature_dtype]


class DrafterConfig(Section):
    """The drafter's shape and what is asked of it. Sizes left empty are the target's."""

    architecture: Literal["dflash", "dflash2"] = Field(
        "dflash", description="dflash2: with block convolutions and a candidate selector"
    )
    layers: Count = Field(5, description="decoder layers")
    block_size: int = Field(16, ge=2, le=256, description="tokens in a block: the anchor and block_size - 1 drafted ones")
    intermediate_size: Count | None = Field(None, description="width of the SwiGLU MLP; empty: the target's")
    heads: Count | None = Field(None, description="query heads; empty: the target's")
    kv_heads: Count | None = Field(None, description="key and value heads; empty: the target's")
    head_dim: Count | None = Field(None, description="width of one head; empty: the target's")
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = Field(
        None, description="one a layer; empty: all full_attention"
    )
    sliding_window: Count | None = Field(None, description="tokens a sliding layer looks back; needed when layer_types has one")
    is_causal: bool = Field(False, description="whether a slot of a block sees only the slots before it")
    target_layer_ids: list[NonNegative] | None = Field(
        None, description="target layers captured: id i is the output AFTER layer i; empty: spread evenly"
    )
    feature_layers: Count | None = Field(None, description="how many target layers are captured; empty: as many as layers")
    mask_token_id: NonNegative | None = Field(None, description="token of a slot to be drafted; empty: the target family's own")
    init_from: str | None = Field(
        None,
        description="a drafter's folder, a run or its checkpoint: start from what fits of it; target: from its last layers; empty: anew",
    )
    loss: dict[LossName, float] = Field(
        {"cross_entropy": 1.0},
        description="what is minimised: cross_entropy, dpace, kl, total_variation, acceptance, or {name: weight, ...}",
    )
    conv_group_size: Count = Field(16, description="channels that share a dynamic weight (dflash2); divides the hidden size")
    selector_rank: Count = Field(256, description="width of the selector's tables, which have a row a token (dflash2)")
    selector_top_k: int = Field(16, ge=2, description="candidates a slot that the selector chooses from (dflash2)")
    selector_weight: float = Field(1.0, ge=0, description="weight of the selector's loss; it teaches the selector alone (dflash2)")
    gamma: float | None = Field(None, gt=0, description="decay of the weight over slots, exp(-(k-1)/gamma); empty: by block_size")
    anchors: Count = Field(512, description="blocks a conversation, at most, drawn anew at every use")
    noise: float = Field(
        0.0, ge=0, description="standard deviation of Gaussian noise on features, relative to their root mean square"
    )
    logits_chunk: int = Field(2**26, ge=1, description="logits computed at a time, at most (rows x vocabulary)")
    positions_at_once: Count = Field(
        2**14, description="drafted positions (blocks x block_size) run at a time, at most; a larger batch is run in parts"
    )
    attention: Literal["auto", "flash_attention_2", "flex_attention", "sdpa"] = Field(
        "auto", description="auto: flash_attention_2 with flash-attn and a GPU, flex_attention on other GPUs, sdpa elsewhere"
    )
    precision: Precision = Field("auto", description="autocast of the matrix products; auto: bfloat16 on a GPU, float32 on a CPU")
    compile: bool = Field(False, description="torch.compile the drafter")

    @field_validator("loss", mode="before")
    @classmethod
    def _weights_of_losses(cls, loss: Any) -> dict[str, float]:
        return read_weights(loss, get_args(LossName))

    @model_validator(mode="after")
    def _layers_agree(self) -> Self:
        if self.layer_types is not None:
            if len(self.layer_types) != self.layers:
                raise ValueError(f"layer_types has {len(self.layer_types)} entries for layers={self.layers}")
            if "sliding_attention" in self.layer_types and self.sliding_window is None:
                raise ValueError("layer_types has a sliding layer: set sliding_window (tokens)")
        if self.target_layer_ids is not None and self.feature_layers not in (None, len(self.target_layer_ids)):
            raise ValueError("feature_layers differs from the number of target_layer_ids: give one of the two")
        return self


class BatchingConfig(Section):
    """How samples are put together into batches, and in which order the batches run."""

    strategy: Strategy = Field("jittered", description="who shares a batch")
    order: Order = Field("stratified", description="the order batches run in: random, or each window holding every length class")
    boundaries: list[NonNegative] | None = Field(
        None, description="length buckets, K + 1 tokens from 0 to the limit; empty: six by equal samples. A boundary belongs below"
    )
    token_budget: Count = Field(49_152, description="tokens a batch, at most: rows x longest row; packed: the sum of the lengths")
    window: Count | None = Field(None, description="batches a stratified window; empty: optim.accumulate")
    jitter: NonNegative = Field(32, description="tokens of jitter on the sorting key, plus or minus (jittered only)")
    max_rows: Count | None = Field(None, description="rows a batch, at most")
    seed: NonNegative = Field(0, description="with the epoch it decides the membership and order of batches")

    @field_validator("boundaries")
    @classmethod
    def _ascending(cls, boundaries: list[int] | None) -> list[int] | None:
        if boundaries is None:
            return None
        if len(boundaries) < 2 or boundaries[0] != 0:
            raise ValueError(f"boundaries {boundaries} need at least two numbers, the first 0, the last the length limit")
        for left, right in itertools.pairwise(boundaries):
            if right <= left:
                what = "given twice" if right == left else "not ascending"
                raise ValueError(f"boundaries {boundaries}: {right} after {left} is {what}")
        return boundaries


class PoolConfig(Section):
    """The bounded pool of ready features between targets and drafters."""

    policy: Policy = Field("oldest", description="which ready item a free drafter pulls")
    capacity_items: Count = Field(20, description="items the pool holds, those being produced included")
    capacity_bytes: Count = Field(64 * 2**30, description="bytes the pool holds, those being produced included")
    wait_seconds: float | None = Field(
        None, gt=0, description="round_robin_wait only: seconds it waits for its bucket before it moves on; needed on real engines"
    )


class PipelineConfig(Section):
    """Where the work happens."""

    engine: EngineName = Field("inline", description="inline: this process; ray: one actor a device; simulated: a virtual clock")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda when there is one")
    targets: Count = Field(1, description="replicas of the frozen target")
    drafters: Count = Field(1, description="replicas of the drafter; they average their gradients")
    prefetch: Count = Field(8, description="batches read ahead and waiting for the targets, at most")
    prefetch_workers: Count = Field(1, description="readers that make those batches")
    threads: NonNegative = Field(0, description="CPU threads of a worker; 0: the cores shared out among the workers")
    ray_address: str | None = Field(None, description="a running Ray cluster to use; empty: start one on this machine")


class OptimConfig(Section):
    """AdamW or Muon, with warm-up and cosine decay over the true number of steps."""

    name: Literal["adamw", "muon"] = Field("adamw", description="muon: matrices by Muon, norms by AdamW; learns more a step")
    lr: float = Field(6e-4, gt=0, description="peak learning rate")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="learning rate at the end, as a share of lr")
    warmup: float = Field(0.04, ge=0, lt=1, description="share of the steps in which lr rises from 0")
    weight_decay: float = Field(0.01, ge=0, description="decoupled weight decay of matrices; norms have none")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the gradient's mean")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the gradient's square")
    momentum: float = Field(0.95, ge=0, lt=1, description="muon only: decay of the gradient's sum")
    eps: float = Field(1e-8, gt=0, description="added to the root of the square")
    clip: float = Field(1.0, gt=0, description="largest gradient norm of a step")
    accumulate: Count = Field(32, description="batches an optimiser window")
    epochs: Count = Field(6, description="times each sample is trained on")
    max_steps: Count | None = Field(None, description="stop after so many optimiser steps; the schedule then ends there")
    seed: NonNegative = Field(0, description="of the drafter's first weights, the anchors, the noise and the hold-out")


class TelemetryConfig(Section):
    """What is written down while the run goes on."""

    metrics_every: Count = Field(1, description="accuracy and streak on one drafter batch in so many; the loss on all")
    log_every: float = Field(10.0, gt=0, description="seconds between console lines")
    sample_every: float = Field(5.0, gt=0, description="seconds between samples of workers, queues and the system")
    trackers: list[Literal["tensorboard", "trackio", "wandb"]] = Field(
        [], description="also log steps there while the run goes on; trackio and wandb must be installed"
    )


class EvaluationConfig(Section):
    """Held-out evaluation: acceptance length simulated on the answers of the data, and in real decoding."""

    every: NonNegative = Field(0, description="optimiser steps between evaluations; 0: only when the run ends")
    anchors: Count = Field(64, description="blocks a held-out conversation, the same random ones at every evaluation")
    decode_every: NonNegative = Field(0, description="optimiser steps between real speculative decodings; 0: never")
    decode_prompts: Count = Field(8, description="held-out prompts decoded each time, the same ones")
    decode_tokens: Count = Field(128, description="tokens of an answer decoded, or walked over, at most")


class CheckpointConfig(Section):
    """When the run is written down so that it can go on."""

    every: NonNegative = Field(200, description="optimiser steps between checkpoints; 0: only at the end and on a stop")
    keep: Count = Field(3, description="checkpoints kept, the newest")
    best: bool = Field(True, description="keep the weights of the best held-out acceptance too (needs data.holdout)")


Seconds = Annotated[float, Field(ge=0)]


class SimulationConfig(Section):
    """What `dflash simulate`, `advise` and `compare-plans` take for granted; training reads none of it.

    Costs are seconds one worker spends on one batch, summed over the terms. The defaults are the field record's machine in its first part
    (each target 6.4 Ktok/s of padded tokens); `dflash calibrate` measures those of another.
    """

    lengths: str = Field("data", description="data: those of data.path; lognormal: drawn as below; else a file of lengths")
    samples: Count = Field(902_000, description="samples (lognormal)")
    median_length: float = Field(1617.0, ge=1, description="median, tokens (lognormal)")
    sigma: float = Field(0.7, ge=0, description="standard deviation of the natural logarithm of the length (lognormal)")
    shortest: Count = Field(64, description="shorter ones are lengthened to it, tokens (lognormal)")
    longest: Count = Field(8192, description="longer ones are cut to it, tokens (lognormal)")
    loss_share: float = Field(
        1.0, gt=0, le=1, description="share of a row's tokens that are supervised, where the data doesn't say"
    )
    feature_bytes_per_token: Count | None = Field(None, description="bytes; empty: from target and drafter; without these 51,200")
    hours: float = Field(2.0, gt=0, description="simulated, at most; a run that ends sooner is simulated whole")
    seed: NonNegative = Field(0, description="of the lengths drawn and of the noise")
    noise: float = Field(0.1, ge=0, le=1, description="standard deviation of a job's seconds, relative to what the terms say")
    cores: NonNegative = Field(0, description="CPU cores that all workers share, each using at most one; 0: a device each")
    costs: str | None = Field(None, description="file written by `dflash calibrate`; it stands in for all terms below")
    prefetch_fixed: Seconds = Field(0.05, description="s a batch read")
    prefetch_per_token: Seconds = Field(0.0, description="s a real token read")
    target_fixed: Seconds = Field(0.0, description="s a batch")
    target_per_row: Seconds = Field(0.0, description="s a row")
    target_per_padded_token: Seconds = Field(1.5625e-4, description="s a padded token")
    target_per_length_squared: Seconds = Field(0.0, description="s a squared length, padding included: rows x longest^2")
    target_per_packed_token: Seconds = Field(0.0, description="s more a real token of a packed batch")
    target_read_per_token: Seconds = Field(
        0.0, description="s a token read, not computed (target.features=cached, second epoch on)"
    )
    drafter_fixed: Seconds = Field(0.0, description="s a batch")
    drafter_per_row: Seconds = Field(0.0, description="s a row")
    drafter_per_token: Seconds = Field(7.0e-5, description="s a real token")
    drafter_per_anchor: Seconds = Field(0.0, description="s an anchor (a block drafted)")
    drafter_per_anchor_token: Seconds = Field(
        0.0, description="s an anchor and token of its row: a block's attention to its context"
    )
    drafter_metrics: Seconds = Field(0.0, description="s more a batch with metrics")
    evaluation_share: Seconds = Field(
        1 / 3, description="share of a training batch's seconds that evaluating a held-out one takes: no backward pass"
    )
    step_fixed: Seconds = Field(0.5, description="s an optimiser step, every drafter busy with it")
    step_per_drafter: Seconds = Field(0.0, description="s more for each drafter beyond the first: adding up gradients")
    checkpoint_seconds: Seconds = Field(0.0, description="s drafter 0 spends on writing a checkpoint")
    copy_fixed: Seconds = Field(0.0, description="s a job for messages between coordinator and worker; takes no core")
    copy_bytes_per_second: Seconds = Field(0.0, description="bytes/s features are handed over at, both ways; 0: at no cost")

    @model_validator(mode="after")
    def _lengths_have_room(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest={self.shortest} is above longest={self.longest}")
        return self


class RunConfig(Section):
    """One run."""

    data: DataConfig
    target: TargetConfig
    drafter: DrafterConfig = DrafterConfig()
    batching: BatchingConfig = BatchingConfig()
    pool: PoolConfig = PoolConfig()
    pipeline: PipelineConfig = PipelineConfig()
    optim: OptimConfig = OptimConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    simulation: SimulationConfig = SimulationConfig()

    @property
    def window(self) -> int:
        """Batches a stratified window: `batching.window`, or the optimiser's own when empty."""
        return self.batching.window or self.optim.accumulate

    @model_validator(mode="after")
    def _has_prompts_to_decode(self) -> Self:
        if self.evaluation.decode_every and not self.data.holdout:
            raise ValueError("evaluation.decode_every decodes held-out prompts: set data.holdout (samples), or decode_every=0")
        return self

    @model_validator(mode="after")
    def _policy_can_run(self) -> Self:
        if self.pool.policy == "round_robin_wait" and self.pool.wait_seconds is None and self.pipeline.engine != "simulated":
            raise ValueError(
                "pool.policy=round_robin_wait can deadlock: set pool.wait_seconds (seconds until it moves on), or use oldest"
            )
        return self


def load_config(path: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """Read a run's YAML file and apply `section.key=value` overrides.

    Raises:
        RefusedInput: the file can't be read or is not YAML, a key is unknown, a value is out of bounds.
    """
    place = Path(path)
    try:
        tree = yaml.safe_load(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise RefusedInput(f"{place}: can't be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RefusedInput(f"{place}: not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise RefusedInput(f"{place}: holds no settings; a config is a YAML mapping with data, target, ...")
    return build_config(tree, overrides or [], place=str(place))


def build_config(tree: dict[str, Any], overrides: list[str] | None = None, *, place: str = "config") -> RunConfig:
    """Build a `RunConfig` from a nested dict and `section.key=value` overrides.

    Raises:
        RefusedInput: an unknown key or a bad value, named with its full key and the nearest known one.
    """
    merged = {section: dict(values) if isinstance(values, dict) else values for section, values in tree.items()}
    for override in overrides or []:
        section, key, value = parse_override(override)
        values = merged.setdefault(section, {})
        if not isinstance(values, dict):
            raise RefusedInput(f"{place}: {section} is not a mapping of settings")
        values[key] = value
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise RefusedInput(
            "\n".join(explain(place, item, known_keys() + list(RunConfig.model_fields)) for item in error.errors())
        ) from error


def dump_config(config: RunConfig) -> str:
    """The whole config as YAML, every setting with its value."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def known_keys() -> list[str]:
    """Every `section.key` a config may hold."""
    sections = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return [
        f"{name}.{key}"
        for name, section in sections.items()
        if isinstance(section, type) and issubclass(section, Section)
        for key in section.model_fields
    ]
