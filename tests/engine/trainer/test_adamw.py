import pytest
import torch

from marlaas.engine.trainer.memory import AdamState, adamw, clip


def test_many_steps_are_those_of_torch() -> None:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(50))
    optimizer = torch.optim.AdamW([parameter], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    state = AdamState(parameter.detach().clone(), torch.zeros(50), torch.zeros(50), 0)
    for _ in range(20):
        parameter.grad = torch.randn(50)
        state = adamw(state, parameter.grad, 0.01, (0.9, 0.95), 0.1)
        optimizer.step()
    assert state.step == 20
    assert torch.allclose(state.weights, parameter.detach(), atol=1e-6)
    assert torch.allclose(state.moment2, optimizer.state[parameter]["exp_avg_sq"], atol=1e-7)


def test_the_first_step_by_hand() -> None:
    before = AdamState(torch.tensor([1.0, 1.0]), torch.zeros(2), torch.zeros(2), 0)
    after = adamw(before, torch.tensor([4.0, -0.5]), 0.1, (0.9, 0.95), 0.0)
    assert after.moment1.tolist() == pytest.approx([0.4, -0.05])
    assert after.moment2.tolist() == pytest.approx([0.8, 0.0125])
    assert after.weights.tolist() == pytest.approx([0.9, 1.1])  # sign of the gradient times the learning rate
    assert before.weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("limit", "kept"), [(1.0, [0.6, 0.8]), (5.0, [3.0, 4.0]), (0.0, [3.0, 4.0])])
def test_clipping_keeps_the_direction(limit: float, kept: list[float]) -> None:
    clipped, norm = clip(torch.tensor([3.0, 4.0]), limit)
    assert norm == 5.0
    assert clipped.tolist() == pytest.approx(kept)


def test_a_divisor_does_not_slow_the_step_down() -> None:
    """With 1e-8 it does: gradients of 5e-9, as with 64 episodes of up to 512 tokens, move the weights by a third."""
    gradient, state = torch.tensor([5e-9, -2e-7]), AdamState(torch.zeros(2), torch.zeros(2), torch.zeros(2), 0)
    moves = [
        adamw(state, gradient / divisor, 1e-3, (0.9, 0.95), 0.0, epsilon).weights
        for epsilon in (1e-15, 1e-8)
        for divisor in (1.0, 1e-6)
    ]
    for move, expected in zip(moves, ([-1e-3, 1e-3],) * 2 + ([-1e-3 / 3, 0.952e-3], [-1e-3, 1e-3]), strict=True):
        assert move.tolist() == pytest.approx(expected, rel=1e-3)
