"""PPO's arithmetic on action tokens: advantages, whitening, clipped losses, and what holds the policy to a reference.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), with the generalised advantages of
Schulman et al. (arXiv 1506.02438), and the penalty on the divergence from a reference of Ziegler et al. (arXiv
1909.08593, section 2.2), in the form of LMRL-Gym (arXiv 2311.18232, section 5). A step of the decision process is one
of the agent's tokens; what the environment says between two of them is passed over, so the state after an action's
last token is the one before the next action's first. Nothing here knows models, texts or processes.

As in `trainers.losses`, a loss is a sum over the tokens of a batch divided by the number in the whole gradient step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = 1e-8  # added to a variance before its root is divided by
ESTIMATORS = ("k1", "k3")


class Advantages(NamedTuple):
    """Each of shape (E, T), float64; 0 behind an episode's end.

    Attributes:
        advantages: How much better than the state's value a token turned out.
        returns: Advantages plus values, which the values are regressed on.
    """

    advantages: Tensor
    returns: Tensor


class PPOLoss(NamedTuple):
    """Scalars, each divided by `count`; the first three have a gradient.

    Attributes:
        total: policy + vf_coef value; what to go backward from.
        policy: Clipped objective, its sign turned.
        value: Half the squared error of the values, clipped, too.
        approx_kl: Estimate of the divergence of the new policy from the old one, mean of ratio - 1 - log ratio.
        clipfrac: Share of tokens on which the clipped objective is the one that counts.
        value_clipfrac: Share of tokens on which the clipped error is the one that counts.
        ratio: Mean ratio of new to old probability; near 1 as long as the tokens are a sample of both.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    approx_kl: Tensor
    clipfrac: Tensor
    value_clipfrac: Tensor
    ratio: Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    lengths: Tensor,
    bootstrap: Tensor,
    *,
    gamma: Tensor | float,
    lam: Tensor | float,
) -> Advantages:
    """Generalised advantages over the action tokens of whole episodes, all episodes at once.

        delta_t = r_t + gamma_t V_(t+1) - V_t,    A_t = delta_t + gamma_t lambda_t A_(t+1),

    with V and A after an episode's last token its `bootstrap` and 0.

    Args:
        rewards: Of each token, shape (E, T); an episode's tokens in order from the left.
        values: Of the state before each token, shape (E, T).
        lengths: Number of tokens of each episode, shape (E,).
        bootstrap: Value of the state after its last token, shape (E,): 0 where the task ended there.
        gamma: Discount of what comes after a token: one for all, or shape (E, T).
        lam: Likewise the weight of longer looks ahead.
    """
    inside = torch.arange(rewards.size(1), device=rewards.device) < lengths[:, None]
    last = torch.arange(rewards.size(1), device=rewards.device) == lengths[:, None] - 1
    rewards, values, bootstrap = rewards.double(), values.double(), bootstrap.double()
    discounts = torch.as_tensor(gamma, dtype=torch.float64, device=rewards.device).expand_as(rewards)
    traces = discounts * torch.as_tensor(lam, dtype=torch.float64, device=rewards.device)
    after = torch.cat([values[:, 1:], bootstrap[:, None]], dim=1)
    deltas = (rewards + discounts * torch.where(last, bootstrap[:, None], after) - values) * inside
    advantages, later = torch.zeros_like(deltas), torch.zeros_like(bootstrap)
    for place in reversed(range(rewards.size(1))):
        later = deltas[:, place] + traces[:, place] * later  # 0 until the episode's last token is reached
        advantages[:, place] = later
    return Advantages(advantages, (advantages + values) * inside)


def whiten(values: Tensor, mean: float, variance: float, shift_mean: bool = True) -> Tensor:
    """Values of mean 0 (or, without `shift_mean`, of the mean they have) and variance 1.

    Args:
        values: Any shape.
        mean: Of all that are whitened together, which may be in several processes.
        variance: Their population variance.
        shift_mean: Take the mean away.
    """
    whitened: Tensor = (values - mean) * (variance + EPSILON) ** -0.5
    return whitened if shift_mean else whitened + mean


