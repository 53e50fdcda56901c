"""The candidate selector against loops over slots and candidates, and the walk of a draft."""

from __future__ import annotations

import pytest
import torch

from dflash.model.selector import CandidateSelector, select
from dflash.serving.candidates import draw_candidates
from dflash.serving.sampling import draw

SLOTS, HIDDEN, VOCABULARY, RANK, TOP = 30, 8, 40, 5, 4


def random_parts(seed: int = 0) -> tuple[CandidateSelector, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    selector = CandidateSelector(HIDDEN, VOCABULARY, RANK, TOP).double()
    for parameter in selector.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    hidden = torch.randn(SLOTS, HIDDEN, generator=generator, dtype=torch.float64, requires_grad=True)
    return selector, hidden, torch.randn(VOCABULARY, HIDDEN, generator=generator, dtype=torch.float64)


def capped(logits: torch.Tensor, softcap: float | None) -> torch.Tensor:
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("logits_chunk", [1, 7 * VOCABULARY, 10**6])
def test_loss_hits_and_gradients_are_those_of_a_loop(softcap: float | None, logits_chunk: int) -> None:
    selector, hidden, head = random_parts()
    generator = torch.Generator().manual_seed(1)
    labels, previous = (torch.randint(0, VOCABULARY, (SLOTS,), generator=generator) for _ in range(2))
    labels[:10] = (hidden[:10] @ head.T).argmax(-1)  # so that some are hit
    weights = torch.rand(SLOTS, generator=generator, dtype=torch.float64)

    loss, hits = torch.zeros((), dtype=torch.float64), []
    for slot in range(SLOTS):
        logits = capped((hidden[slot] @ head.T).detach(), softcap)
        candidates = logits.argsort(descending=True)[:TOP].tolist()
        gate = selector.predecessor_codebook[previous[slot]] * (selector.hidden_projection.weight @ hidden[slot].detach())

        def score(token: int, logits: torch.Tensor = logits, gate: torch.Tensor = gate) -> torch.Tensor:
            return logits[token] + gate @ selector.successor_codebook[token]

        hits.append(max(candidates, key=lambda token: float(score(token).detach())) == labels[slot])
        if int(labels[slot]) not in candidates:
            candidates[-1] = int(labels[slot])
        scores = torch.stack([score(token) for token in candidates])
        loss = loss + weights[slot] * (scores.logsumexp(0) - scores[candidates.index(int(labels[slot]))])
    expected = torch.autograd.grad(loss, list(selector.parameters()))

    outcome = select(selector, hidden, head, labels, previous, weights, logits_chunk=logits_chunk, softcap=softcap)
    torch.testing.assert_close(outcome.loss_sum, loss)
    assert outcome.hits.tolist() == hits
    assert any(hits)
    outcome.loss_sum.backward()
    assert hidden.grad is None  # it teaches the selector alone
    for parameter, gradient in zip(selector.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_draft_walks_from_slot_to_slot() -> None:
    selector, hidden, head = random_parts(3)
    logits = (hidden @ head.T).detach()
    previous, expected = 17, []
    for slot in range(SLOTS):
        gate = selector.predecessor_codebook[previous] * (selector.hidden_projection.weight @ hidden[slot])
        best = logits[slot].argsort(descending=True)[:TOP].tolist()
        previous = max(best, key=lambda token: float((logits[slot, token] + gate @ selector.successor_codebook[token]).detach()))
        expected.append(previous)
    draft = draw_candidates(selector, hidden.detach(), logits, 17, 0.0, torch.Generator())
    assert draft.tokens.tolist() == expected
    assert expected != logits.argmax(-1).tolist()


def test_a_drawn_draft_tells_the_distribution_each_token_came_from() -> None:
    selector, hidden, head = random_parts(4)
    logits = (hidden @ head.T).detach().float()
    draft = draw_candidates(selector.float(), hidden.detach().float(), logits, 5, 1.7, torch.Generator().manual_seed(0))
    assert draft.probabilities is not None
    torch.testing.assert_close(draft.probabilities.sum(-1), torch.ones(SLOTS))
    assert ((draft.probabilities > 0).sum(-1) == TOP).all()
    path = [5, *draft.tokens.tolist()]
    for slot in range(SLOTS):
        gate = selector.predecessor_codebook[path[slot]] * (selector.hidden_projection.weight @ hidden[slot].float())
        ids = logits[slot].topk(TOP).indices
        share = torch.softmax((logits[slot, ids] + selector.successor_codebook[ids] @ gate) / 1.7, -1)
        torch.testing.assert_close(draft.probabilities[slot, ids], share)
        assert path[slot + 1] in ids.tolist()


def test_first_weights_choose_what_the_drafter_would() -> None:
    selector, hidden, head = random_parts()
    selector.initialise(0)
    logits = (hidden @ head.T).detach()
    generator = torch.Generator()
    chosen = draw_candidates(selector, hidden.detach(), logits, 3, 0.0, generator)
    assert torch.equal(chosen.tokens, draw(logits, 0.0, generator).tokens)
