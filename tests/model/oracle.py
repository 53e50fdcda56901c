"""Feeds the plain drafter of the benchmarks with rows, padded the way the peers pad them: the tests' oracle, in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.plain_drafter import PlainDrafter, PlainSizes, plain_loss
from dflash.data.rows import TokenRows
from dflash.model.anchors import Anchors
from dflash.model.shape import DrafterShape


def plain_sizes(shape: DrafterShape) -> PlainSizes:
    return PlainSizes(
        hidden=shape.hidden_size,
        intermediate=shape.intermediate_size,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        captured=len(shape.target_layer_ids),
        block_size=shape.block_size,
        mask_token=shape.mask_token_id,
        windows=tuple(shape.window(layer) for layer in range(shape.layers)),
        is_causal=shape.is_causal,
        eps=shape.rms_norm_eps,
        theta=shape.rope.theta,
    )


def plain_outcome(
    shape: DrafterShape,
    state: dict[str, Tensor],
    rows: TokenRows,
    features: Tensor,
    anchors: Anchors,
    embedding: Tensor,
    head: Tensor,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss sum, weight sum and gradients by name, all float64, of one padded batch with padded anchors."""
    model = PlainDrafter(plain_sizes(shape)).double()
    model.load_state_dict({name: tensor.double() for name, tensor in state.items()})
    lengths = np.diff(rows.offsets)
    count = max(1, int(np.bincount(anchors.row, minlength=len(lengths)).max()))
    padded_features = torch.zeros(len(lengths), int(lengths.max()), features.shape[1], dtype=torch.float64)
    tokens = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long)
    loss_mask = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.bool)
    positions = torch.zeros(len(lengths), count, dtype=torch.long)
    valid = torch.zeros(len(lengths), count, dtype=torch.bool)
    for row, length in enumerate(lengths):
        span = slice(rows.offsets[row], rows.offsets[row + 1])
        padded_features[row, :length] = features[span].double()
        tokens[row, :length] = torch.from_numpy(rows.tokens[span].astype(np.int64))
        loss_mask[row, :length] = torch.from_numpy(rows.loss_mask[span])
        drawn = anchors.position[anchors.row == row]
        positions[row, : len(drawn)] = torch.from_numpy(drawn)
        valid[row, : len(drawn)] = True
    loss_sum, weight_sum = plain_loss(
        model,
        padded_features,
        tokens,
        loss_mask,
        torch.from_numpy(lengths),
        positions,
        valid,
        embedding.double(),
        head.double(),
        shape.gamma,
    )
    loss_sum.backward()
    return loss_sum.detach(), weight_sum, {name: parameter.grad for name, parameter in model.named_parameters()}
