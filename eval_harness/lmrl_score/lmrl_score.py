"""The scores of episodes as a metric of the `evaluate` library: the numbers of `env_servers.scores`, no others.

The library reads this file's imports line by line to tell what has to be installed, and takes the name after
`# From:` for what to give to pip; a line that imports two modules would confuse it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate

from env_servers.scores import EpisodeScore, normalize, summarize  # From: lmrl
from env_servers.tasks import load_task  # From: lmrl

DESCRIPTION = """\
Mean return, success rate, length and invalid actions of episodes of multi-turn tasks, with 95 % intervals, and the
mean return on a task's scale (0, 50, 100).
"""
INPUTS = """
Args:
    predictions: Episodes with episode_return (float), success (bool), num_turns (int) and num_invalid (int): an
        episodes dataset, a list of its rows, or its columns by name. Other columns are passed over.
    task: Task id such as "maze"; with it, the mean return is put on that task's scales as well.

Returns:
    episodes, mean_return, return_interval, std_return, min_return, max_return, success_rate, success_interval,
    mean_length, std_length, invalid_rate; with a task also normalized, a score per scale. Intervals are two
    numbers, NaN where one episode gives none.
"""
CITATION = """\
@misc{abdulhai2023lmrl,
  title = {LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models},
  author = {Marwa Abdulhai and others},
  year = {2023},
  eprint = {2311.18232},
  archivePrefix = {arXiv},
}
"""


class LMRLScore(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
    """Scores of episodes; see `INPUTS` for what goes in and what comes out."""

    def _info(self) -> evaluate.MetricInfo:
        episode = {
            "episode_return": datasets.Value("float64"),
            "success": datasets.Value("bool"),
            "num_turns": datasets.Value("int64"),
            "num_invalid": datasets.Value("int64"),
        }
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": episode}),
            reference_urls=["https://arxiv.org/abs/2311.18232"],
        )

    # The base class copies these two methods without their closures, so `super()` would not work in them.
    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add episodes: rows, or columns by name."""
        evaluate.Metric.add_batch(self, predictions=to_scores(predictions), references=references, **kwargs)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one episode."""
        evaluate.Metric.add_batch(self, predictions=to_scores([prediction]), references=None, **kwargs)

    def _compute(self, predictions: Sequence[Mapping[str, Any]], task: str | None = None) -> dict[str, Any]:
        summary = summarize(EpisodeScore(**{name: row[name] for name in EpisodeScore._fields}) for row in predictions)
        scores = {name: list(v) if isinstance(v, tuple) else v for name, v in summary._asdict().items()}
        if task is not None:
            scales = load_task(task).spec.normalisations
            scores["normalized"] = {name: normalize(summary.mean_return, scale) for name, scale in scales.items()}
        return scores


def to_scores(episodes: Any) -> list[dict[str, Any]]:
    """The four numbers of each episode, from rows or from columns by name.

    Raises:
        ValueError: A column is missing.
    """
    names = EpisodeScore._fields
    if isinstance(episodes, Mapping):
        episodes = [dict(zip(episodes, values, strict=True)) for values in zip(*episodes.values(), strict=True)]
    rows = list(episodes)
    for row in rows:
        if missing := [name for name in names if name not in row]:
            raise ValueError(f"an episode lacks {', '.join(missing)}; it needs {', '.join(names)}")
    return [{name: row[name] for name in names} for row in rows]
