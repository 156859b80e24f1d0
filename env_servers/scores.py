"""Trajectories to numbers: mean return and its interval, success, length, invalid actions, normalised score.

Every table, card, log and metric of the project takes its numbers from here. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import NamedTuple, Protocol


class Normalisation(NamedTuple):
    """Three returns that a score of 0, 50 and 100 stands for, and where they come from."""

    low: float
    middle: float
    high: float
    source: str


class Episode(Protocol):
    """What `summarize` reads. A `Trajectory` has it, and so has a row read back from a log."""

    @property
    def episode_return(self) -> float: ...
    @property
    def success(self) -> bool: ...
    @property
    def num_invalid(self) -> int: ...
    @property
    def num_turns(self) -> int: ...


class EpisodeScore(NamedTuple):
    """The numbers of one episode."""

    episode_return: float
    success: bool
    num_turns: int
    num_invalid: int


class Interval(NamedTuple):
    """A two-sided confidence interval. Both ends are NaN where it is undefined."""

    low: float
    high: float


class Summary(NamedTuple):
    """The numbers of a set of episodes.

    Attributes:
        episodes: How many.
        mean_return: Mean undiscounted return, in the task's reward units.
        return_interval: 95 % t interval of that mean.
        std_return: Sample standard deviation of the returns (divisor n - 1), NaN for one episode.
        min_return: Lowest return.
        max_return: Highest return.
        success_rate: Share of episodes that the task calls a success.
        success_interval: 95 % Wilson interval of that share.
        mean_length: Mean number of the agent's actions.
        std_length: Sample standard deviation of that number.
        invalid_rate: Share of all actions that were invalid.
    """

    episodes: int
    mean_return: float
    return_interval: Interval
    std_return: float
    min_return: float
    max_return: float
    success_rate: float
    success_interval: Interval
    mean_length: float
    std_length: float
    invalid_rate: float


def summarize(episodes: Iterable[Episode]) -> Summary:
    """The numbers of a non-empty set of episodes.

    Raises:
        ValueError: There are no episodes.
    """
    scores = [EpisodeScore(e.episode_return, e.success, e.num_turns, e.num_invalid) for e in episodes]
    if not scores:
        raise ValueError("there are no episodes to score")
    returns = [score.episode_return for score in scores]
    lengths = [float(score.num_turns) for score in scores]
    successes = sum(score.success for score in scores)
    return Summary(
        episodes=len(scores),
        mean_return=fmean(returns),
        return_interval=mean_interval(returns),
        std_return=sample_std(returns),
        min_return=min(returns),
        max_return=max(returns),
        success_rate=successes / len(scores),
        success_interval=wilson_interval(successes, len(scores)),
        mean_length=fmean(lengths),
        std_length=sample_std(lengths),
        invalid_rate=sum(score.num_invalid for score in scores) / math.fsum(lengths),
    )


def normalize(value: float, scale: Normalisation) -> float:
    """A return on the scale 0, 50, 100, never clipped (LMRL-Gym, appendix, Table 5).

    Linear from `low` (0) to `middle` (50) and, with another slope, from `middle` to `high` (100). A value
    outside the two ends gives a score below 0 or above 100: that is information, so it is kept.
    """
    if value >= scale.middle:
        return 50 + 50 * (value - scale.middle) / (scale.high - scale.middle)
    return 50 * (value - scale.low) / (scale.middle - scale.low)


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with divisor n - 1; NaN for one value."""
    if len(values) < 2:
        return math.nan
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean of independent values; NaN for one value."""
    if len(values) < 2:
        return Interval(math.nan, math.nan)
    half = t_quantile((1 + confidence) / 2, len(values) - 1) * sample_std(values) / math.sqrt(len(values))
    mean = fmean(values)
    return Interval(mean - half, mean + half)


def clustered_interval(values: Sequence[float], clusters: Sequence[Hashable], confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean of values that depend on each other within a cluster, such as a start state.

    The mean is a ratio of two sums over clusters (returns, episodes); its linearised variance has the factor
    G / (G - 1) and the quantile G - 1 degrees of freedom, for G clusters. With one value in each it is `mean_interval`.

    Args:
        values: One per episode.
        clusters: The cluster of each.
        confidence: Share of such intervals that hold the mean over clusters.

    Returns:
        NaN for one cluster.

    Raises:
        ValueError: The two differ in length.
    """
    if len(values) != len(clusters):
        raise ValueError(f"there are {len(values)} values and {len(clusters)} clusters; give the cluster of each value")
    mean, residuals = fmean(values), dict[Hashable, float]()
    for value, cluster in zip(values, clusters, strict=True):
        residuals[cluster] = residuals.get(cluster, 0.0) + value - mean
    number = len(residuals)
    if number < 2:
        return Interval(math.nan, math.nan)
    spread = math.sqrt(number / (number - 1) * math.fsum(r * r for r in residuals.values())) / len(values)
    half = t_quantile((1 + confidence) / 2, number - 1) * spread
    return Interval(mean - half, mean + half)


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Probability that at least one of k attempts succeeds, unbiased from n >= k of them (Chen et al. 2021, pass@k).

    Raises:
        ValueError: The numbers are impossible, or k is more than there are attempts.
    """
    _check_attempts(attempts, successes, k)
    return 1 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def pass_hat_k(attempts: int, successes: int, k: int) -> float:
    """Probability that all of k attempts succeed, unbiased from n >= k of them (Yao et al. 2024, pass^k).

    Raises:
        ValueError: The numbers are impossible, or k is more than there are attempts.
    """
    _check_attempts(attempts, successes, k)
    return math.comb(successes, k) / math.comb(attempts, k)


def _check_attempts(attempts: int, successes: int, k: int) -> None:
    if not 0 <= successes <= attempts:
        raise ValueError(f"{successes} successes in {attempts} attempts are impossible; give a number from 0 to that")
    if not 1 <= k <= attempts:
        raise ValueError(f"k is {k}; it must be from 1 to the number of attempts, {attempts}")


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value that two policies succeed equally often, from pairs in which one alone succeeded."""
    number, fewer = only_first + only_second, min(only_first, only_second)
    tail: int = 2 * sum(math.comb(number, k) for k in range(fewer + 1))
    return min(1.0, tail / (1 << number))


def worst_mean(mean: float, episodes: int, failed: int, min_return: float) -> float:
    """The mean return if every episode that could not be evaluated had had the task's lowest return."""
    return (mean * episodes + failed * min_return) / (episodes + failed)


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share; unlike the normal one it is right near 0 and 1."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


@lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution for a probability in (0.5, 1), by bisection of its integral."""
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)

    def density(x: float) -> float:
        return constant * math.pow(1 + x * x / degrees, -(degrees + 1) / 2)

    def above_half(x: float, steps: int = 400) -> float:  # Simpson's rule from 0 to x
        width = x / steps
        inner = math.fsum((4 if k % 2 else 2) * density(k * width) for k in range(1, steps))
        return (density(0) + inner + density(x)) * width / 3

    low, high = 0.0, 2.0
    while above_half(high) < probability - 0.5:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above_half(middle) < probability - 0.5 else (low, middle)
    return (low + high) / 2
