"""Runs against each other: two on the same episodes, pair by pair; and many over tasks and seeds.

Episodes that something outside the task kept from being finished are in no pair and no score; they are counted.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from env_servers.scores import Interval, clustered_interval, mcnemar, mean_interval, pass_at_k, pass_hat_k
from eval_harness.log import Header, read_episodes, read_failures, read_header
from eval_harness.score import SEED, ScoredRun, start_of
from eval_harness.statistics import (
    bootstrap_interval,
    iqm,
    mean_score,
    optimality_gap,
    performance_profile,
    sign_flip,
    stratified_bootstrap,
)

THRESHOLDS = tuple(float(score) for score in range(-50, 151, 5))  # of performance profiles, on the scale 0, 50, 100


class Outcome(NamedTuple):
    """What a comparison needs of an episode."""

    episode_return: float
    success: bool
    seed: int
    env_kwargs: str
    start: str


class Comparison(NamedTuple):
    """The first run minus the second, on the episodes that both have.

    Attributes:
        pairs: How many episodes.
        starts: How many different start states among them; intervals and p-value have these as units.
        means: Mean return of each run on these episodes.
        difference: Mean difference of the returns.
        t_interval: Its 95 % t interval, with start states as units.
        bootstrap: Its 95 % bootstrap interval, with start states as units.
        episode_interval: Its 95 % t interval with episodes as units: for these very starts.
        p_value: That the mean difference is 0, two-sided, by sign flips of start states.
        improvement: Share of pairs in which the first has the higher return, ties counted half.
        improvement_interval: Its 95 % bootstrap interval, with start states as units.
        wins: Pairs in which the first has the higher return.
        ties: Pairs with equal returns.
        losses: Pairs in which the second has the higher return.
        successes: Success rate of each run on these episodes.
        only_first: Pairs in which the first alone succeeded.
        only_second: Pairs in which the second alone succeeded.
        success_p_value: That both succeed equally often, McNemar's exact test.
        failed: Episodes of each run that could not be evaluated.
        unpaired: Finished episodes of each run that the other lacks.
        notes: What a reader must know before believing the numbers.
    """

    pairs: int
    starts: int
    means: tuple[float, float]
    difference: float
    t_interval: Interval
    bootstrap: Interval
    episode_interval: Interval
    p_value: float
    improvement: float
    improvement_interval: Interval
    wins: int
    ties: int
    losses: int
    successes: tuple[float, float]
    only_first: int
    only_second: int
    success_p_value: float
    failed: tuple[int, int]
    unpaired: tuple[int, int]
    notes: tuple[str, ...]


def compare(first: str | Path, second: str | Path) -> Comparison:
    """Compare two runs of one task, episode by episode.

    Args:
        first: Folder of a run.
        second: Folder of another one.

    Raises:
        FileNotFoundError: A folder holds no run.
        ValueError: The runs are of different tasks, versions or options, have no episode in common, or the same
            number stands for different episodes.
    """
    folders = (Path(first), Path(second))
    headers = (read_header(folders[0]), read_header(folders[1]))
    notes = _check_headers(folders, *headers)
    a, b = (_outcomes(folder) for folder in folders)
    common = sorted(a.keys() & b.keys())
    for split, index in common:
        one, other = a[split, index], b[split, index]
        if (one.seed, one.env_kwargs, one.start) != (other.seed, other.env_kwargs, other.start):
            raise ValueError(
                f"episode {split} {index} is another one in {folders[0]} (seed {one.seed}) than in {folders[1]} (seed "
                f"{other.seed}); compare runs with the same starts: the same --starts-from, split and options"
            )
    if not common:
        raise ValueError(f"{folders[0]} and {folders[1]} have no finished episode in common; nothing can be paired")
    return _paired(
        [a[key] for key in common],
        [b[key] for key in common],
        (len(read_failures(folders[0])), len(read_failures(folders[1]))),
        (len(a) - len(common), len(b) - len(common)),
        notes,
    )


def _outcomes(folder: Path) -> dict[tuple[str, int], Outcome]:
    found: dict[tuple[str, int], Outcome] = {}
    for episode, _ in read_episodes(folder):
        if (key := (episode.split, episode.index)) in found:
            raise ValueError(f"{folder}: episode {episode.episode_id} is in the log twice")
        kwargs = json.dumps(_without_partner(episode.env_kwargs), sort_keys=True)
        found[key] = Outcome(episode.episode_return, episode.success, episode.seed, kwargs, start_of(episode))
    return found


def _without_partner(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an environment that say what is played, not who speaks for it."""
    return {name: value for name, value in options.items() if name not in ("partner", "partner_options")}


