"""The drafter's optimiser: AdamW for all, or Muon for the matrices and AdamW for the norms.

Muon (Jordan et al. 2024) takes the momentum of a matrix's gradient and replaces it by the nearest matrix with all singular values near 1
(five Newton-Schulz iterations), so that a step moves every direction of the matrix alike. Its step is scaled by
0.2 sqrt(max(rows, columns)), which gives it the root mean square of an AdamW step (Liu et al. 2025, arXiv 2502.16982): one `optim.lr`
serves both. Decay of weights is decoupled, on matrices only. All states are float32 and there from the start, so that every checkpoint of
a run holds the same tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dflash.config import OptimConfig

_OPTIMIZERS = list[torch.optim.Optimizer]


class DrafterOptimizer:
    """One step for all parameters of a module, at one learning rate."""

    def __init__(self, module: nn.Module, config: OptimConfig) -> None:
        """Make the states, all zero."""
        self._parameters = dict(module.named_parameters())
        matrices = [parameter for parameter in self._parameters.values() if parameter.ndim == 2]
        others = [parameter for parameter in self._parameters.values() if parameter.ndim != 2]
        if config.name == "muon":
            muon = torch.optim.Muon(
                matrices, config.lr, config.weight_decay, config.momentum, eps=config.eps, adjust_lr_fn="match_rms_adamw"
            )
            for parameter in matrices:
                muon.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
            self._optimizers: _OPTIMIZERS = [muon, _adamw([], others, config)]
        else:
            self._optimizers = [_adamw(matrices, others, config)]

    def step(self, lr: float) -> None:
        """Change the parameters by their gradients."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()

    def moments(self) -> dict[str, Tensor]:
        """Every state as `kind.parameter`, to be written down or filled in place."""
        return {
            f"{kind}.{name}": state
            for name, parameter in self._parameters.items()
            for optimizer in self._optimizers
            if parameter in optimizer.state
            for kind, state in optimizer.state[parameter].items()
            if kind != "step"
        }

    def resume_at(self, steps: int) -> None:
        """Count on from so many steps taken."""
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"].fill_(steps)


def _adamw(matrices: list[nn.Parameter], others: list[nn.Parameter], config: OptimConfig) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
    for parameter in [*matrices, *others]:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
