"""Which drafted tokens are kept: the rule that makes speculative decoding lossless.

Greedy (temperature 0): a drafted token is kept when it is the target's most likely one; the first that isn't is replaced by it.

Sampled: with the target's distribution p and the draft's q at a place, a token x drawn from q is kept with probability
min(1, p(x) / q(x)); at the first one refused the token is drawn from max(p - q, 0), normalised; when all are kept, one more is drawn
from p. Each token then has exactly the distribution p, whatever q is (Leviathan et al. 2023, arXiv 2211.17192). A block's tokens are drawn
independently of each other, which is how a block-diffusion drafter defines q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draft:
    """Tokens proposed for the next places.

    Attributes:
        tokens: [places] int64.
        probabilities: [places, vocabulary] the distribution each was drawn from; None when they are the most likely ones (greedy).
    """

    tokens: Tensor
    probabilities: Tensor | None


@dataclass(frozen=True)
class Verdict:
    """How many drafted tokens are kept, and the target's own token after them."""

    accepted: int
    following: int


def draw(logits: Tensor, temperature: float, generator: torch.Generator) -> Draft:
    """Draw a token at each place.

    Args:
        logits: [places, vocabulary].
        temperature: logits are divided by it; 0 takes the most likely token.
        generator: on the device of `logits`.
    """
    if not temperature:
        return Draft(logits.argmax(-1), None)
    probabilities = _distribution(logits, temperature)
    return Draft(torch.multinomial(probabilities, 1, generator=generator)[:, 0], probabilities)


def verify(logits: Tensor, draft: Draft, temperature: float, generator: torch.Generator) -> Verdict:
    """Hold drafted tokens against the target.

    Args:
        logits: [places + 1, vocabulary], the target's at each drafted place and at the one after the last.
        draft: what `draw` made of the drafter's logits at the same temperature.
        temperature: see `draw`.
        generator: on the device of `logits`.
    """
    if draft.probabilities is None:
        choice = logits.argmax(-1)
        accepted = _leading(choice[:-1] == draft.tokens)
        return Verdict(accepted, int(choice[accepted]))
    target = _distribution(logits, temperature)
    places = torch.arange(len(draft.tokens), device=logits.device)
    wanted, proposed = target[places, draft.tokens], draft.probabilities[places, draft.tokens]
    luck = torch.rand(len(places), generator=generator, device=logits.device)
    accepted = _leading(luck * proposed < wanted)
    rest = target[accepted]
    if accepted < len(places):
        left_over = (rest - draft.probabilities[accepted]).clamp_(min=0)
        rest = left_over if left_over.sum() > 0 else rest  # 0 only when p and q are the same to the last bit
    return Verdict(accepted, int(torch.multinomial(rest, 1, generator=generator)))


def _leading(agree: Tensor) -> int:
    """Length of the run of True at the start."""
    return int(agree.long().cumprod(0).sum())


def _distribution(logits: Tensor, temperature: float) -> Tensor:
    return torch.softmax(logits.float() / temperature, dim=-1)