def _check_headers(folders: tuple[Path, Path], a: Header, b: Header) -> tuple[str, ...]:
    for name in ("task", "task_version", "env_kwargs", "split"):
        one, other = getattr(a, name), getattr(b, name)
        if name == "env_kwargs":  # another partner is told, not refused: that may be what is compared
            one, other = _without_partner(one), _without_partner(other)
        if one != other:
            raise ValueError(
                f"the runs differ in {name}: {one!r} in {folders[0]}, {other!r} in {folders[1]}; only runs of the same "
                "episodes can be compared"
            )
    notes = list[str]()
    if a.partner != b.partner:
        names = [f"{p['name']} ({p['revision']})" if p else "none" for p in (a.partner, b.partner)]
        notes.append(f"The runs had different partners, {names[0]} and {names[1]}: the difference is also theirs.")
    elif a.starts != b.starts:
        notes.append(
            f"The runs were asked for different starts ({a.episodes:,} and {b.episodes:,} episodes); only those that "
            "both have are compared, each found to be the same in both."
        )
    if (a.model, a.seed) == (b.model, b.seed):
        notes.append("Both runs have the same model and seed.")
    return tuple(notes)


def _paired(
    a: Sequence[Outcome],
    b: Sequence[Outcome],
    failed: tuple[int, int],
    unpaired: tuple[int, int],
    notes: tuple[str, ...],
) -> Comparison:
    pairs = list(zip(a, b, strict=True))
    differences = [one.episode_return - other.episode_return for one, other in pairs]
    better = [float(d > 0) + 0.5 * (d == 0) for d in differences]
    starts = [one.start for one in a]
    first = sum(one.success and not other.success for one, other in pairs)
    second = sum(other.success and not one.success for one, other in pairs)
    return Comparison(
        pairs=len(pairs),
        starts=len(set(starts)),
        means=(fmean(o.episode_return for o in a), fmean(o.episode_return for o in b)),
        difference=fmean(differences),
        t_interval=clustered_interval(differences, starts),
        bootstrap=bootstrap_interval(differences, random.Random(SEED), clusters=starts),
        episode_interval=mean_interval(differences),
        p_value=sign_flip(differences, random.Random(SEED), clusters=starts),
        improvement=fmean(better),
        improvement_interval=bootstrap_interval(better, random.Random(SEED), clusters=starts),
        wins=sum(d > 0 for d in differences),
        ties=sum(d == 0 for d in differences),
        losses=sum(d < 0 for d in differences),
        successes=(fmean(o.success for o in a), fmean(o.success for o in b)),
        only_first=first,
        only_second=second,
        success_p_value=mcnemar(first, second),
        failed=failed,
        unpaired=unpaired,
        notes=notes,
    )


# Repeats -----------------------------------------------------------------------------------------------------------
class PassRates(NamedTuple):
    """What repeats of the same starts tell of success.

    Attributes:
        starts: How many different start states.
        attempts: Least number of episodes from one of them.
        at_least_one: By k, the probability that at least one of k attempts from a start succeeds (pass@k).
        all: By k, the probability that all of k attempts from a start succeed (pass^k).
    """

    starts: int
    attempts: int
    at_least_one: Mapping[int, float]
    all: Mapping[int, float]


def pass_rates(folders: Sequence[Path]) -> PassRates | None:
    """pass@k and pass^k of one model, for k = 1, 2, 4, ... up to the number of attempts.

    Attempts are episodes from one start state: of one run where its task repeats starts, and of runs with other
    `--seed`s. Starts count equally. The caller sees to it that the runs are of one model and one task.

    Returns:
        None where some start has no second attempt.
    """
    tried: dict[str, list[bool]] = {}
    for folder in folders:
        for outcome in _outcomes(Path(folder)).values():
            tried.setdefault(outcome.start, []).append(outcome.success)
    least = min((len(each) for each in tried.values()), default=0)
    if least < 2:
        return None
    ks = [2**power for power in range(least.bit_length())]
    counts = [(len(each), sum(each)) for each in tried.values()]
    return PassRates(
        len(tried),
        least,
        {k: fmean(pass_at_k(n, c, k) for n, c in counts) for k in ks},
        {k: fmean(pass_hat_k(n, c, k) for n, c in counts) for k in ks},
    )


# Many runs ---------------------------------------------------------------------------------------------------------
class Estimate(NamedTuple):
    """A number and its 95 % stratified bootstrap interval, NaN with one run per task."""

    value: float
    interval: Interval


class MethodScores(NamedTuple):
    """A method over tasks and runs.

    Attributes:
        method: Its name.
        runs: How many runs it has on each task.
        mean: Mean score.
        iqm: Interquartile mean of the scores.
        optimality_gap: Mean shortfall below 100.
        profile: For each of `Aggregates.thresholds`, the share of runs and tasks with a score above.
    """

    method: str
    runs: int
    mean: Estimate
    iqm: Estimate
    optimality_gap: Estimate
    profile: tuple[Estimate, ...]


