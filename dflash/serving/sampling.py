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
    """What the target says of a draft.

    Attributes:
        accepted: how many drafted tokens are kept.
        following: the target's own token after them.
        drafted: the drafted tokens, on the host.
        newest: [1], `following` on the device, where the next round reads it.
    """

    accepted: int
    following: int
    drafted: tuple[int, ...]
    newest: Tensor


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
    places = len(draft.tokens)
    if draft.probabilities is None:
        choice = logits.argmax(-1)
        accepted = _leading(choice[:-1] == draft.tokens)
        newest = choice[accepted]
    else:
        target, order = _distribution(logits, temperature), torch.arange(places, device=logits.device)
        wanted, proposed = target[order, draft.tokens], draft.probabilities[order, draft.tokens]
        luck = torch.rand(places, generator=generator, device=logits.device)
        accepted = _leading(luck * proposed < wanted)
        rest = target[accepted]
        beyond = torch.cat([draft.probabilities, torch.zeros_like(target[:1])])  # nothing was proposed after the last place
        left_over = (rest - beyond[accepted]).clamp_(min=0)
        rest = torch.where(left_over.sum() > 0, left_over, rest)  # 0 only when p and q are the same to the last bit
        newest = torch.multinomial(rest[0], 1, generator=generator)
    told = torch.cat([accepted, newest, draft.tokens]).tolist()  # the round's one transfer to the host
    return Verdict(told[0], told[1], tuple(told[2:]), newest)


def _leading(agree: Tensor) -> Tensor:
    """[1]: length of the run of True at the start."""
    return agree.long().cumprod(0).sum(0, keepdim=True)


def _distribution(logits: Tensor, temperature: float) -> Tensor:
    return torch.softmax(logits.float() / temperature, dim=-1)
