from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from dflash.model.loss import head_loss


def inputs(slots=23, vocabulary=41, width=12, dtype=torch.float64, scale=2.0):
    generator = torch.Generator().manual_seed(3)
    hidden = (scale * torch.randn(slots, width, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    head = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, vocabulary, (slots,), generator=generator)
    weights = torch.rand(slots, generator=generator, dtype=torch.float64)
    return hidden, head, labels, weights


def dense(hidden, head, labels, weights):
    return (weights * functional.cross_entropy(hidden @ head.T, labels, reduction="none")).sum()


@pytest.mark.parametrize("logits_chunk", [1, 41, 41 * 5, 41 * 5 + 40, 10**9])
def test_loss_and_gradient_are_those_of_the_dense_computation_however_it_is_cut(logits_chunk):
    hidden, head, labels, weights = inputs()
    outcome = head_loss(hidden, head, labels, weights, logits_chunk=logits_chunk)
    (found,) = torch.autograd.grad(3.0 * outcome.loss_sum, hidden)
    expected_loss = dense(hidden, head, labels, weights)
    (expected,) = torch.autograd.grad(3.0 * expected_loss, hidden)
    torch.testing.assert_close(outcome.loss_sum, expected_loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_gradient_agrees_with_finite_differences():
    hidden, head, labels, weights = inputs(slots=4)
    assert torch.autograd.gradcheck(lambda states: head_loss(states, head, labels, weights, logits_chunk=90).loss_sum, (hidden,))


def test_hits_are_the_argmax_and_change_nothing():
    hidden, head, labels, weights = inputs()
    labels[::2] = (hidden @ head.T).argmax(-1)[::2]
    outcome = head_loss(hidden, head, labels, weights, logits_chunk=100, with_hits=True)
    assert torch.equal(outcome.hits, (hidden @ head.T).argmax(-1) == labels)
    assert 12 <= outcome.hits.sum() < 23
    assert torch.equal(outcome.loss_sum, head_loss(hidden, head, labels, weights, logits_chunk=100).loss_sum)


def test_huge_logits_stay_finite():
    hidden, head, labels, weights = inputs(dtype=torch.float32, scale=1e4)
    outcome = head_loss(hidden, head, labels, weights, logits_chunk=100)
    outcome.loss_sum.backward()
    assert torch.isfinite(outcome.loss_sum)
    assert torch.isfinite(hidden.grad).all()


def test_a_bfloat16_head_keeps_the_softmax_in_float32():
    hidden, head, labels, weights = inputs(slots=200, vocabulary=500)
    outcome = head_loss(hidden.float(), head.bfloat16(), labels, weights, logits_chunk=5000)
    assert outcome.loss_sum.dtype == torch.float32
    torch.testing.assert_close(outcome.loss_sum.double(), dense(hidden, head, labels, weights), rtol=5e-3, atol=0)


def test_nothing_is_kept_for_a_backward_pass_nobody_asked_for():
    hidden, head, labels, weights = inputs()
    with torch.no_grad():
        outcome = head_loss(hidden, head, labels, weights, logits_chunk=100, with_hits=True)
    assert not outcome.loss_sum.requires_grad
    torch.testing.assert_close(outcome.loss_sum, dense(hidden, head, labels, weights).detach(), rtol=1e-12, atol=0)


def test_a_nan_is_reported_and_not_hidden():
    hidden, head, labels, weights = inputs()
    broken = hidden.detach().clone()
    broken[3, 2] = float("nan")
    assert torch.isnan(head_loss(broken, head, labels, weights, logits_chunk=100).loss_sum)
