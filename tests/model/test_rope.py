"""Rates and angles are those of transformers' own functions, for random parameters of every kind of scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dflash.errors import RefusedInput
from dflash.model.rope import Rope, read_rope, rope_note
from dflash.model.rotary import rotary_angles

ORIGINAL = st.sampled_from([256, 2048, 8192])
KINDS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "linear": st.fixed_dictionaries({"factor": st.floats(1, 40)}),
    "dynamic": st.fixed_dictionaries({"factor": st.floats(1, 40)}),
    "llama3": st.fixed_dictionaries(
        {
            "factor": st.floats(1, 40),
            "low_freq_factor": st.floats(0.5, 2),
            "high_freq_factor": st.floats(2.5, 8),
            "original_max_position_embeddings": ORIGINAL,
        }
    ),
    "yarn": st.fixed_dictionaries(
        {"factor": st.floats(1, 40), "original_max_position_embeddings": ORIGINAL},
        optional={
            "beta_fast": st.floats(8, 64),
            "beta_slow": st.floats(0.5, 4),
            "attention_factor": st.floats(0.5, 2),
            "mscale": st.floats(0.5, 2),
            "mscale_all_dim": st.floats(0.5, 2),
            "truncate": st.booleans(),
        },
    ),
}
SOME = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64, "truncate": False},
}


def theirs(kind: str, parameters: dict[str, Any], theta: float, head_dim: int, positions: int, length: int | None = None):
    config = Qwen3Config(
        head_dim=head_dim,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(
    data=st.data(), theta=st.floats(1e3, 1e7), head_dim=st.sampled_from([8, 64, 128]), positions=st.sampled_from([4096, 131_072])
)
def test_rates_and_attention_factor_are_transformers_own(kind, data, theta, head_dim, positions):
    parameters = data.draw(KINDS[kind])
    rope = read_rope({"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}, positions, "here")
    rates, attention_factor = theirs(kind, parameters, theta, head_dim, positions)
    np.testing.assert_allclose(rope.rates(head_dim), rates.double().numpy(), rtol=2e-5)
    assert rope.attention_factor == pytest.approx(attention_factor)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(data=st.data(), theta=st.floats(1e3, 1e7))
def test_what_is_written_is_read_back_and_means_the_same_to_transformers(kind, data, theta):
    given_ = {"rope_type": kind, "rope_theta": theta, **data.draw(KINDS[kind])}
    rope = read_rope({"rope_parameters": given_}, 8192, "here")
    written = rope.to_config()
    assert read_rope({"rope_parameters": written}, 8192, "there") == rope
    old = {key: value for key, value in written.items() if key != "rope_theta"}
    assert read_rope({"rope_scaling": old, "rope_theta": theta}, 8192, "there") == rope
    again, factor = ROPE_INIT_FUNCTIONS[kind](Qwen3Config(head_dim=32, max_position_embeddings=8192, rope_parameters=written))
    before, factor_before = theirs(kind, {key: value for key, value in given_.items() if key[:4] != "rope"}, theta, 32, 8192)
    torch.testing.assert_close(again, before)
    assert factor == pytest.approx(factor_before)


@pytest.mark.parametrize("kind", KINDS)
def test_angles_are_positions_times_rates_and_carry_the_attention_factor(kind):
    rope = read_rope({"rope_parameters": {"rope_type": kind, **SOME[kind]}}, 512, "here")
    positions = torch.tensor([[0, 3], [511, 200]])
    rates, factor = theirs(kind, SOME[kind], 10_000.0, 16, 512)
    angles = rotary_angles(positions, 16, rope)
    expected = positions[..., None, None].double() * rates.double()
    torch.testing.assert_close(angles.cos.double(), expected.cos() * factor, atol=3e-5, rtol=1e-4)
    torch.testing.assert_close(angles.sin.double(), expected.sin() * factor, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("position", [512, 700, 5000])
def test_a_dynamic_rope_turns_a_late_position_as_in_a_text_that_ends_there(position):
    rope = read_rope({"rope_parameters": {"rope_type": "dynamic", **SOME["dynamic"]}}, 512, "here")
    rates, _ = theirs("dynamic", SOME["dynamic"], 10_000.0, 16, 512, length=position + 1)
    angles = rotary_angles(torch.tensor([1, position]), 16, rope)
    torch.testing.assert_close(angles.cos[1, 0].double(), (position * rates.double()).cos(), atol=2e-3, rtol=0)
    assert torch.equal(angles.cos[0], rotary_angles(torch.tensor([1]), 16, Rope(10_000.0)).cos[0])


def test_part_of_a_head_several_ropes_and_long_factors_are_told_and_not_copied():
    partial = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    assert read_rope(partial, 512, "here").to_config() == {"rope_type": "default", "rope_theta": 1e7}
    assert "0.25 of a head" in rope_note(partial)
    by_type = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6}}
    assert read_rope({"rope_parameters": by_type}, 512, "here") == Rope(1e6, "linear", 8.0)
    assert "full attention" in rope_note({"rope_parameters": by_type})
    long = {"rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}, "rope_theta": 5e4}
    assert read_rope(long, 512, "here") == Rope(5e4)
    assert "longrope" in rope_note(long)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"rope_type": "spiral"}, r"here: rope_type 'spiral' is not known"),
        ({"rope_type": "linear"}, r"'linear' needs factor"),
        ({"rope_type": "linear", "factor": 0}, r"factor is 0"),
        ({"rope_type": "dynamic", "factor": "x"}, r"could not convert"),
        ({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}, r"is not above low_freq_factor"),
    ],
)
def test_a_rope_that_cannot_be_is_refused(parameters, said):
    with pytest.raises(RefusedInput, match=said):
        read_rope({"rope_parameters": parameters}, 512, "here")
