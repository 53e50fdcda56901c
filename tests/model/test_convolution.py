"""The convolution against a loop in float64, and what it must never do."""

from __future__ import annotations

import pytest
import torch

from dflash.model.convolution import BlockConvolution

BLOCKS, SLOTS, HIDDEN = 3, 5, 12


def random_convolution(taps: int, group_size: int) -> BlockConvolution:
    generator = torch.Generator().manual_seed(taps)
    convolution = BlockConvolution(HIDDEN, taps, group_size).double()
    for parameter in convolution.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return convolution


def rows(seed: int = 0) -> torch.Tensor:
    return torch.randn(BLOCKS, SLOTS, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(convolution: BlockConvolution, source: torch.Tensor, values: torch.Tensor, side: int, group_size: int) -> torch.Tensor:
    groups = HIDDEN // group_size
    out = torch.zeros_like(values)
    for block in range(BLOCKS):
        for slot in range(SLOTS):
            made = (convolution.kernel_projection.weight @ source[block, slot]).view(2, convolution.taps, groups)
            for tap in range(min(convolution.taps, slot + 1)):
                for channel in range(HIDDEN):
                    weight = convolution.base_kernel[side, tap, channel] + made[side, tap, channel // group_size]
                    out[block, slot, channel] += weight * values[block, slot - tap, channel]
    return out


@pytest.mark.parametrize(("taps", "group_size"), [(2, 4), (2, 1), (3, 12)])
@torch.no_grad()
def test_each_slot_mixes_with_those_before_it_by_its_own_weights(taps: int, group_size: int) -> None:
    convolution = random_convolution(taps, group_size)
    entered, changes = convolution.enter(rows())
    torch.testing.assert_close(entered, by_hand(convolution, rows(), rows(), 0, group_size))
    torch.testing.assert_close(convolution.leave(rows(1), changes), by_hand(convolution, rows(), rows(1), 1, group_size))


@torch.no_grad()
def test_no_slot_sees_a_later_one_or_another_block() -> None:
    convolution = random_convolution(2, 4)
    before, _ = convolution.enter(rows())
    changed = rows()
    changed[1, 3] += 1
    after, _ = convolution.enter(changed)
    touched = (before != after).any(-1)
    assert touched.nonzero().tolist() == [[1, 3], [1, 4]]


@torch.no_grad()
def test_first_weights_do_nothing() -> None:
    convolution = BlockConvolution(HIDDEN, 2, 4).double()
    entered, changes = convolution.enter(rows())
    assert torch.equal(entered, rows())
    assert torch.equal(convolution.leave(rows(1), changes), rows(1))