def ppo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    values: Tensor,
    old_values: Tensor,
    advantages: Tensor,
    returns: Tensor,
    *,
    cliprange: float,
    cliprange_value: float,
    vf_coef: float,
    count: Tensor | int,
    weights: Tensor | None = None,
) -> PPOLoss:
    """The clipped losses; with rho = exp(logprobs - old_logprobs) and a token's weight k,

        policy = sum k max(-A rho, -A clip(rho, 1 - cliprange, 1 + cliprange)) / count
        value  = sum k 1/2 max((V - R)^2, (clip(V, V_old - cliprange_value, V_old + cliprange_value) - R)^2) / count

    (arXiv 1707.06347, equations 7 and 9; the clipped value loss is of its authors' code).

    Args:
        logprobs: Of the tokens taken under the policy that learns, shape (N,); they carry its gradient.
        old_logprobs: Under the policy as it was when the round began, shape (N,).
        values: Of the states before them, shape (N,), with gradient.
        old_values: As they were when the round began, shape (N,).
        advantages: Shape (N,), whitened or not.
        returns: What the values are regressed on, shape (N,).
        cliprange: How far the ratio may go from 1 and still count.
        cliprange_value: How far a value may go from the old one; in the units of the returns.
        vf_coef: Weight of the value loss.
        count: What to divide by: the number of tokens in all batches of the gradient step, at least 1.
        weights: How often each token counts, shape (N,); None is once.
    """
    old_logprobs, old_values = old_logprobs.float().detach(), old_values.float().detach()
    advantages, returns, values = advantages.float().detach(), returns.float().detach(), values.float()
    log_ratio = logprobs.float() - old_logprobs
    ratio = log_ratio.exp()
    free, held = -advantages * ratio, -advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    near = old_values + (values - old_values).clamp(-cliprange_value, cliprange_value)
    error, near_error = (values - returns).square(), (near - returns).square()

    divisor = torch.as_tensor(count, device=values.device).clamp(min=1)

    def mean(each: Tensor) -> Tensor:
        return (each if weights is None else each * weights.float()).sum() / divisor

    policy, value = mean(torch.maximum(free, held)), mean(0.5 * torch.maximum(error, near_error))
    with torch.no_grad():
        told = (
            mean(ratio - 1 - log_ratio),
            mean((held > free).float()),
            mean((near_error > error).float()),
            mean(ratio),
        )
    return PPOLoss(policy + vf_coef * value, policy, value, *told)


def divergence(logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k1") -> Tensor:
    """Estimates of KL(policy || reference) from tokens that the policy sampled, one for each.

    Both are right on average: `k1` is log p - log q; `k3` is q/p - 1 - log q/p, never negative and less noisy, but
    its average as a reward has another gradient.

    Args:
        logprobs: Under the policy (p), any shape.
        ref_logprobs: Under the reference (q), the same shape.
        estimator: `k1` or `k3`.

    Raises:
        ValueError: The estimator is unknown.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"kl_estimator is {estimator!r}; allowed: {', '.join(ESTIMATORS)}")
    log_ratio = ref_logprobs - logprobs
    return -log_ratio if estimator == "k1" else log_ratio.exp() - 1 - log_ratio


class KLController(NamedTuple):
    """Weight of the penalty on the divergence from the reference, from round to round.

    With a target and a horizon it adapts (arXiv 1909.08593, section 2.2): it grows while the divergence is above the
    target and falls while it is below, at most by 0.2 n / horizon of itself after n episodes. Else it is fixed.

    Attributes:
        first: In the first round.
        target: Divergence to hold, in nats per token; None is fixed.
        horizon: Number of episodes.
    """

    first: float
    target: float | None = None
    horizon: int = 10_000

    def after(self, coefficient: float, kl: float, episodes: int) -> float:
        """The weight of the next round.

        Args:
            coefficient: This round's.
            kl: Divergence measured in it, in nats per token.
            episodes: Number of its episodes.
        """
        if self.target is None:
            return coefficient
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return coefficient * (1 + error * episodes / self.horizon)


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Share of the returns' variance that the values foretell: 1 is all of it, 0 no better than their mean.

    Args:
        values: Shape (N,).
        returns: Shape (N,).
    """
    spread = returns.double().var(correction=0)
    rest = (returns.double() - values.double()).var(correction=0)
    return float(1 - rest / spread) if spread > 0 else 0.0
