"""Each objective against a plain reference in float64: full logits of both models, loops over blocks, autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.model.loss import Places, TargetStates, head_loss
from dflash.model.objectives.registry import OBJECTIVES, mix_of

BLOCK, GAMMA = 5, 2.0
FULL = sum(np.exp(-k / GAMMA) for k in range(BLOCK - 1))
MIXES = [{name: 1.0} for name in OBJECTIVES] + [
    {"cross_entropy": 0.1, "total_variation": 0.9},
    {"kl": 0.5, "cross_entropy": 0.5, "acceptance": 2.0},
    {"dpace": 0.3, "acceptance": 0.7},
]


class Case:
    """Random blocks: some whole, some cut, some with a gap; slots of neighbours predict the same positions."""

    def __init__(self, seed: int, vocabulary: int = 23, width: int = 6, blocks: int = 7, scale: float = 1.0) -> None:
        generator, draws = torch.Generator().manual_seed(seed), np.random.default_rng(seed)

        def normal(*size):
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        supervised = draws.random((blocks, BLOCK - 1)) < 0.8
        supervised[:, 0] = True
        supervised[0], supervised[1, 1:] = True, False
        block, step = np.nonzero(supervised)
        self.blocks, self.steps, self.slots = block, step, block * BLOCK + step + 1
        self.head, self.hidden = normal(vocabulary, width), scale * normal(len(block), width)
        self.states = scale * normal(blocks + BLOCK, width)
        self.of_slot = block + step
        self.labels = torch.randint(0, vocabulary, (len(block),), generator=generator)
        self.weights = torch.from_numpy(np.exp(-step / GAMMA))

    def outcome(self, loss, *, hidden=None, logits_chunk=10**9, softcap=None, dtype=torch.float64, with_hits=False):
        return head_loss(
            self.hidden.to(dtype) if hidden is None else hidden, self.head.to(dtype), self.labels, self.weights,
            logits_chunk=logits_chunk, with_hits=with_hits, mix=mix_of(loss), softcap=softcap,
            places=Places(self.slots, BLOCK, FULL), target=TargetStates(self.states.to(dtype), self.of_slot),
        )  # fmt: skip

    def plain(self, loss, hidden, softcap=None):
        def distribution(states):
            logits = states @ self.head.T
            return (logits if softcap is None else softcap * torch.tanh(logits / softcap)).softmax(-1)

        q, p = distribution(hidden), distribution(self.states[self.of_slot])
        nll = -q.gather(1, self.labels[:, None]).log()[:, 0]
        overlap = torch.minimum(p, q).sum(-1)
        sums = {
            "cross_entropy": (self.weights * nll).sum(),
            "kl": (self.weights * (p * (p / q).log()).sum(-1)).sum(),
            "total_variation": (self.weights * (1 - overlap)).sum(),
            "acceptance": torch.zeros((), dtype=torch.float64),
            "dpace": torch.zeros((), dtype=torch.float64),
        }
        for block in np.unique(self.blocks):
            slots = np.flatnonzero(self.blocks == block)
            chain = [slot for place, slot in enumerate(slots) if self.steps[slot] == place]  # up to the first gap
            reached = torch.ones((), dtype=torch.float64)
            for slot in chain:
                reached = reached * overlap[slot]
                sums["acceptance"] = sums["acceptance"] - FULL * reached
            smooth = [0.5 * float(q[slot, self.labels[slot]].detach()) + 0.5 for slot in chain]
            for j, slot in enumerate(chain):
                weight = sum(np.prod(smooth[: m + 1]) for m in range(j, len(chain)))
                sums["dpace"] = sums["dpace"] + FULL * weight * nll[slot]
        return sum(weight * sums[name] for name, weight in loss.items())


@pytest.mark.parametrize("softcap", [None, 1.5], ids=["", "softcap"])
@pytest.mark.parametrize("loss", MIXES, ids="+".join)
def test_sums_and_gradients_are_those_of_the_plain_reference_however_the_chunks_are_cut(loss, softcap):
    case = Case(seed=len(loss))
    hidden = case.hidden.clone().requires_grad_()
    expected_loss = case.plain(loss, hidden, softcap)
    (expected,) = torch.autograd.grad(3 * expected_loss, hidden)
    for logits_chunk in (1, 23 * 7, 23 * 16 + 5, 10**9):
        outcome = case.outcome(loss, hidden=hidden, logits_chunk=logits_chunk, softcap=softcap, with_hits=logits_chunk == 1)
        (found,) = torch.autograd.grad(3 * outcome.loss_sum, hidden)
        torch.testing.assert_close(outcome.loss_sum, expected_loss, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(outcome.cross_entropy_sum, case.plain({"cross_entropy": 1.0}, hidden, softcap).detach())


@pytest.mark.parametrize("loss", MIXES, ids="+".join)
def test_float32_agrees_with_float64(loss):
    case = Case(seed=5, scale=2.0)
    hidden = case.hidden.float().requires_grad_()
    outcome = case.outcome(loss, hidden=hidden, dtype=torch.float32)
    outcome.loss_sum.backward()
    exact = case.hidden.clone().requires_grad_()
    case.plain(loss, exact).backward()
    torch.testing.assert_close(outcome.loss_sum.double(), case.plain(loss, exact), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hidden.grad.double(), exact.grad, rtol=1e-3, atol=1e-4)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 30), same=st.booleans())
def test_measures_keep_to_their_bounds(seed, scale, same):
    case = Case(seed, scale=scale)
    if same:
        case.hidden = case.states[case.of_slot].clone()
    weight, blocks = float(case.weights.sum()), len(np.unique(case.blocks))
    kl, variation, accepted = (float(case.outcome({name: 1.0}).loss_sum) for name in ("kl", "total_variation", "acceptance"))
    chains = sum(
        np.cumprod(np.isin(np.arange(1, BLOCK), case.slots[case.blocks == block] - block * BLOCK)).sum() for block in range(blocks)
    )
    assert -1e-9 * scale**2 <= kl
    assert -1e-12 <= variation <= weight + 1e-9
    assert -FULL * chains - 1e-9 <= accepted <= 1e-12
    assert chains <= blocks * (BLOCK - 1)
    if same:
        assert kl == pytest.approx(0, abs=1e-9 * max(1, scale**2))
        assert variation == pytest.approx(0, abs=1e-9)
        assert accepted == pytest.approx(-FULL * chains)


@given(seed=st.integers(0, 10**6), weights=st.lists(st.floats(0, 3), min_size=5, max_size=5).filter(any))
def test_a_mix_is_linear(seed, weights):
    case = Case(seed, blocks=3)
    loss = dict(zip(OBJECTIVES, weights, strict=True))
    apart = sum(weight * case.outcome({name: 1.0}).loss_sum for name, weight in loss.items())
    torch.testing.assert_close(case.outcome(loss).loss_sum, apart, rtol=1e-9, atol=1e-9)


def test_a_block_is_never_cut_and_a_chunk_keeps_to_its_logits(monkeypatch):
    from dflash.model import loss as module

    case, seen = Case(seed=2, blocks=20), []
    real = module.ChunkMeasures

    def watched(logits, *others, **options):
        seen.append(len(logits))
        return real(logits, *others, **options)

    monkeypatch.setattr(module, "ChunkMeasures", watched)
    sizes = np.bincount(case.blocks)
    for logits_chunk in (1, 23 * 10, 23 * 31):
        seen.clear()
        case.outcome({"acceptance": 1.0}, logits_chunk=logits_chunk)
        assert set(np.cumsum(seen)) <= set(np.cumsum(sizes))
        assert sum(seen) == len(case.slots)
        assert max(seen) <= max(logits_chunk // (2 * 23), sizes.max())


def test_huge_logits_stay_finite():
    case = Case(seed=3, scale=1e4)
    for name in OBJECTIVES:
        hidden = case.hidden.float().requires_grad_()
        outcome = case.outcome({name: 1.0}, hidden=hidden, dtype=torch.float32)
        outcome.loss_sum.backward()
        assert torch.isfinite(outcome.loss_sum)
        assert torch.isfinite(hidden.grad).all()


@pytest.mark.parametrize("name", ["kl", "acceptance"])
def test_what_an_objective_needs_is_asked_for(name):
    case = Case(seed=1)
    with pytest.raises(ValueError, match="target's states"):
        head_loss(
            case.hidden,
            case.head,
            case.labels,
            case.weights,
            logits_chunk=9,
            mix=mix_of({name: 1.0}),
            places=Places(case.slots, BLOCK, FULL),
        )
