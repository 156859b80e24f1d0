"""The losses of value methods, on flat arrays: one number per action token, whatever sequences they came from.

ILQL is Snell et al., arXiv 2206.11871 (its section on Implicit Language Q-Learning), and MC returns LMRL-Gym, arXiv
2311.18232, section 5; the factors 1/2 are those of LMRL-Gym's code. Nothing here knows models or vocabularies: the
values of the tokens that were taken, and the sums of the conservative term, come from `trainers.heads`.

Every loss is a sum over the action tokens of a batch divided by the number in the whole gradient step, so it does not
matter how a step is divided into batches. All arithmetic is in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ILQLLoss(NamedTuple):
    """Scalars, each divided by `count`.

    Attributes:
        total: q1 + q2 + v + cql_weight (cql1 + cql2); what to go backward from.
        q1: Squared error of the first Q head against the Bellman target.
        q2: Of the second.
        v: Expectile loss of the V head against the target Q.
        cql1: Conservative term of the first Q head, without its weight.
        cql2: Of the second.
    """

    total: Tensor
    q1: Tensor
    q2: Tensor
    v: Tensor
    cql1: Tensor
    cql2: Tensor


class MCLoss(NamedTuple):
    """Scalars, each divided by `count`.

    Attributes:
        total: q + cql_weight cql; what to go backward from.
        q: Squared error of the Q head against the returns.
        cql: Conservative term, without its weight.
    """

    total: Tensor
    q: Tensor
    cql: Tensor


def ilql_loss(
    q1: Tensor,
    q2: Tensor,
    v: Tensor,
    target_q: Tensor,
    next_v: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    bootstrap: Tensor,
    cql1: Tensor,
    cql2: Tensor,
    *,
    tau: float,
    cql_weight: float,
    count: Tensor | int,
    weights: Tensor | None = None,
) -> ILQLLoss:
    """Implicit Q-learning with a conservative term; with y = r + discount bootstrap V_next and a token's weight k,

        q_i   = sum k 1/2 (Q_i - y)^2 / count
        v     = sum k 1/2 |tau - [Q_target < V]| (V - Q_target)^2 / count
        cql_i = sum k (logsumexp Q_i - Q_i(token)) / count.

    The V loss draws V to the tau-expectile of the target Q over what the data's agent did, which for tau near 1 is
    the best of it: a maximum over actions without ever asking for the value of an action that is not in the data.
    The conservative term is a cross entropy: it keeps down the values of tokens that the data's agent did not say.

    Args:
        q1: First Q head at the tokens that were taken, shape (N,).
        q2: Second Q head there, shape (N,).
        v: V head at the states before the tokens, shape (N,).
        target_q: The lesser of both target Q heads at the tokens, shape (N,); no gradient.
        next_v: V at each token's successor, the state before the agent's next token, shape (N,); no gradient.
        rewards: Reward of each token, shape (N,).
        discounts: What the successor's value is multiplied by, shape (N,).
        bootstrap: 0 where the task ended with the token (then `next_v` may be any finite number), else 1; shape (N,).
        cql1: The first head's conservative sum, `weights` included, a scalar.
        cql2: The second head's.
        tau: Expectile in (0, 1).
        cql_weight: Of the conservative terms in the total.
        count: What to divide by: the number of action tokens in all batches of the gradient step, at least 1.
        weights: How often each token counts, shape (N,); None is once.
    """
    targets = (rewards.float() + discounts.float() * bootstrap.float() * next_v.float()).detach()
    v, target_q = v.float(), target_q.float().detach()
    asymmetry = torch.where(target_q >= v, tau, 1 - tau)
    total_count = _at_least_one(count, v)
    q1_loss, q2_loss = (_half_squares(q.float() - targets, weights) / total_count for q in (q1, q2))
    v_loss = _half_squares(v - target_q, asymmetry if weights is None else asymmetry * weights.float()) / total_count
    cql1, cql2 = cql1.float() / total_count, cql2.float() / total_count
    return ILQLLoss(q1_loss + q2_loss + v_loss + cql_weight * (cql1 + cql2), q1_loss, q2_loss, v_loss, cql1, cql2)


def mc_loss(
    q: Tensor, returns: Tensor, cql: Tensor, *, cql_weight: float, count: Tensor | int, weights: Tensor | None = None
) -> MCLoss:
    """Regression on the returns of the data's agent, with a conservative term; with a token's weight k,

        q   = sum k 1/2 (Q - R)^2 / count
        cql = sum k (logsumexp Q - Q(token)) / count.

    Args:
        q: Q head at the tokens that were taken, shape (N,).
        returns: Discounted return from each token on, shape (N,), see `returns_to_go`.
        cql: The head's conservative sum, `weights` included, a scalar.
        cql_weight: Of the conservative term in the total.
        count: What to divide by: the number of action tokens in all batches of the gradient step, at least 1.
        weights: How often each token counts, shape (N,); None is once.
    """
    total_count = _at_least_one(count, q)
    q_loss = _half_squares(q.float() - returns.float().detach(), weights) / total_count
    cql = cql.float() / total_count
    return MCLoss(q_loss + cql_weight * cql, q_loss, cql)


def returns_to_go(rewards: Tensor, discounts: Tensor) -> Tensor:
    """R_t = r_t + d_t R_(t+1), with 0 after the last token.

    A scan from the end, in float64: the same sum from powers of the discount loses them to underflow in long episodes.

    Args:
        rewards: Of one episode's action tokens in order, shape (T,).
        discounts: What the return of the next action token is multiplied by, shape (T,); the last one has no effect.

    Returns:
        Shape (T,), float64.

    Raises:
        ValueError: The shapes differ or are not (T,).
    """
    if rewards.ndim != 1 or rewards.shape != discounts.shape:
        raise ValueError(
            f"rewards have shape {tuple(rewards.shape)} and discounts {tuple(discounts.shape)}; give one number of "
            "each per action token of one episode"
        )
    returns, after = [], 0.0
    for reward, discount in zip(reversed(rewards.tolist()), reversed(discounts.tolist()), strict=True):
        after = reward + discount * after
        returns.append(after)
    return torch.tensor(returns[::-1], dtype=torch.float64, device=rewards.device)


def _half_squares(errors: Tensor, weights: Tensor | None) -> Tensor:
    squares = 0.5 * errors.square()
    return squares.sum() if weights is None else (squares * weights.float()).sum()


def _at_least_one(count: Tensor | int, like: Tensor) -> Tensor:
    return torch.as_tensor(count, device=like.device).clamp(min=1)
