"""A run's log to its scores, without the model: at the end of a run, and again whenever somebody asks.

Scores are those of `env_servers.scores`, never clipped. What is in the log is all that is needed, so a run that is
still going can be scored too; with `replay`, every episode's actions are played again in the environment first.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from env_servers.play import replay as replay_episode
from env_servers.scores import (
    EpisodeScore,
    Interval,
    Normalisation,
    Summary,
    clustered_interval,
    normalize,
    summarize,
    worst_mean,
)
from env_servers.tasks import load_task
from env_servers.trajectory import Trajectory
from eval_harness.log import Header, read_episodes, read_failures, read_header
from eval_harness.statistics import bootstrap_interval
from hub_datasets.manifest import as_json

SEED = 0  # of all resampling: a log has the same intervals whenever it is scored


class StartIntervals(NamedTuple):
    """The mean return with whole start states as the units that are drawn: what other starts would give.

    Attributes:
        starts: How many different ones were played.
        return_interval: 95 % t interval, robust to the dependence of episodes from one start.
        return_bootstrap: 95 % bootstrap interval that draws starts.
    """

    starts: int
    return_interval: Interval
    return_bootstrap: Interval


@dataclass(frozen=True)
class PartnerUse:
    """Who spoke for the environment in a run, and how well it could.

    Attributes:
        name: Of the partner.
        revision: Of the partner.
        answers: How many of the agent's actions it answered.
        not_understood: How many of them it could not make sense of.
        sources: How many of its answers came from where (`exact`, `fallback`, ...), if it has several sources.
        usage: Tokens that it cost, by kind.
    """

    name: str
    revision: str
    answers: int
    not_understood: int
    sources: Mapping[str, int]
    usage: Mapping[str, int]

    @property
    def rates(self) -> dict[str, float]:
        """Shares of the answers: `not_understood`, and of each source."""
        known = self.sources.values()
        return {
            "not_understood": self.not_understood / max(1, self.answers),
            **{source: count / sum(known) for source, count in self.sources.items()},
        }


@dataclass(frozen=True)
class ScoredRun:
    """The numbers of one run.

    Attributes:
        folder: Where its log is.
        header: What was played.
        summary: Return, success, length, invalid actions.
        normalized: The mean return on each of the task's scales (0, 50, 100), by the scale's name.
        end_reasons: How many episodes ended for which reason, the most frequent first.
        cut_actions: How many actions the token budget cut short.
        failed: How many episodes something outside the task kept from being finished. They are in no other number
            but `worst_return`.
        partner: Who spoke for the environment; None in a task without partner.
        return_bootstrap: 95 % bootstrap interval of the mean return, with episodes as the units.
        by_start: Intervals with start states as the units; None where no start was played twice.
        worst_return: The mean return if all that failed had had the task's lowest return; None where none failed.
    """

    folder: Path
    header: Header
    summary: Summary
    normalized: Mapping[str, float]
    end_reasons: Mapping[str, int]
    cut_actions: int
    failed: int = 0
    partner: PartnerUse | None = None
    return_bootstrap: Interval | None = None
    by_start: StartIntervals | None = None
    worst_return: float | None = None

    @property
    def complete(self) -> bool:
        """Whether all episodes that were asked for are in the log."""
        return self.summary.episodes == self.header.episodes


def score(folder: str | Path, *, replay: bool = False) -> ScoredRun:
    """Score the run in a folder, complete or not.

    Args:
        folder: What `lmrl eval` wrote.
        replay: Play every episode's actions again first; all observations, rewards and ends must be the same.

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: The log is damaged, holds no finished episode yet, or an episode does not replay.
    """
    folder = Path(folder)
    header = read_header(folder)
    scores, starts, seen = list[EpisodeScore](), list[str](), set[str]()
    ends, cut, partner = Counter[str](), 0, _PartnerCount()
    for trajectory, actions in read_episodes(folder):
        if trajectory.episode_id in seen:
            raise ValueError(f"{folder}: episode {trajectory.episode_id} is in the log twice")
        seen.add(trajectory.episode_id)
        if replay:
            _check_replay(folder, trajectory)
        scores.append(
            EpisodeScore(trajectory.episode_return, trajectory.success, trajectory.num_turns, trajectory.num_invalid)
        )
        starts.append(start_of(trajectory))
        ends[trajectory.end_reason] += 1
        partner.add(trajectory)
        cut += sum(action.finish_reason == "length" for action in actions)
    if not scores:
        raise ValueError(
            f"{folder} holds no finished episode yet, so there is nothing to score; run the same `lmrl eval` command "
            "again to play them"
        )
    summary = summarize(scores)
    spec = load_task(header.task).spec
    normalized = normalize_all(summary.mean_return, spec.normalisations)
    returns = [score.episode_return for score in scores]
    failed, used = len(read_failures(folder)), None
    if header.partner is not None:
        used = partner.use(header.partner["name"], header.partner["revision"])
    return ScoredRun(
        folder,
        header,
        summary,
        normalized,
        dict(ends.most_common()),
        cut,
        failed,
        used,
        return_bootstrap=bootstrap_interval(returns, random.Random(SEED)),
        by_start=_by_start(returns, starts),
        worst_return=worst_mean(summary.mean_return, len(scores), failed, spec.min_return) if failed else None,
    )


def start_of(trajectory: Trajectory) -> str:
    """The name of an episode's start state: what the task calls `start` in its info, where start states repeat; else
    the episode itself is the only one of its start."""
    if "start" in trajectory.info:
        return json.dumps(trajectory.info["start"], sort_keys=True)
    return f"{trajectory.split} {trajectory.index}"


def _by_start(returns: list[float], starts: list[str]) -> StartIntervals | None:
    number = len(set(starts))
    if number == len(starts):
        return None
    bootstrap = bootstrap_interval(returns, random.Random(SEED), clusters=starts)
    return StartIntervals(number, clustered_interval(returns, starts), bootstrap)


class _PartnerCount:
    """What the episodes tell of their partner, added up."""

    def __init__(self) -> None:
        self._answers = self._not_understood = 0
        self._sources, self._usage = Counter[str](), Counter[str]()

    def add(self, trajectory: Trajectory) -> None:
        """Actions that the task itself refused were not put to the partner."""
        info = trajectory.info
        self._answers += trajectory.num_turns - trajectory.num_invalid
        self._not_understood += info.get("not_understood", 0)
        self._sources.update(info.get("answer_sources", {}))
        self._usage.update(info.get("answer_usage", {}))

    def use(self, name: str, revision: str) -> PartnerUse:
        """The sums, of the partner with this name."""
        sources, usage = dict(self._sources.most_common()), dict(sorted(self._usage.items()))
        return PartnerUse(name, revision, self._answers, self._not_understood, sources, usage)


def normalize_all(mean_return: float, scales: Mapping[str, Normalisation]) -> dict[str, float]:
    """A mean return on each scale, by the scale's name."""
    return {name: normalize(mean_return, scale) for name, scale in scales.items()}


