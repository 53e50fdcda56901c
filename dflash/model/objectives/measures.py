"""The measures of a chunk of slots, made from its logits, and the gradient of any function of them by those logits.

    d nll / d logits = q - onehot(label)
    d kl  / d logits = q - p
    d tv  / d logits = 1/2 q (s - <s, q>),  s = sign(q - p)

with q the drafter's softmax and p the target's. So the gradient of sum c_nll nll + c_kl kl + c_tv tv is one combination of q, p, s and
onehot, made in place in one of the chunk's own buffers. With a soft cap the logits are cap x tanh(raw / cap), and the gradient by the raw
ones has a factor 1 - (logits / cap)^2 besides.

Buffers [rows, vocabulary] alive at most: the drafter's; with a target p and s; with a soft cap its factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.model.objectives.objective import Measure


@dataclass(frozen=True)
class TargetDistribution:
    """The target's own distribution at the slots of a chunk.

    Attributes:
        p: [rows, vocabulary], softmax of its logits.
        negative_entropy: [rows], sum of p log p.
    """

    p: Tensor
    negative_entropy: Tensor


class ChunkMeasures:
    """Measures of the slots of one chunk; `values` are [rows] each, `hits` whether the most likely token is the label."""

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor,
        target: TargetDistribution | None,
        *,
        softcap: float | None = None,
        with_gradient: bool = True,
        with_hits: bool = False,
    ) -> None:
        """Measure slots; `logits` [rows, vocabulary], already capped, are used up.

        `target` is None when only nll is wanted. `with_gradient`: whether `pull` will be called.
        """
        label = labels[:, None]
        self._slope = 1 - (logits / softcap).square_() if softcap and with_gradient else None
        self.hits: Tensor | None = None
        if with_hits:
            top, best = logits.max(-1, keepdim=True)
            self.hits = (best == label)[:, 0]
        else:
            top = logits.amax(-1, keepdim=True)
        at_label = logits.gather(1, label) - top
        shifted = logits.sub_(top)
        expected = None if target is None else torch.linalg.vecdot(target.p, shifted)
        self._powers = shifted.exp_()
        self._total = self._powers.sum(-1, keepdim=True)
        log_total = self._total.log()
        self._label = label
        self._target = target
        self.values: dict[Measure, Tensor] = {"nll": (log_total - at_label)[:, 0]}
        if target is not None and expected is not None:
            self._powers.div_(self._total)  # from here on q itself
            self._sign = self._powers - target.p
            self.values["kl"] = target.negative_entropy - expected + log_total[:, 0]
            self.values["tv"] = torch.linalg.vector_norm(self._sign, ord=1, dim=-1) / 2

    def pull(self, by: dict[Measure, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Gradient by the raw logits of sum over slots of by[measure] x measure; the chunk is used up.

        Args:
            by: [rows] of each measure; all of them known here.

        Returns:
            [rows, vocabulary], and [rows, 1] it has still to be multiplied by (None: nothing).
        """
        if self._target is None:
            self._powers.scatter_add_(1, self._label, -self._total)  # q - onehot, times total
            if self._slope is not None:
                self._powers.mul_(self._slope)
            return self._powers, by["nll"][:, None] / self._total
        q, p = self._powers, self._target.p
        zero = torch.zeros_like(self._total)
        nll, kl, tv = (by[name][:, None] if name in by else zero for name in ("nll", "kl", "tv"))
        sign = self._sign.sign_()
        along = torch.linalg.vecdot(sign, q)[:, None]
        gradient = sign.mul_(tv / 2).add_(nll + kl - tv / 2 * along).mul_(q)
        if "kl" in by:
            gradient.addcmul_(p, -kl)
        if "nll" in by:
            gradient.scatter_add_(1, self._label, -nll)
        return (gradient if self._slope is None else gradient.mul_(self._slope)), None


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Logits after a family's final soft cap, cap x tanh(logits / cap), in place; unchanged without one."""
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def target_distribution(logits: Tensor) -> TargetDistribution:
    """The distribution of capped logits [rows, vocabulary] at temperature 1."""
    p = logits.softmax(-1)
    return TargetDistribution(p, torch.linalg.vecdot(p, logits) - logits.logsumexp(-1))