class Aggregates(NamedTuple):
    """All methods on one scale over the tasks that all of them have.

    Attributes:
        scale: Name of the scale, such as `lmrl`.
        tasks: The tasks.
        thresholds: Scores of the performance profiles.
        methods: The numbers of each method.
        notes: What was left out, and why.
    """

    scale: str
    tasks: tuple[str, ...]
    thresholds: tuple[float, ...]
    methods: tuple[MethodScores, ...]
    notes: tuple[str, ...]


def method_of(run: ScoredRun) -> str:
    """The method that a run is a sample of: its model's name without a number at the end, as in `maze/bc-0`, and what
    it was sampled with unless that is the default. Checkpoints of several training seeds are runs of one method, and
    so are several `--seed`s of one checkpoint."""
    model = run.header.model
    name = str(model["name"]).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[-_](seed)?\d{1,2}$", "", name)
    sampling = dict(model.get("sampling") or {})
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": sampling.get("max_new_tokens")}
    told = [f"{key} {value}" for key, value in sampling.items() if usual.get(key) != value]
    return f"{name} ({', '.join(told)})" if told else name


def task_of(run: ScoredRun) -> str:
    """The task with what makes another task of it: options and partner."""
    options = _without_partner(run.header.env_kwargs)
    partner = run.header.partner
    told = [json.dumps(options, sort_keys=True)] if options else []
    told += [f"partner {partner['name']}@{partner['revision'][:8]}"] if partner else []
    return " ".join([run.header.task, *told])


def distinct(runs: Sequence[ScoredRun]) -> list[ScoredRun]:
    """The runs without those that repeat another's task, split, model and seed: they are no second sample."""
    found: dict[str, ScoredRun] = {}
    for run in runs:
        header = run.header
        found.setdefault(json.dumps([task_of(run), header.split, dict(header.model), header.seed], sort_keys=True), run)
    return list(found.values())


def repeats(runs: Sequence[ScoredRun]) -> list[tuple[str, str, PassRates]]:
    """Task, model's name and pass rates of each model that has repeats."""
    groups: dict[str, list[ScoredRun]] = {}
    for run in distinct(runs):
        name = json.dumps([task_of(run), run.header.split, dict(run.header.model)], sort_keys=True)
        groups.setdefault(name, []).append(run)
    found = [(group[0], pass_rates([run.folder for run in group])) for group in groups.values()]
    return [(task_of(run), str(run.header.model["name"]), rates) for run, rates in found if rates is not None]


def aggregate(runs: Sequence[ScoredRun], scale: str = "lmrl") -> Aggregates | None:
    """IQM, optimality gap and performance profile of each method over its tasks and runs (Agarwal et al. 2021).

    Args:
        runs: Any runs; those without the scale, and methods with unequal numbers of runs, are left out with a note.
        scale: Which normalised score.

    Returns:
        None unless there are several tasks, or a method with several runs on its task.
    """
    notes, scores = list[str](), dict[str, dict[str, list[float]]]()
    known = distinct(runs)
    if len(known) < len(runs):
        notes.append(f"{len(runs) - len(known)} repeated another run's model and seed and are left out.")
    for run in known:
        if scale in run.normalized:
            of_method = scores.setdefault(method_of(run), {})
            of_method.setdefault(task_of(run), []).append(run.normalized[scale])
        else:
            notes.append(f"{task_of(run)} has no scale {scale} and is left out.")
    every = dict.fromkeys(task for tasks in scores.values() for task in tasks)
    common = [task for task in every if all(task in tasks for tasks in scores.values())]
    if not common:
        return None
    if left := [task for task in every if task not in common]:
        notes.append(f"Not all methods were run on {', '.join(left)}: left out.")
    methods = list[MethodScores]()
    for method, tasks in scores.items():
        counts = {len(tasks[task]) for task in common}
        if len(counts) > 1:
            notes.append(f"{method} has unequal numbers of runs on its tasks ({_listed(counts)}) and is left out.")
        else:
            methods.append(_method_scores(method, np.array([tasks[task] for task in common]).T))
    if not methods or (len(common) == 1 and all(method.runs == 1 for method in methods)):
        return None
    return Aggregates(scale, tuple(common), THRESHOLDS, tuple(methods), tuple(dict.fromkeys(notes)))


def _listed(numbers: set[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _method_scores(method: str, matrix: Any) -> MethodScores:
    def estimate(measure: Any) -> Estimate:
        low, high = stratified_bootstrap(matrix, measure, random.Random(SEED))
        return Estimate(float(measure(matrix)), Interval(float(low), float(high)))

    lows, highs = stratified_bootstrap(matrix, lambda m: performance_profile(m, THRESHOLDS), random.Random(SEED))
    profile = tuple(
        Estimate(float(value), Interval(float(low), float(high)))
        for value, low, high in zip(performance_profile(matrix, THRESHOLDS), lows, highs, strict=True)
    )
    return MethodScores(method, len(matrix), estimate(mean_score), estimate(iqm), estimate(optimality_gap), profile)
