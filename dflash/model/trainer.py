"""Training of the drafter: batches add up sums, a step turns a whole window of them into one update.

    accumulate(batch)   anchors -> blocks -> drafter -> loss; backward of sum(weight * nll), added to the window
    apply_step(lr)      sum the window over replicas, divide by its weights, clip, change the weights (`optimizer`)

The gradient of a step is that of sum(weight * nll) / sum(weight) over the window, however its batches fell on replicas, and
however a batch was cut into passes: a batch with more blocks than `positions_at_once` allows is run in several, so memory
does not grow with the batch. Weights, gradients and the optimiser's states are float32 (pure bfloat16 turned to NaN in the field after
240 steps); the products run in bfloat16 where `drafter.precision` says so.

All gradients live in one flat buffer whose last two numbers are the window's loss and weight sums: replicas are summed with one
call on one tensor, and a NaN or an infinity anywhere reaches every replica with it, so that all skip the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dflash.config import RunConfig
from dflash.errors import RefusedInput
from dflash.model.anchors import EVALUATION, Anchors, draw_anchors, noise_seed
from dflash.model.attention import attention_backend
from dflash.model.blocks import DraftBlocks, lay_out
from dflash.model.capture import Capture
from dflash.model.drafter import Drafter, DrafterLayer, block_input
from dflash.model.facts import target_facts
from dflash.model.loss import HeadLoss, Places, TargetStates, head_loss
from dflash.model.objectives.registry import CROSS_ENTROPY, Mix, mix_of
from dflash.model.optimizer import DrafterOptimizer
from dflash.model.results import BatchResult, BlockMetrics, StepResult, merged_metrics
from dflash.model.selector import select
from dflash.model.shape import DrafterShape
from dflash.model.shared_weights import load_shared_weights
from dflash.model.walk import answers_to_walk, walk
from dflash.model.weight_files import read_tensors, write_tensors

if TYPE_CHECKING:
    from dflash.data.rows import TokenRows

MODEL_FILE, OPTIMIZER_FILE, SHAPE_FILE = "model.safetensors", "optimizer.safetensors", "config.json"


class DrafterTrainer:
    """A drafter, its optimiser, and the window being added up.

    Attributes:
        drafter: the module; parameters float32.
        shape: its sizes and rules.
        capture: what it expects of the target.
        steps: optimiser steps taken.
    """

    def __init__(self, config: RunConfig, *, device: str | torch.device = "cpu") -> None:
        """Build the drafter with first weights from optim.seed and load the target's embedding, head and final norm.

        Raises:
            RefusedInput: the target's folder is not complete, or the drafter's settings don't fit it.
        """
        self.config = config
        self.device = torch.device(device)
        self.shape = DrafterShape.resolve(config.drafter, target_facts(config.target.path))
        self.capture = Capture.of(config, self.shape)
        self.steps = 0
        self._mix = mix_of(config.drafter.loss)
        on_gpu = self.device.type == "cuda"
        self._autocasts = config.drafter.precision == "bfloat16" or (config.drafter.precision == "auto" and on_gpu)
        self._dtype = torch.bfloat16 if self._autocasts else torch.float32

        shared = load_shared_weights(config.target.path)
        tied = shared.head is shared.embedding
        self._embedding = shared.embedding.to(self.device, self._dtype)
        self._head = self._embedding if tied else shared.head.to(self.device, self._dtype)
        self.drafter = Drafter(self.shape, attention_backend(config.drafter.attention, self.device))
        self.drafter.initialise(config.optim.seed, shared.final_norm)
        self.drafter.to(self.device)
        if config.drafter.compile:
            _compile_dense_parts(self.drafter)
        self._window = _flat_gradients(self.drafter, extra=2)
        self._optimizer = DrafterOptimizer(self.drafter, config.optim)

    def accumulate(
        self, rows: TokenRows, features: Tensor, *, epoch: int, anchors: int | None = None, with_metrics: bool = False
    ) -> BatchResult:
        """Add a batch to the window: its loss, its weights and the gradient of its loss sum.

        Args:
            rows: the batch's conversations, end to end.
            features: [tokens, capture.width], of exactly these tokens; any device and float dtype.
            epoch: decides, with optim.seed and each sample's id, the anchors and the noise.
            anchors: blocks a conversation, at most; None: drafter.anchors.
            with_metrics: whether to count hits (costs a comparison, no second pass over the vocabulary).
        """
        started = time.perf_counter()
        budget = anchors or self.config.drafter.anchors
        drawn = draw_anchors(rows, budget=budget, seed=self.config.optim.seed, epoch=epoch)
        result = self._run(rows, features, drawn, epoch=epoch, with_metrics=with_metrics, learn=True)
        self._window[-2] += result.loss_sum
        self._window[-1] += result.weight_sum
        return _timed(result, started)

    @torch.no_grad()
    def evaluate(self, rows: TokenRows, features: Tensor) -> BatchResult:
        """Loss and hits of a held-out batch, the same anchors at every call, and the walk over its answers: no noise, no gradient."""
        started = time.perf_counter()
        anchors = draw_anchors(rows, budget=self.config.evaluation.anchors, seed=self.config.optim.seed, epoch=EVALUATION)
        result = self._run(rows, features, anchors, epoch=EVALUATION, with_metrics=True, learn=False)
        answers = answers_to_walk(rows, self.config.evaluation.decode_tokens)
        drafted = self._draft(rows, features, answers.places, CROSS_ENTROPY, noise_epoch=None, with_hits=True)
        streaks = [_streaks(_right_slots(blocks, outcome.hits.cpu().numpy())) for blocks, outcome in drafted]
        return _timed(replace(result, walk=walk(answers, np.concatenate([np.empty(0, np.int64), *streaks]))), started)

    @torch.no_grad()
    def apply_step(self, lr: float, all_reduce: Callable[[Tensor], None] | None = None) -> StepResult:
        """Close the window: one optimiser step on the gradient of its weighted mean loss, and an empty window after it.

        Args:
            lr: learning rate of this step.
            all_reduce: sums a flat float32 tensor over the replicas, in place; None for a single replica.

        Returns:
            `skipped` when loss or gradient is not finite or the window had nothing supervised: nothing but the window changes then.
        """
        started = time.perf_counter()
        if all_reduce is not None:
            all_reduce(self._window)
        gradient = self._window[:-2]
        loss_sum, weight_sum, squares = torch.stack([self._window[-2], self._window[-1], gradient.norm()]).tolist()
        loss = loss_sum / weight_sum if weight_sum else float("nan")
        grad_norm = squares / weight_sum if weight_sum else 0.0
        reason = _reason_to_skip(loss, grad_norm, weight_sum)
        if not reason:
            gradient.mul_(min(1.0, self.config.optim.clip / max(grad_norm, 1e-12)) / weight_sum)
            self._optimizer.step(lr)
            self.steps += 1
        self._window.zero_()
        return StepResult(loss, grad_norm, weight_sum, bool(reason), reason, time.perf_counter() - started)

    def save(self, folder: Path) -> None:
        """Write weights, the optimiser's states (float32) and the shape into a folder; each file is written whole or not at all.

        The window being added up is not part of it: save between windows.

        Raises:
            RunFailed: the disk is full or the folder can't be written.
        """
        self.save_weights(folder)
        write_tensors(folder / OPTIMIZER_FILE, self._optimizer.moments(), {"format": "pt", "steps": str(self.steps)})

    def save_weights(self, folder: Path) -> None:
        """Write weights (float32) and the shape, which is what serving needs.

        Raises:
            RunFailed: the disk is full or the folder can't be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.shape.write(folder / SHAPE_FILE)
        write_tensors(folder / MODEL_FILE, dict(self.drafter.named_parameters()), {"format": "pt"})

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote; training then goes on bit for bit as if it had never stopped. The window is emptied.

        Raises:
            RefusedInput: a file is missing or truncated, or was made for a drafter of another shape.
        """
        stored = DrafterShape.from_config(folder / SHAPE_FILE)
        different = [
            f"{field.name} {getattr(stored, field.name)!r} instead of {getattr(self.shape, field.name)!r}"
            for field in fields(DrafterShape)
            if getattr(stored, field.name) != getattr(self.shape, field.name)
        ]
        if different:
            raise RefusedInput(
                f"{folder}: a checkpoint of another drafter ({'; '.join(different)}); use the config it was made with"
            )
        metadata = read_tensors(folder / OPTIMIZER_FILE, self._optimizer.moments())
        read_tensors(folder / MODEL_FILE, dict(self.drafter.named_parameters()))
        self.steps = int(metadata.get("steps", 0))
        self._optimizer.resume_at(self.steps)
        self._window.zero_()

    def _run(
        self, rows: TokenRows, features: Tensor, anchors: Anchors, *, epoch: int, with_metrics: bool, learn: bool
    ) -> BatchResult:
        """All blocks of a batch: their loss, and backward of it when there is something to `learn`."""
        loss_sum, cross_entropy_sum, weight_sum, slots, metrics = 0.0, 0.0, 0.0, 0, []
        noise_epoch = epoch if learn else None
        for blocks, outcome in self._draft(rows, features, anchors, self._mix, noise_epoch=noise_epoch, with_hits=with_metrics):
            if learn:
                outcome.loss_sum.backward()  # type: ignore[no-untyped-call]
            loss_sum += float(outcome.loss_sum.detach())
            cross_entropy_sum += float(outcome.cross_entropy_sum)
            weight_sum += float(blocks.weights.sum(dtype=np.float64))
            slots += len(blocks.slots)
            if with_metrics:
                metrics.append(_block_metrics(blocks, outcome.hits.cpu().numpy()))
        return BatchResult(
            loss_sum=loss_sum,
            weight_sum=weight_sum,
            tokens=len(rows.tokens),
            loss_tokens=int(rows.loss_mask.sum()),
            anchors=len(anchors),
            slots=slots,
            seconds=0.0,
            metrics=merged_metrics(metrics),
            cross_entropy_sum=cross_entropy_sum,
        )

    def _draft(
        self, rows: TokenRows, features: Tensor, anchors: Anchors, mix: Mix, *, noise_epoch: int | None, with_hits: bool
    ) -> Iterator[tuple[DraftBlocks, HeadLoss]]:
        """Draft all blocks of a batch, a bounded number at a time."""
        if len(features) != len(rows.tokens):
            raise ValueError(f"{len(features)} rows of features for {len(rows.tokens)} tokens")
        if features.shape[1] != self.capture.width:
            raise ValueError(f"features of {features.shape[1]} numbers a token, {self.capture.width} are needed")
        for part in anchors.split(max(1, self.config.drafter.positions_at_once // self.shape.block_size)):
            blocks = lay_out(rows, part, block_size=self.shape.block_size, gamma=self.shape.gamma, is_causal=self.shape.is_causal)
            visible = self._visible_features(rows, features, blocks, noise_epoch=noise_epoch)
            inputs = block_input(blocks, visible, self._embedding, self.shape.mask_token_id)
            with self._autocast():
                hidden = self.drafter(inputs)
                outcome = head_loss(
                    hidden,
                    self._head,
                    torch.from_numpy(blocks.labels).to(self.device),
                    torch.from_numpy(blocks.weights).to(self.device),
                    logits_chunk=self.config.drafter.logits_chunk,
                    with_hits=with_hits,
                    mix=mix,
                    places=Places(blocks.slots, self.shape.block_size, blocks.full_weight),
                    target=self._target_states(features, blocks) if mix.needs_target else None,
                    softcap=self.shape.final_logit_softcap,
                )
                outcome = self._with_selector(rows, blocks, hidden, outcome)
            yield blocks, outcome

    def _target_states(self, features: Tensor, blocks: DraftBlocks) -> TargetStates:
        """The target's last states that predict the labels, each once, on this device."""
        assert self.capture.last_state is not None
        positions, of_slot = np.unique(blocks.label_tokens - 1, return_inverse=True)
        states = features[:, self.capture.last_state][torch.from_numpy(positions).to(features.device)]
        return TargetStates(states.to(self.device, self._dtype), of_slot)

    def _with_selector(self, rows: TokenRows, blocks: DraftBlocks, hidden: Tensor, outcome: HeadLoss) -> HeadLoss:
        """DFlash 2: the selector's gradient, and its choice in the place of the drafter's own. The loss told stays the drafter's."""
        selector = self.drafter.candidate_selector
        if selector is None:
            return outcome
        chosen = select(
            selector,
            hidden,
            self._head,
            torch.from_numpy(blocks.labels).to(self.device),
            torch.from_numpy(rows.tokens[blocks.label_tokens - 1].astype(np.int64)).to(self.device),
            torch.from_numpy(blocks.weights).to(self.device),
            logits_chunk=self.config.drafter.logits_chunk,
            softcap=self.shape.final_logit_softcap,
        )
        teaches = self.config.drafter.selector_weight * (chosen.loss_sum - chosen.loss_sum.detach())
        return replace(outcome, loss_sum=outcome.loss_sum + teaches, hits=chosen.hits if len(outcome.hits) else outcome.hits)

    def _visible_features(self, rows: TokenRows, features: Tensor, blocks: DraftBlocks, *, noise_epoch: int | None) -> Tensor:
        """The features of the pass's context rows on this device, with noise when the config asks for it."""
        read = features[:, : self.shape.feature_size]
        visible = read[torch.from_numpy(blocks.context_tokens).to(features.device)].to(self.device, self._dtype)
        noise = self.config.drafter.noise
        if not noise or noise_epoch is None or not len(visible):
            return visible
        by_layer = visible.view(len(visible), -1, self.shape.hidden_size).float()
        scale = noise * by_layer.square().mean(-1, keepdim=True).sqrt()
        gaussian = torch.empty_like(by_layer)
        rows_of_context = np.searchsorted(rows.offsets, blocks.context_tokens, side="right") - 1
        for row in np.unique(rows_of_context):
            # drawn for the whole conversation: how much of it a pass sees must not change what it sees
            generator = torch.Generator(self.device).manual_seed(
                noise_seed(self.config.optim.seed, noise_epoch, int(rows.sample_ids[row]))
            )
            length = int(rows.offsets[row + 1] - rows.offsets[row])
            drawn = torch.randn(length, *by_layer.shape[1:], generator=generator, device=self.device)
            here = np.flatnonzero(rows_of_context == row)
            gaussian[here[0] : here[-1] + 1] = drawn[torch.from_numpy(blocks.context_positions[here]).to(self.device)]
        return (by_layer + scale * gaussian).flatten(-2).to(self._dtype)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocasts)


