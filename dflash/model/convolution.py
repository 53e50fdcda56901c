"""DFlash 2's convolution over the slots of a block: each slot is mixed with the ones before it, by weights it makes itself.

    out[k] = sum over t of (base[t] + change[k, t]) * row[k - t],    t = 0 .. taps - 1

`base` has a weight a channel; `change` is read off the slot's own row, one weight for a group of channels. It stands on both sides of
attention and of the MLP: one projection of the row before makes the changes of both sides. Taps look back inside the block only: slot 0
has nothing before it, and no other block is ever seen. With first weights (base 1 and 0, changes 0) it does nothing.

Definition, names and shapes are those of z-lab's released code and checkpoints (z-lab/dflash, `DFlash2DraftModel`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class BlockConvolution(nn.Module):
    """Grouped dynamic depthwise convolution, the two sides of one sublayer.

    Attributes:
        base_kernel: [2 sides, taps, hidden].
        kernel_projection: hidden -> 2 sides x taps x groups.
    """

    def __init__(self, hidden_size: int, taps: int, group_size: int) -> None:
        super().__init__()
        self.taps, self.groups = taps, hidden_size // group_size
        self.base_kernel = nn.Parameter(torch.empty(2, taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * taps * self.groups, bias=False)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Make it do nothing."""
        self.base_kernel.zero_()
        self.base_kernel[:, 0] = 1.0
        self.kernel_projection.weight.zero_()

    def enter(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [blocks, slots, hidden] on the way in -> what the sublayer reads, and the changes that `leave` needs."""
        changes = self.kernel_projection(rows).unflatten(-1, (2, self.taps, self.groups))
        return self._mixed(rows, changes[..., 0, :, :], self.base_kernel[0]), changes[..., 1, :, :]

    def leave(self, rows: Tensor, changes: Tensor) -> Tensor:
        """What the sublayer made [blocks, slots, hidden], mixed with the changes of `enter`."""
        return self._mixed(rows, changes, self.base_kernel[1])

    def _mixed(self, rows: Tensor, changes: Tensor, base: Tensor) -> Tensor:
        grouped = rows.reshape(*rows.shape[:-1], self.groups, -1)
        weights = base.view(self.taps, self.groups, -1) + changes[..., None]  # [blocks, slots, taps, groups, channels of a group]
        mixed: Tensor = weights[..., 0, :, :] * grouped
        for tap in range(1, self.taps):
            before = functional.pad(grouped[..., :-tap, :, :], (0, 0, 0, 0, tap, 0))
            mixed = mixed + weights[..., tap, :, :] * before
        return mixed.flatten(-2)