def to_record(run: ScoredRun) -> dict[str, Any]:
    """A run's numbers as JSON values; what is undefined (the interval of one episode) is None."""
    return {
        "episodes": run.summary.episodes,
        "complete": run.complete,
        "summary": as_json(run.summary),
        "normalized": dict(run.normalized),
        "end_reasons": dict(run.end_reasons),
        "cut_actions": run.cut_actions,
        "failed": run.failed,
        "worst_return": run.worst_return,
        "return_bootstrap": None if run.return_bootstrap is None else defined(run.return_bootstrap),
        "by_start": None if run.by_start is None else defined(run.by_start),
        "partner": None if run.partner is None else {**asdict(run.partner), "rates": run.partner.rates},
        "header": asdict(run.header),
    }


def defined(value: Any) -> Any:
    """Named tuples as mappings, intervals as lists, and None for NaN, which JSON has not."""
    if isinstance(value, Interval):
        return [defined(end) for end in value]
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: defined(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): defined(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [defined(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _check_replay(folder: Path, trajectory: Trajectory) -> None:
    difference = replay_episode(trajectory)
    if difference is not None:
        raise ValueError(
            f"{folder}: episode {trajectory.episode_id} does not replay: {difference}; the log was edited, or it was "
            "played with another version of the task"
        )