def _block_metrics(blocks: DraftBlocks, hits: np.ndarray) -> BlockMetrics:
    right = _right_slots(blocks, hits)
    return BlockMetrics(
        correct=tuple(right.sum(0).tolist()),
        valid=tuple(np.bincount(blocks.slots % blocks.layout.block_size - 1, minlength=right.shape[1]).tolist()),
        streak_sum=int(_streaks(right).sum()),
        blocks=blocks.layout.blocks,
    )


def _right_slots(blocks: DraftBlocks, hits: np.ndarray) -> np.ndarray:
    """[blocks, block_size - 1]: whether the slot is supervised and right."""
    block, slot = np.divmod(blocks.slots, blocks.layout.block_size)
    right = np.zeros((blocks.layout.blocks, blocks.layout.block_size - 1), dtype=np.bool_)
    right[block, slot - 1] = hits
    return right


def _streaks(right: np.ndarray) -> np.ndarray:
    """[blocks]: right slots before the first that isn't."""
    return np.asarray(np.logical_and.accumulate(right, axis=1).sum(1))


def _flat_gradients(drafter: Drafter, *, extra: int) -> Tensor:
    """One float32 buffer that holds every parameter's gradient (each `grad` is a view of it) and `extra` numbers at its end."""
    sizes = [parameter.numel() for parameter in drafter.parameters()]
    flat = torch.zeros(sum(sizes) + extra, device=next(drafter.parameters()).device)
    for parameter, part in zip(drafter.parameters(), torch.split(flat[: sum(sizes)], sizes), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


def _compile_dense_parts(drafter: Drafter) -> None:
    """Compile what stands around the attention; its groups change with every batch and would compile again each time."""
    for layer in drafter.layers:
        assert isinstance(layer, DrafterLayer)
        layer.before = torch.compile(layer.before, dynamic=True)  # type: ignore[method-assign]
        layer.after = torch.compile(layer.after, dynamic=True)  # type: ignore[method-assign]


def _reason_to_skip(loss: float, grad_norm: float, weight_sum: float) -> str:
    if not weight_sum:
        return "no supervised slot in the window"
    if not np.isfinite(loss):
        return f"the loss is {loss}"
    if not np.isfinite(grad_norm):
        return f"the gradient's norm is {grad_norm}"
    return ""


def _timed(result: BatchResult, started: float) -> BatchResult:
    return replace(result, seconds=time.perf_counter() - started)
