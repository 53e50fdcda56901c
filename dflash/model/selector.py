"""DFlash 2's candidate selector: of the drafter's best candidates for a slot, the one that follows the token chosen before it.

    score(candidate | previous token) = logit(candidate) + sum(predecessor[previous] * project(hidden) * successor[candidate])

The drafter fills all slots at once, so it can't know what stands in the slot before. The selector can: it walks over the slots, one small
product each. Candidates are the `top_k` most likely tokens of a slot. With first weights (successors 0) it chooses what the drafter would.

Its loss is the cross entropy of the label among the candidates, the label taking the place of the least likely one where it isn't among
them, with the text's own token before it as the previous one. It teaches the selector alone: no gradient reaches the drafter, which learns
from its own loss as without a selector. (Peers that train DFlash 2 let it through; how the released drafters were trained isn't public.)

Definition, names and shapes are those of z-lab's released code and checkpoints (z-lab/dflash, `DFlash2DraftModel`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dflash.model.objectives.measures import capped

_INIT_STD = 0.02


@dataclass(frozen=True)
class Selected:
    """Outcome of the selector over supervised slots.

    Attributes:
        loss_sum: scalar: sum over slots of weight x cross entropy among the candidates.
        hits: [slots] bool, whether the candidate it picks is the label, the token before being right.
    """

    loss_sum: Tensor
    hits: Tensor


class CandidateSelector(nn.Module):
    """The two tables and the projection.

    Attributes:
        top_k: candidates a slot.
        predecessor_codebook, successor_codebook: [vocabulary, rank].
        hidden_projection: hidden -> rank.
    """

    def __init__(self, hidden_size: int, vocab_size: int, rank: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """First weights from `seed`: successors 0, so that nothing is changed; the others N(0, 0.02^2)."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in (self.predecessor_codebook, self.hidden_projection.weight):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * _INIT_STD)
        self.successor_codebook.zero_()

    def scores(self, hidden: Tensor, logits: Tensor, candidates: Tensor, previous: Tensor) -> Tensor:
        """Score candidates.

        Args:
            hidden: [slots, hidden], the drafter's final states.
            logits: [slots, candidates], the drafter's.
            candidates: [slots, candidates] int64.
            previous: [slots] int64, the token before each slot.

        Returns:
            [slots, candidates], float32 at least.
        """
        exact = torch.promote_types(logits.dtype, torch.float32)
        gate = self.predecessor_codebook[previous] * self.hidden_projection(hidden)
        return logits.to(exact) + torch.einsum("sr,scr->sc", gate.to(exact), self.successor_codebook[candidates].to(exact))


def select(
    selector: CandidateSelector,
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    previous: Tensor,
    weights: Tensor,
    *,
    logits_chunk: int,
    softcap: float | None = None,
) -> Selected:
    """Loss and hits of the selector.

    Args:
        selector: its gradients are added up by `loss_sum.backward()`.
        hidden: [slots, hidden]; gets no gradient.
        head: [vocabulary, hidden], frozen.
        labels, previous: [slots] int64, the token of each slot and the one before it in the text.
        weights: [slots].
        logits_chunk: logits computed at a time, at most; one slot's always are.
        softcap: logits are capped to softcap x tanh(logits / softcap).
    """
    hidden = hidden.detach()
    rows = max(1, logits_chunk // len(head))
    losses, hits = [], []
    for start in range(0, len(labels), rows):
        part = slice(start, start + rows)
        logits, candidates = _candidates(hidden[part], head, selector.top_k, softcap)
        label = labels[part, None]
        with torch.no_grad():
            best = selector.scores(hidden[part], logits, candidates, previous[part]).argmax(-1, keepdim=True)
            hits.append((candidates.gather(-1, best) == label)[:, 0])
            present = (candidates == label).any(-1, keepdim=True)
            last = torch.full_like(label, selector.top_k - 1)  # candidates are sorted: the least likely one gives way
            at_label = capped((hidden[part].to(head.dtype) * head[labels[part]]).sum(-1, keepdim=True).to(logits.dtype), softcap)
            logits = torch.where(present, logits, logits.scatter(-1, last, at_label))
            candidates = torch.where(present, candidates, candidates.scatter(-1, last, label))
        scores = selector.scores(hidden[part], logits, candidates, previous[part])
        likelihood = torch.log_softmax(scores, -1)[candidates == label]
        losses.append(-(weights[part].to(likelihood.dtype) * likelihood).sum())
    return Selected(torch.stack(losses).sum(), torch.cat(hits))


@torch.no_grad()
def _candidates(hidden: Tensor, head: Tensor, top_k: int, softcap: float | None) -> tuple[Tensor, Tensor]:
    exact = torch.promote_types(hidden.dtype, torch.float32)
    with torch.autocast(hidden.device.type, enabled=False):
        best = (hidden.to(head.dtype) @ head.T).to(exact).topk(top_k, dim=-1)
    return capped(best.values, softcap), best.indices
