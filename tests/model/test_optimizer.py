import pytest
import torch
from torch import nn

from dflash.config import OptimConfig
from dflash.model.optimizer import DrafterOptimizer


def module(seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    made = nn.Module()
    for name, size in {"tall": (24, 7), "wide": (5, 16), "square": (9, 9), "norm": (11,)}.items():
        made.register_parameter(name, nn.Parameter(torch.randn(size, generator=generator)))
    return made


def set_gradients(made: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def nearly_orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """What five of Muon's iterations make of a matrix, by its singular values: each goes through the same polynomial."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_muon_moves_matrices_by_their_orthogonalised_momentum_and_norms_by_adamw(seed):
    made = module(seed)
    optimizer = DrafterOptimizer(made, OptimConfig(name="muon", weight_decay=0.1))
    reference = {name: parameter.detach().clone().double() for name, parameter in made.named_parameters()}
    momentum = {name: torch.zeros_like(tensor) for name, tensor in reference.items()}
    square = torch.zeros_like(reference["norm"])
    for step in range(1, 4):
        set_gradients(made, 10 * seed + step)
        optimizer.step(0.02)
        for name, parameter in made.named_parameters():
            gradient = parameter.grad.double()
            before = reference[name].clone()
            if name == "norm":
                momentum[name].mul_(0.9).add_(gradient, alpha=0.1)
                square.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
                reference[name] -= 0.02 * (momentum[name] / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-8)
                torch.testing.assert_close(parameter.detach().double(), reference[name], rtol=1e-5, atol=1e-6)
                continue
            momentum[name].mul_(0.95).add_(gradient, alpha=0.05)
            direction = nearly_orthogonal(0.05 * gradient + 0.95 * momentum[name])
            reference[name].mul_(1 - 0.02 * 0.1).sub_(0.02 * 0.2 * max(gradient.shape) ** 0.5 * direction)
            # the iterations run in bfloat16: the move agrees to some percent
            error = (parameter.detach().double() - reference[name]).norm() / (reference[name] - before).norm()
            assert error < 0.05 * step, name


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_states_written_and_filled_in_again_go_on_to_the_bit(name):
    first, second = module(0), module(0)
    ours, theirs = (DrafterOptimizer(made, OptimConfig(name=name)) for made in (first, second))
    for step in range(4):
        set_gradients(first, step)
        ours.step(1e-2)
    for tensor, into in zip(ours.moments().values(), theirs.moments().values(), strict=True):
        into.copy_(tensor)
    theirs.resume_at(4)
    second.load_state_dict(first.state_dict())
    for step in range(4, 7):
        for made, optimizer in ((first, ours), (second, theirs)):
            set_gradients(made, step)
            optimizer.step(1e-2)
    assert all(torch.equal(left, right) for left, right in zip(first.parameters(), second.parameters(), strict=True))


def test_every_parameter_has_its_states_before_the_first_step():
    made = module(1)
    assert set(DrafterOptimizer(made, OptimConfig(name="muon")).moments()) == {
        "momentum_buffer.tall", "momentum_buffer.wide", "momentum_buffer.square", "exp_avg.norm", "exp_avg_sq.norm"
    }  # fmt: skip
    assert set(DrafterOptimizer(made, OptimConfig()).moments()) == {
        f"{kind}.{name}" for kind in ("exp_avg", "exp_avg_sq") for name in ("tall", "wide", "square", "norm")
    }
