"""Drafting with DFlash 2's selector: from slot to slot, each choice knowing the one before it.

The drafter's logits name a few candidates a slot; the selector scores them given the token chosen in the slot before, the anchor first. A
drawn token's distribution lies on these candidates alone and depends on what was drawn before it, which the rule of acceptance allows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.model.selector import CandidateSelector
from dflash.serving.sampling import Draft


@torch.no_grad()
def draw_candidates(
    selector: CandidateSelector, hidden: Tensor, logits: Tensor, anchor: int, temperature: float, generator: torch.Generator
) -> Draft:
    """Choose a token for each slot.

    Args:
        selector: of the drafter.
        hidden: [slots, hidden], the drafter's final states.
        logits: [slots, vocabulary], the drafter's.
        anchor: the token before the first slot.
        temperature: scores are divided by it; 0 takes the best candidate.
        generator: on the device of `logits`.
    """
    hidden = hidden.to(selector.successor_codebook.dtype)
    best = logits.topk(selector.top_k, dim=-1)
    previous = torch.tensor([anchor], device=logits.device)
    probabilities = torch.zeros_like(logits) if temperature else None
    tokens = []
    for slot in range(len(logits)):
        here = slice(slot, slot + 1)
        scores = selector.scores(hidden[here], best.values[here], best.indices[here], previous)
        if probabilities is None:
            choice = scores.argmax(-1, keepdim=True)
        else:
            share = torch.softmax(scores / temperature, dim=-1)
            probabilities[here].scatter_(-1, best.indices[here], share)
            choice = torch.multinomial(share, 1, generator=generator)
        previous = best.indices[here].gather(-1, choice)[:, 0]  # stays on the device
        tokens.append(previous)
    return Draft(torch.cat(tokens), probabilities)
