"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from env_servers.rooms import Rooms

# Upper bounds of the histogram of steps' times, seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Counts:
    """What happened in one process so far.

    Attributes:
        sessions: Sessions begun.
        refused: Clients turned away, by why.
        episodes: Finished ones, by task and end reason.
        lost: Episodes that were begun and not finished, by task and why.
        steps: By task.
        buckets: Steps by the first of `BUCKETS` that their time does not exceed; the last are slower than all.
        step_seconds: Time of all steps.
    """

    def __init__(self) -> None:
        self.sessions = 0
        self.refused: Counter[str] = Counter()
        self.episodes: Counter[tuple[str, str]] = Counter()
        self.lost: Counter[tuple[str, str]] = Counter()
        self.steps: Counter[str] = Counter()
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.step_seconds = 0.0

    def time_step(self, task: str, seconds: float) -> None:
        """Count a step."""
        self.steps[task] += 1
        self.step_seconds += seconds
        self.buckets[bisect_left(BUCKETS, seconds)] += 1


def snapshot(rooms: Rooms) -> list[Any]:
    """The counts of one process as samples: name, labels, value (JSON values)."""
    counts = rooms.counts
    samples: list[Any] = [
        ["lmrl_sessions", {}, len(rooms.sessions)],
        ["lmrl_sessions_waiting", {}, rooms.waiting],
        ["lmrl_slow_moves", {}, rooms.moves.busy],
        ["lmrl_sessions_total", {}, counts.sessions],
    ]
    samples += [["lmrl_refused_total", {"reason": why}, n] for why, n in counts.refused.items()]
    samples += [["lmrl_episodes_total", {"task": t, "end_reason": why}, n] for (t, why), n in counts.episodes.items()]
    samples += [["lmrl_episodes_lost_total", {"task": t, "reason": why}, n] for (t, why), n in counts.lost.items()]
    samples += [["lmrl_steps_total", {"task": task}, n] for task, n in counts.steps.items()]
    below = 0
    for bound, number in zip((*BUCKETS, math.inf), counts.buckets, strict=True):
        below += number
        samples.append(["lmrl_step_seconds_bucket", {"le": "+Inf" if bound == math.inf else f"{bound:g}"}, below])
    samples += [["lmrl_step_seconds_sum", {}, counts.step_seconds], ["lmrl_step_seconds_count", {}, below]]
    return samples


HELP = {
    "lmrl_sessions": ("gauge", "Open sessions."),
    "lmrl_sessions_waiting": ("gauge", "Clients that wait for a session."),
    "lmrl_slow_moves": ("gauge", "Threads that are at a slow move of an environment, stuck ones included."),
    "lmrl_sessions_total": ("counter", "Sessions begun."),
    "lmrl_refused_total": ("counter", "Clients turned away."),
    "lmrl_episodes_total": ("counter", "Finished episodes."),
    "lmrl_episodes_lost_total": ("counter", "Episodes begun and not finished."),
    "lmrl_steps_total": ("counter", "Steps."),
    "lmrl_step_seconds": ("histogram", "Time of a step in the server, waiting included."),
}


def render(processes: Sequence[Sequence[Any]]) -> str:
    """The sum of several processes' samples, in Prometheus' text format 0.0.4."""
    total: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for samples in processes:
        for name, labels, value in samples:
            key = (name, tuple(labels.items()))
            total[key] = total.get(key, 0) + value
    lines: list[str] = []
    for metric, (kind, what) in HELP.items():
        lines += [f"# HELP {metric} {what}", f"# TYPE {metric} {kind}"]
        for (name, labels), value in total.items():
            if name == metric or (kind == "histogram" and name.startswith(f"{metric}_")):
                shown = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
                lines.append(f"{name}{{{shown}}} {value:g}" if shown else f"{name} {value:.17g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
