"""PPO's arithmetic against numbers recorded from LMRL-Gym's own functions, slow loops, and small examples by hand."""

from __future__ import annotations

import math
import random

import pytest
import torch

from trainers.ppo_losses import KLController, divergence, explained_variance, gae, ppo_loss, whiten

torch.set_num_threads(1)

# Recorded from LMRL-Gym's ppo_loss_fn: the eight action tokens of its batch, and what it gave (cliprange 0.2, both).
LOGPROBS = [-0.8936718, -0.6802436, -1.0682597, -1.2130876, -1.1447188, -0.4784049, -0.6277344, -0.1293168]
OLD_LOGPROBS = [-0.937414, -0.7459779, -0.9873117, -0.949478, -1.1423289, -0.4547114, -0.7763263, -0.1704228]
VALUES = [-0.1333665, -1.5496471, 0.8060162, -0.1800035, -2.4400744, -1.8616738, -0.0053166, -2.0178852]
OLD_VALUES = [0.2203913, -0.4750949, 0.2996587, 0.691165, -1.9058372, -2.2876399, -0.632009, -1.8167727]
ADVANTAGES = [0.2065499, -0.9049945, -1.6545912, -1.3854301, 0.4446316, 0.8932763, 0.4687393, 0.2223341]
RETURNS = [-0.1127016, -1.0082649, -0.6489818, -1.5430565, 1.6594603, 1.2923349, -1.1770121, 1.2861288]
GRAD_LOGPROBS = [-0.0269732, 0.1208103, 0.1907416, 0.0, -0.0554463, -0.109045, -0.0679789, -0.028958]
GRAD_VALUES = [0.0, -0.0676728, 0.1818748, 0.0, -0.5124419, 0.0, 0.1464619, -0.4130017]


def recorded(**options: float | torch.Tensor):  # type: ignore[no-untyped-def]
    """The loss of the recorded batch, and the tensors that carry its gradient."""
    logprobs, values = torch.tensor(LOGPROBS, requires_grad=True), torch.tensor(VALUES, requires_grad=True)
    rest = [torch.tensor(OLD_LOGPROBS), values, *(torch.tensor(x) for x in (OLD_VALUES, ADVANTAGES, RETURNS))]
    options = {"vf_coef": 1.0, "cliprange": 0.2, "cliprange_value": 0.2, "count": 8, **options}
    return ppo_loss(logprobs, *rest, **options), logprobs, values  # type: ignore[arg-type]


def test_the_loss_and_its_gradients_are_those_of_the_reference() -> None:
    loss, logprobs, values = recorded()
    assert loss.policy.item() == pytest.approx(0.16169356, abs=1e-6)
    assert loss.value.item() == pytest.approx(2.94285512, abs=1e-5)
    assert loss.total.item() == pytest.approx(3.10454869, abs=1e-5)
    assert loss.approx_kl.item() == pytest.approx(0.00637469, abs=1e-6)
    assert (loss.clipfrac.item(), loss.value_clipfrac.item()) == (0.125, 0.375)
    loss.total.backward()
    assert torch.allclose(logprobs.grad, torch.tensor(GRAD_LOGPROBS), atol=1e-6)
    assert torch.allclose(values.grad, torch.tensor(GRAD_VALUES), atol=1e-6)


def test_the_loss_of_a_step_is_the_sum_of_its_parts_and_weights_leave_tokens_out() -> None:
    """Half of the tokens at a time, by weights of 0 and 1, with the count of all."""
    whole, logprobs, _ = recorded(vf_coef=0.5)
    first = torch.tensor([1.0, 1, 0, 0, 1, 0, 1, 0])
    parts = [recorded(vf_coef=0.5, weights=weights)[0] for weights in (first, 1 - first)]
    for name in ("total", "policy", "value", "approx_kl", "clipfrac", "ratio"):
        assert getattr(whole, name).item() == pytest.approx(sum(getattr(part, name).item() for part in parts), abs=1e-6)
    assert whole.total.item() == pytest.approx(whole.policy.item() + 0.5 * whole.value.item(), abs=1e-6)
    nothing, logprobs, _ = recorded(weights=torch.zeros(8), count=0)
    nothing.total.backward()
    assert nothing.total.item() == 0 and not logprobs.grad.any(), "a batch without tokens is no division by 0"


def test_what_is_told_of_the_ratios_by_hand() -> None:
    """Two tokens: one twice as likely as before, one as likely; advantages 1 and -1."""
    loss = ppo_loss(
        torch.tensor([math.log(0.8), math.log(0.3)]), torch.tensor([math.log(0.4), math.log(0.3)]),
        torch.tensor([1.0, 5.0]), torch.tensor([0.0, 5.0]), torch.tensor([1.0, -1.0]), torch.tensor([3.0, 5.0]),
        cliprange=0.2, cliprange_value=0.5, vf_coef=0.1, count=2,
    )  # fmt: skip
    assert loss.policy.item() == pytest.approx((-1.2 + 1.0) / 2)  # clipped at 1.2
    assert loss.value.item() == pytest.approx(0.5 * (3 - 0.5) ** 2 / 2)  # clipped at 0.5
    assert loss.ratio.item() == pytest.approx(1.5) and loss.clipfrac.item() == 0.5
    assert loss.approx_kl.item() == pytest.approx((2 - 1 - math.log(2)) / 2)


