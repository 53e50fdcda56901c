from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash.config import DrafterConfig
from dflash.model.anchors import draw_anchors
from dflash.model.attention_dense import attend_dense
from dflash.model.blocks import lay_out
from dflash.model.drafter import Drafter, block_input
from dflash.model.facts import target_facts
from dflash.model.loss import head_loss
from dflash.model.rope import Rope
from dflash.model.rotary import rotary_angles, rotate
from dflash.model.shape import DrafterShape
from tests.model.oracle import plain_outcome
from tests.model.tiny import VOCABULARY, random_rows

VARIANTS = {
    "full": {},
    "causal": {"is_causal": True},
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 11},
    "one layer": {"layers": 1},
    "own sizes": {"heads": 6, "kv_heads": 3, "head_dim": 8, "intermediate_size": 20},
    "block of two": {"block_size": 2},
}


@pytest.fixture
def shape(request, target_folder):
    settings = {
        "layers": 2,
        "block_size": 6,
        "mask_token_id": VOCABULARY - 1,
        "target_layer_ids": [0, 2],
        **VARIANTS[request.param],
    }
    return DrafterShape.resolve(DrafterConfig(**settings), target_facts(target_folder("qwen3")))


def make_drafter(shape):
    drafter = Drafter(shape, attend_dense)
    drafter.initialise(0, torch.ones(shape.hidden_size))
    generator = torch.Generator().manual_seed(7)
    for parameter in drafter.parameters():  # far from the first weights, so that every part matters
        parameter.data = (parameter + torch.randn(parameter.shape, generator=generator) * 0.3).detach().requires_grad_()
    return drafter.double()


def run(shape, rows, features, anchors, embedding, head):
    drafter = make_drafter(shape)
    blocks = lay_out(rows, anchors, block_size=shape.block_size, gamma=shape.gamma, is_causal=shape.is_causal)
    inputs = block_input(blocks, features[torch.from_numpy(blocks.context_tokens)], embedding, shape.mask_token_id)
    loss_sum = head_loss(
        drafter(inputs), head, torch.from_numpy(blocks.labels), torch.from_numpy(blocks.weights).double(), logits_chunk=1000
    ).loss_sum
    loss_sum.backward()
    return drafter, loss_sum.detach(), blocks.weights.sum(dtype=np.float64)


def random_inputs(shape, rows):
    generator = torch.Generator().manual_seed(1)
    tables = torch.randn(2, shape.vocab_size, shape.hidden_size, generator=generator, dtype=torch.float64)
    features = torch.randn(len(rows.tokens), shape.feature_size, generator=generator, dtype=torch.float64)
    return features, *tables


@pytest.mark.parametrize("shape", VARIANTS, indirect=True)
def test_loss_and_gradients_are_those_of_the_plain_drafter(shape):
    rows = random_rows([40, 9, 25, 3], supervised=0.7)
    features, embedding, head = random_inputs(shape, rows)
    anchors = draw_anchors(rows, budget=7, seed=0, epoch=0)
    drafter, loss_sum, weight_sum = run(shape, rows, features, anchors, embedding, head)
    expected_loss, expected_weights, gradients = plain_outcome(
        shape, drafter.state_dict(), rows, features, anchors, embedding, head
    )
    torch.testing.assert_close(loss_sum, expected_loss, rtol=1e-6, atol=0)
    assert weight_sum == pytest.approx(float(expected_weights), rel=1e-6)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(
            parameter.grad, gradients[name], rtol=1e-5, atol=1e-6 * float(gradients[name].abs().max()), msg=name
        )


@pytest.mark.parametrize("shape", ["full"], indirect=True)
def test_a_conversation_in_a_batch_has_the_loss_it_has_alone(shape):
    rows = random_rows([40, 33], supervised=0.9)
    features, embedding, head = random_inputs(shape, rows)
    anchors = draw_anchors(rows, budget=4, seed=0, epoch=0)
    _, together, _ = run(shape, rows, features, anchors, embedding, head)
    apart = [
        run(shape, rows, features, replace(anchors, row=anchors.row[mine], position=anchors.position[mine]), embedding, head)[1]
        for mine in (anchors.row == 0, anchors.row == 1)
    ]
    torch.testing.assert_close(together, apart[0] + apart[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", ["full"], indirect=True)
def test_the_features_of_the_anchor_and_after_it_change_nothing(shape):
    """The anchor's own target state would give the next token away in training, and is not there yet in serving."""
    rows = random_rows([60], supervised=1.0)
    features, embedding, head = random_inputs(shape, rows)
    anchors = replace(draw_anchors(rows, budget=1, seed=0, epoch=0), row=np.array([0, 0]), position=np.array([20, 41]))
    _, before, _ = run(shape, rows, features, anchors, embedding, head)
    changed = features.clone()
    changed[41:] += 5
    assert torch.equal(run(shape, rows, changed, anchors, embedding, head)[1], before)
    changed[40] += 5
    assert not torch.equal(run(shape, rows, changed, anchors, embedding, head)[1], before)


@pytest.mark.parametrize("shape", ["full"], indirect=True)
def test_parameters_carry_the_names_and_shapes_of_the_released_checkpoints(shape):
    hidden, inner, width = 32, 48, 16
    expected = {"fc.weight": (hidden, 2 * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for layer in range(2):
        expected |= {
            f"layers.{layer}.{name}.weight": size
            for name, size in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (4 * width, hidden),
                "self_attn.k_proj": (2 * width, hidden),
                "self_attn.v_proj": (2 * width, hidden),
                "self_attn.o_proj": (hidden, 4 * width),
                "self_attn.q_norm": (width,),
                "self_attn.k_norm": (width,),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }.items()
        }
    assert {name: tuple(tensor.shape) for name, tensor in Drafter(shape, attend_dense).state_dict().items()} == expected
    assert len(expected) == 2 * 11 + 3


@pytest.mark.parametrize("shape", ["full"], indirect=True)
def test_first_weights_come_from_the_seed_and_the_targets_final_norm(shape):
    norm = torch.linspace(0.5, 2, shape.hidden_size)
    drafters = [Drafter(shape, attend_dense) for _ in range(3)]
    for drafter, seed in zip(drafters, (1, 1, 2), strict=True):
        drafter.initialise(seed, norm)
    one, same, other = (drafter.state_dict() for drafter in drafters)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])
    assert torch.equal(one["norm.weight"], norm)
    assert one["layers.1.mlp.up_proj.weight"].std() == pytest.approx(0.02, rel=0.1)


def test_rotation_turns_pairs_by_position_times_rate():
    states = torch.randn(7, 3, 10, dtype=torch.float64)
    positions = torch.tensor([0, 1, 5, 100, 4000, 2, 9])
    turned = rotate(states, rotary_angles(positions, 10, Rope(500.0)))
    as_complex = torch.complex(states[..., :5], states[..., 5:])
    rates = 500.0 ** (-torch.arange(5, dtype=torch.float64) / 5)
    expected = as_complex * torch.exp(1j * positions[:, None, None] * rates)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1), rtol=1e-5, atol=1e-5)


def test_rotation_has_the_right_gradient():
    states = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    angles = rotary_angles(torch.tensor([3, 0, 77, 5]), 6, Rope(100.0, attention_factor=1.3))
    assert torch.autograd.gradcheck(lambda x: rotate(x, angles), (states,))
