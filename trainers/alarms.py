"""When online training has gone wrong, and how one can tell: it stops then, instead of unlearning what it had.

A policy that learns from its own episodes can talk itself into nonsense, after which no episode teaches it anything.
What shows it first differs: it leaves its reference (KL), one step changes it too much (ratio), it says one thing
whatever it reads or anything at all (entropy), the values run away (value loss), or the task does not understand it any
more (invalid actions). Limits are wide: a run that learns well meets none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

ADVICE = "Lower the learning rate (--lr) or raise the penalty (--kl-coef), and begin again from the last good policy"
UNIFORM = 0.95  # share of the largest possible entropy from which on a policy says anything at all


class TrainingCollapsed(RuntimeError):
    """Training was stopped by an alarm; the message says which."""


class Limits(NamedTuple):
    """Where alarms go off; 0 turns one off.

    Attributes:
        kl: Divergence from the reference, in nats per token.
        ratio: Divergence of the policy from the one that played the round, in nats per token: mean of
            ratio - 1 - log ratio over all passes.
        entropy: Least entropy, in nats per token; only while the mean return is below that of the first round, since a
            policy that has learned a task with one right answer is sure of it, too. And where it is almost as large
            as it can be, and was not in the first round.
        value_loss: Multiple of the value loss of the first round.
        invalid: Share of actions that the task did not understand or allow; only where it is also twice that of the
            first round.
    """

    kl: float = 5.0
    ratio: float = 1.0
    entropy: float = 0.001
    value_loss: float = 10.0
    invalid: float = 0.5


def alarm_of_round(now: Mapping[str, float], first: Mapping[str, float], limits: Limits, vocab_size: int) -> str | None:
    """What is wrong with a round that was played, or None.

    Args:
        now: The round's metrics, as `PPOTrainer` logs them.
        first: Those of the first round.
        limits: Where alarms go off.
        vocab_size: Number of tokens that the policy can say.
    """
    kl, entropy, invalid = now["objective/kl"], now["objective/entropy"], now["rollout/invalid"]
    if not all(math.isfinite(value) for value in (kl, entropy)):
        return f"the divergence from the reference is {kl} and the entropy {entropy}"
    if limits.kl and kl > limits.kl:
        return f"the policy is {kl:.3g} nats per token away from its reference (limit {limits.kl:g})"
    worse = now["rollout/return"] < first["rollout/return"]
    if limits.entropy and entropy < limits.entropy and worse:
        return (
            f"the policy has nothing left to try: its entropy is {entropy:.2g} nats per token (limit "
            f"{limits.entropy:g}), with a mean return of {now['rollout/return']:.4g}, below the first round's "
            f"{first['rollout/return']:.4g}"
        )
    if limits.entropy and entropy > UNIFORM * math.log(vocab_size) > first["objective/entropy"]:
        most = math.log(vocab_size)
        return f"the policy says anything at all: its entropy is {entropy:.3g} of at most {most:.3g} nats per token"
    if limits.invalid and invalid > limits.invalid and invalid > 2 * first["rollout/invalid"]:
        return (
            f"{invalid:.0%} of its actions are invalid (limit {limits.invalid:.0%}; "
            f"{first['rollout/invalid']:.0%} in the first round)"
        )
    return None


def alarm_of_update(now: Mapping[str, float], first_value_loss: float | None, limits: Limits) -> str | None:
    """What is wrong with the passes over a round, or None.

    Args:
        now: Means over their tokens, as `PPOTrainer` logs them.
        first_value_loss: Of the first round; None if this is it.
        limits: Where alarms go off.
    """
    changed = now["policy/approx_kl"]
    if not math.isfinite(changed) or (limits.ratio and changed > limits.ratio):
        return (
            f"the passes over one round changed the policy by {changed:.3g} nats per token (limit {limits.ratio:g}; "
            f"mean ratio of probabilities {now['policy/ratio']:.3g})"
        )
    error = now["losses/value"]
    if limits.value_loss and first_value_loss is not None and error > limits.value_loss * first_value_loss:
        return (
            f"the value loss is {error:.3g}, {error / first_value_loss:.3g} times the first round's (limit "
            f"{limits.value_loss:g} times)"
        )
    return None
