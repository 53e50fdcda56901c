"""What a run has its target capture: the drafter's layers and, where the loss asks for it, the state its own logits are made of.

Features of one token are the states of the captured layers side by side: first those that the drafter reads (its `fc`), in the order of
`target_layer_ids`. A loss that compares the drafter with the target's own distribution needs the target's last state as well, the
one after the final norm that its vocabulary head reads: it stands behind them, and the drafter never sees it, so neither the drafter's
shape nor its checkpoint depends on the loss. Where the drafter reads the last layer anyway, no column is added.

Needs no torch: planner, simulator and doctor ask here for the bytes of a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash.config import RunConfig
from dflash.model.objectives.registry import mix_of
from dflash.model.shape import DrafterShape


@dataclass(frozen=True)
class Capture:
    """The columns of a token's features.

    Attributes:
        layer_ids: layers the target captures, in the order of the columns; id i is the output AFTER layer i.
        width: numbers a token.
        last_state: columns of the state that the target's head reads; None when the loss does not ask for it.
    """

    layer_ids: tuple[int, ...]
    width: int
    last_state: slice | None

    @classmethod
    def of(cls, config: RunConfig, shape: DrafterShape) -> Capture:
        """What the target of a run captures for a drafter of this shape."""
        layer_ids, hidden = shape.target_layer_ids, shape.hidden_size
        if not mix_of(config.drafter.loss).needs_target:
            return cls(layer_ids, shape.feature_size, None)
        last = shape.target_layers - 1
        if last not in layer_ids:
            layer_ids = (*layer_ids, last)
        column = layer_ids.index(last) * hidden
        return cls(layer_ids, len(layer_ids) * hidden, slice(column, column + hidden))


def bytes_per_token(config: RunConfig, shape: DrafterShape) -> int:
    """Bytes of one token's features as the pool keeps them."""
    return Capture.of(config, shape).width * config.target.feature_number_bytes
