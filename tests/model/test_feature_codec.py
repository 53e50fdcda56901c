"""Features as bytes: exact in bfloat16, within the stated bound in float8_e4m3."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.errors import RunFailed
from dflash.model.feature_codec import Codec

# every value of float8_e4m3 from its definition: sign, 4 exponent bits of bias 7, 3 fraction bits; S1111111 is no number
E4M3 = np.array(
    sorted(
        sign * (2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-6 * fraction / 8)
        for sign in (-1, 1)
        for exponent in range(16)
        for fraction in range(8)
        if (exponent, fraction) != (15, 7)
    )
)


def test_bfloat16_features_come_back_to_the_bit():
    features = torch.randn(7, 12).to(torch.bfloat16)
    codec = Codec("bfloat16", 12, 4)
    assert torch.equal(codec.decode(codec.encode(features), torch.bfloat16), features)
    assert torch.equal(codec.decode(codec.encode(features.float()), torch.float32), features.float())


def test_float8_takes_the_nearest_of_its_values_to_the_scaled_number():
    torch.manual_seed(0)
    features = torch.randn(20, 3, 8) * torch.logspace(-3, 3, 20)[:, None, None]
    codec = Codec("float8_e4m3", 24, 8)
    found = codec.decode(codec.encode(features.flatten(1)), torch.float32).view(20, 3, 8).double().numpy()
    exact = features.double().numpy()
    scale = (features.abs().amax(-1, keepdim=True) / 448).double().numpy()
    distance = np.abs(exact[..., None] - E4M3 * scale[..., None]).min(-1)
    np.testing.assert_allclose(np.abs(exact - found), distance, atol=1e-6 * np.abs(exact).max(-1, keepdims=True).max())


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=8, max_size=8),
    st.sampled_from([1.0, 2.0**-60, 1e-3, 1e6]),
)
def test_float8_errs_by_a_sixteenth_at_most_and_by_a_1024th_of_the_scale_near_zero(values, factor):
    features = (torch.tensor([values], dtype=torch.float64) * factor).float()
    codec = Codec("float8_e4m3", 8, 4)
    found = codec.decode(codec.encode(features), torch.float32).double()
    scale = (features.unflatten(-1, (-1, 4)).abs().amax(-1, keepdim=True).double() / 448).expand(-1, -1, 4).flatten(1)
    bound = torch.maximum(features.double().abs() / 16, scale / 1024)
    assert bool(((found - features.double()).abs() <= bound * (1 + 1e-5) + 1e-37).all())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3"])
def test_numbers_that_are_not_finite_are_not_kept(dtype):
    with pytest.raises(RunFailed, match="aren't finite"):
        Codec(dtype, 4, 4).encode(torch.tensor([[1.0, 2.0, float("inf"), 0.0]]))


def test_a_group_of_zeros_stays_zero_and_no_scale_is_shared_between_groups():
    codec = Codec("float8_e4m3", 4, 2)
    features = torch.tensor([[0.0, 0.0, 1e-6, 2e-6], [1e4, 1.0, 1e-3, 1e-3]])
    found = codec.decode(codec.encode(features), torch.float32)
    assert torch.equal(found[0, :2], torch.zeros(2))
    assert torch.allclose(found[:, 2:], features[:, 2:], rtol=1 / 16, atol=0)
