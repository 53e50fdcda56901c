"""The flat layout of a drafter pass: which context rows and slots exist, who may see what, and what is learnt where.

Conversations lie end to end; nothing is padded. A pass holds

- context rows: for each conversation with a block, its tokens before its last anchor (later ones no block can see),
- blocks: [anchor token, MASK, ..., MASK] at positions a .. a + B - 1, ordered by conversation, then by position,
- slots: the places of blocks that are supervised. Only they get past the last attention and get logits.

A block sees the context rows of its own conversation strictly before its anchor (the anchor's own target state is not among
them), and its own slots: no other block, no other conversation. Everything here is numpy; the device sees the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash.model.anchors import Anchors

if TYPE_CHECKING:
    from dflash.data.rows import TokenRows


@dataclass(frozen=True, eq=False)  # compared by identity, so that masks can be kept for as long as the layout is in use
class BlockLayout:
    """Who sees what. A context row r is visible to block b when first_context[b] <= r < end_context[b].

    Attributes:
        first_context: [blocks]; the first context row of the block's conversation, which has position 0.
        end_context: [blocks]; one past the last visible row. end_context - first_context is the anchor's position.
        context_rows: context rows in all.
        block_size: slots a block, the anchor included.
        is_causal: whether a slot sees only itself and the slots before it in its block.
    """

    first_context: NDArray[np.int64]
    end_context: NDArray[np.int64]
    context_rows: int
    block_size: int
    is_causal: bool

    @property
    def blocks(self) -> int:
        """Blocks in the pass."""
        return len(self.first_context)

    def first_visible(self, window: int | None) -> NDArray[np.int64]:
        """[blocks]: the first context row any slot of the block sees in a layer that looks back `window` tokens (None: all).

        Slot 0 sees furthest: position q sees position k when q - k < window.
        """
        if window is None:
            return self.first_context
        return np.maximum(self.first_context, self.end_context - window + 1)


@dataclass(frozen=True)
class DraftBlocks:
    """All that one pass of the drafter is made from.

    Attributes:
        layout: who sees what.
        context_tokens: [context rows]; index of each context row's token in the batch's flat tokens (and features).
        context_positions: [context rows]; position in its conversation.
        anchor_tokens: [blocks]; token ids of slot 0.
        anchor_positions: [blocks].
        slots: [slots]; block * block_size + k of each supervised slot, ascending; k is 1 .. block_size - 1.
        labels: [slots]; the token id to predict, the one at position a + k (labels are not shifted).
        label_tokens: [slots]; index of each label in the batch's flat tokens. The target predicts it from the state of the token before.
        weights: [slots]; float32, exp(-(k - 1) / gamma).
        full_weight: sum of the weights of a block whose slots are all supervised.
    """

    layout: BlockLayout
    context_tokens: NDArray[np.int64]
    context_positions: NDArray[np.int64]
    anchor_tokens: NDArray[np.int64]
    anchor_positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    labels: NDArray[np.int64]
    label_tokens: NDArray[np.int64]
    weights: NDArray[np.float32]
    full_weight: float


def lay_out(rows: TokenRows, anchors: Anchors, *, block_size: int, gamma: float, is_causal: bool) -> DraftBlocks:
    """Lay out the blocks of `anchors`, at least one.

    A slot is supervised when it lies inside its conversation and the loss mask is set at its label.
    """
    last_anchor = np.zeros(len(rows.sample_ids), np.int64)
    last_anchor[anchors.row] = anchors.position  # ascending within a row: the last one stays
    context_start = np.concatenate([[0], np.cumsum(last_anchor)])
    context_rows = int(context_start[-1])
    context_positions = np.arange(context_rows) - np.repeat(context_start[:-1], last_anchor)
    first_context = context_start[anchors.row]
    layout = BlockLayout(first_context, first_context + anchors.position, context_rows, block_size, is_causal)

    steps = np.arange(1, block_size)
    anchor_index = rows.offsets[anchors.row] + anchors.position
    label_index = anchor_index[:, None] + steps
    inside = label_index < rows.offsets[anchors.row + 1][:, None]
    supervised = inside & rows.loss_mask[np.where(inside, label_index, 0)]
    block, step = np.nonzero(supervised)
    return DraftBlocks(
        layout=layout,
        context_tokens=np.repeat(rows.offsets[:-1], last_anchor) + context_positions,
        context_positions=context_positions,
        anchor_tokens=rows.tokens[anchor_index].astype(np.int64),
        anchor_positions=anchors.position,
        slots=block * block_size + step + 1,
        labels=rows.tokens[label_index[supervised]].astype(np.int64),
        label_tokens=label_index[supervised],
        weights=np.exp(-step / gamma).astype(np.float32),
        full_weight=float(np.exp(-(steps - 1) / gamma).sum()),
    )
