"""Resampling: bootstrap intervals, the sign-flip test, and aggregates over tasks and runs (Agarwal et al. 2021).

What needs no resampling is in `env_servers.scores`. All randomness comes from the `random.Random` that is handed in,
so the same numbers give the same interval.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from env_servers.scores import Interval, t_quantile

RESAMPLES = 10_000
ENTRIES = 1_000_000  # numbers that are drawn at once; bounds the memory
OPTIMAL = 100.0  # what the best policy scores on the scales of this project; rliable's gamma is 1 on its own
SLACK = 1e-9  # relative: sums that differ by rounding alone are equal

Floats = NDArray[np.float64]
Aggregate = Callable[[Floats], Floats]  # scores (..., runs, tasks) to a number, or several, for each of the first axes


def generator(rng: random.Random) -> np.random.Generator:
    """A numpy generator that is a function of the state of `rng`, which moves on."""
    return np.random.Generator(np.random.PCG64(rng.getrandbits(128)))


# Means of episodes -------------------------------------------------------------------------------------------------
def cluster_sums(values: Sequence[float], clusters: Sequence[Hashable] | None) -> tuple[Floats, Floats]:
    """The sum and the number of the values of each cluster; None is a cluster for each value.

    Raises:
        ValueError: There are no values, or the two differ in length.
    """
    if not len(values) or (clusters is not None and len(clusters) != len(values)):
        raise ValueError(
            f"there are {len(values)} values and {'no' if clusters is None else len(clusters)} clusters; give at least "
            "one value, and the cluster of each"
        )
    taken = np.asarray(values, dtype=np.float64)
    if clusters is None:
        return taken, np.ones_like(taken)
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    return np.bincount(index, weights=taken).astype(np.float64), np.bincount(index).astype(np.float64)


def bootstrap_means(sums: Floats, sizes: Floats, rng: random.Random, resamples: int = RESAMPLES) -> Floats:
    """The mean of each of `resamples` samples of as many clusters, drawn with replacement."""
    draw, number = generator(rng), len(sums)
    chunk, means = max(1, ENTRIES // number), list[Floats]()
    for begin in range(0, resamples, chunk):
        chosen = draw.integers(0, number, (min(chunk, resamples - begin), number))
        means.append(sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1))
    return np.concatenate(means)


def bootstrap_interval(
    values: Sequence[float],
    rng: random.Random,
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Percentile bootstrap interval of a mean; whole clusters are drawn.

    The percentile interval of n values is too narrow by the factor sqrt((n - 1) / n) and by that of the normal to
    Student's quantile. So the two levels are moved outwards as Hesterberg 2015 does ("expanded percentile"): to
    Phi(-sqrt(n / (n - 1)) t), with n - 1 degrees of freedom. For many values it is the plain percentile interval.

    Returns:
        NaN for one cluster.
    """
    sums, sizes = cluster_sums(values, clusters)
    number = len(sums)
    if number < 2:
        return Interval(math.nan, math.nan)
    quantile = math.sqrt(number / (number - 1)) * t_quantile((1 + confidence) / 2, number - 1)
    level = NormalDist().cdf(-quantile)
    means = bootstrap_means(sums, sizes, rng, resamples)
    low, high = np.quantile(means, (level, 1 - level), method="inverted_cdf")
    return Interval(float(low), float(high))


def sign_flip(
    differences: Sequence[float],
    rng: random.Random,
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
) -> float:
    """Two-sided p-value that the mean difference is 0, by flipping signs; a cluster's differences flip together.

    All combinations of signs are gone through where there are at most `resamples` of them; else so many are drawn,
    and the one that was seen counts among them, so p is never 0.
    """
    sums, _ = cluster_sums(differences, clusters)
    sums = sums[sums != 0]
    number, seen = len(sums), abs(float(sums.sum()))
    least = seen - SLACK * float(np.abs(sums).sum())
    if 2**number <= resamples:
        bits = (np.arange(2**number)[:, None] >> np.arange(number)) & 1
        return float(np.mean(np.abs((2 * bits - 1) @ sums) >= least))
    draw, count, chunk = generator(rng), 0, max(1, ENTRIES // number)
    for begin in range(0, resamples, chunk):
        bits = draw.integers(0, 2, (min(chunk, resamples - begin), number), dtype=np.int8)
        count += int(np.sum(np.abs((2.0 * bits - 1.0) @ sums) >= least))
    return (1 + count) / (1 + resamples)


# Scores of several runs on several tasks ---------------------------------------------------------------------------
def iqm(scores: ArrayLike) -> Floats:
    """Interquartile mean of all runs on all tasks: without the lowest and the highest quarter, rounded down."""
    flat = _flat(scores)
    cut = flat.shape[-1] // 4
    return np.asarray(np.sort(flat, axis=-1)[..., cut : flat.shape[-1] - cut].mean(axis=-1))


def optimality_gap(scores: ArrayLike, optimal: float = OPTIMAL) -> Floats:
    """By how much scores fall short of `optimal` on average; what exceeds it makes up for nothing (a definition of
    the measure: the scores themselves are not clipped)."""
    return np.asarray(optimal - np.minimum(_flat(scores), optimal).mean(axis=-1))


def mean_score(scores: ArrayLike) -> Floats:
    """Mean of all runs on all tasks."""
    return np.asarray(_flat(scores).mean(axis=-1))


def performance_profile(scores: ArrayLike, thresholds: Sequence[float]) -> Floats:
    """Share of all runs on all tasks with a score above each threshold; the thresholds are the last axis."""
    flat = _flat(scores)
    return np.stack([np.asarray((flat > threshold).mean(axis=-1)) for threshold in thresholds], axis=-1)


def _flat(scores: ArrayLike) -> Floats:
    array = np.asarray(scores, dtype=np.float64)
    return array.reshape(*array.shape[:-2], -1)


def stratified_bootstrap(
    scores: ArrayLike,
    aggregate: Aggregate,
    rng: random.Random,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Floats:
    """Percentile interval of an aggregate: for each task its runs are drawn anew, with replacement, apart from the
    other tasks' (Agarwal et al. 2021, section 4.1).

    Args:
        scores: Runs x tasks.
        aggregate: Of matrices (..., runs, tasks).
        rng: Randomness.
        confidence: Of the interval.
        resamples: How many matrices are drawn.

    Returns:
        The two ends on the first axis; NaN where there is one run per task, from which nothing is learned of others.

    Raises:
        ValueError: The scores are no matrix.
    """
    matrix = np.asarray(scores, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"scores have the shape {matrix.shape}; give a matrix, a row per run and a column per task")
    runs, tasks = matrix.shape
    if runs < 2:
        return np.full((2, *aggregate(matrix).shape), math.nan)
    draw, chunk, found = generator(rng), max(1, ENTRIES // matrix.size), list[Floats]()
    for begin in range(0, resamples, chunk):
        chosen = draw.integers(0, runs, (min(chunk, resamples - begin), runs, tasks))
        found.append(aggregate(matrix[chosen, np.arange(tasks)]))
    level = (1 - confidence) / 2
    return np.asarray(np.quantile(np.concatenate(found), (level, 1 - level), axis=0))