def test_advantages_are_those_of_the_reference() -> None:
    """Recorded from LMRL-Gym's get_advantages_and_returns, and its whitening."""
    values = torch.tensor([[0.0934595, -1.6196413, -1.6254261, -0.5144455]])
    rewards = torch.tensor([[0.0, -1.0, 0.0, 1.0]])
    found = gae(rewards, values, torch.tensor([4]), torch.tensor([0.0]), gamma=0.99, lam=0.95)
    expected = [[-0.3804178, 1.3997731, 2.5404611, 1.5144455]]
    assert torch.allclose(found.advantages.float(), torch.tensor(expected), atol=1e-6)
    assert torch.allclose(found.returns.float(), torch.tensor([[-0.2869584, -0.2198682, 0.915035, 1.0]]), atol=1e-6)
    a = found.advantages
    white = whiten(a, a.mean().item(), a.var(correction=0).item())
    assert torch.allclose(white.float(), torch.tensor([[-1.569653, 0.1248955, 1.2107066, 0.2340512]]), atol=1e-5)


def by_definition(
    rewards: list[float], values: list[float], bootstrap: float, gammas: list[float], lams: list[float]
) -> list[float]:
    """A_t as the sum over all later tokens of their errors, each with all discounts between: no recursion."""
    states, found = [*values, bootstrap], []
    errors = [rewards[t] + gammas[t] * states[t + 1] - states[t] for t in range(len(rewards))]
    for t in range(len(rewards)):
        total = 0.0
        for later in range(t, len(rewards)):
            total += math.prod(gammas[i] * lams[i] for i in range(t, later)) * errors[later]
        found.append(total)
    return found


def test_advantages_of_ragged_episodes_against_a_slow_loop() -> None:
    rng = random.Random(0)
    lengths = [1, 7, 12, 3, 12]
    longest = max(lengths)
    rewards, values = (torch.tensor([[rng.gauss(0, 1) for _ in range(longest)] for _ in lengths]) for _ in range(2))
    gammas, lams = (torch.tensor([[rng.uniform(0.5, 1) for _ in range(longest)] for _ in lengths]) for _ in range(2))
    bootstrap = torch.tensor([0.0, 1.5, 0.0, -2.0, 0.3])
    found = gae(rewards, values, torch.tensor(lengths), bootstrap, gamma=gammas, lam=lams)
    for row, length in enumerate(lengths):
        given = [tensor[row, :length].tolist() for tensor in (rewards, values)]
        slow = by_definition(*given, bootstrap[row].item(), gammas[row].tolist(), lams[row].tolist())
        assert found.advantages[row, :length].tolist() == pytest.approx(slow, abs=1e-5)
        assert found.returns[row, :length].tolist() == pytest.approx(
            [a + v for a, v in zip(slow, given[1], strict=True)], abs=1e-5
        )
        assert not found.advantages[row, length:].any() and not found.returns[row, length:].any()


def test_gamma_and_lambda_one_give_the_return_less_the_value() -> None:
    """By hand: rewards to go 1, 1, 3 (and 4 of the value behind a cut)."""
    rewards, values = torch.tensor([[0.0, -2.0, 3.0]]), torch.tensor([[0.5, 1.0, 1.0]])
    ended = gae(rewards, values, torch.tensor([3]), torch.tensor([0.0]), gamma=1.0, lam=1.0)
    assert ended.returns.tolist() == [[1.0, 1.0, 3.0]] and ended.advantages.tolist() == [[0.5, 0.0, 2.0]]
    cut = gae(rewards, values, torch.tensor([3]), torch.tensor([4.0]), gamma=1.0, lam=1.0)
    assert cut.returns.tolist() == [[5.0, 5.0, 7.0]]


def test_whitening_can_leave_the_mean() -> None:
    white = whiten(torch.tensor([1.0, 3.0]), 2.0, 4.0, shift_mean=False)
    assert white.tolist() == pytest.approx([1.5, 2.5])


def test_the_adaptive_weight_is_that_of_the_reference() -> None:
    controller, weight = KLController(0.001, 0.1, 10_000), 0.001
    for kl, expected in [(0.05, 0.00099936), (0.1, 0.00099936), (0.3, 0.0009999995904), (0.11, 0.00100031959027)]:
        weight = controller.after(weight, kl, 32)
        assert weight == pytest.approx(expected, abs=1e-12)
    assert KLController(0.2).after(0.2, 100.0, 32) == 0.2, "without a target it is fixed"


def test_both_estimators_average_to_the_divergence() -> None:
    """Of p = (3/4, 1/4) from q = (1/2, 1/2), in expectation over p; k3 is never negative."""
    p, q = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])
    exact = (p * (p / q).log()).sum().item()
    for estimator in ("k1", "k3"):
        each = divergence(p.log(), q.log(), estimator)
        assert (p * each).sum().item() == pytest.approx(exact, abs=1e-6)
    assert (each >= 0).all()
    with pytest.raises(ValueError, match="kl_estimator is 'k2'; allowed: k1, k3"):
        divergence(p.log(), q.log(), "k2")


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([0.0, 2.0, 4.0])
    assert explained_variance(returns + 7, returns) == pytest.approx(1.0), "a constant error is no variance"
    assert explained_variance(torch.zeros(3), returns) == pytest.approx(0.0)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)
    assert explained_variance(torch.zeros(2), torch.ones(2)) == 0.0
