"""Maze of the original release (`maze/fully_observed_maze_data.jsonl`, `partially_observed_maze_data.jsonl`).

The fully observed file has a list of steps for each episode, the partially observed one a `text_history` that may end
with an action or with what followed it. The start is an option of the environment, so that every episode replays: the
fully observed text gives it; where it does not, it is the first of the free cells from which all recorded texts follow
(the mirror image of a walk in one arm of the maze can read the same, which `info` counts as `possible_starts`).

The release's collectors stop after 100 moves, one before the environment does, and mark that as done. Such an episode
was cut, so that it is truncated here, as are all that end away from the goal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from env_servers.tasks import make_env
from env_servers.tasks.maze import grid
from hub_datasets.importers import CUT, RECORD_END, Draft, Layout, MalformedRecord, Steps
from hub_datasets.importers.values import steps_of_history, steps_of_list, turns_of

_POSITION = re.compile(r"Your current position is at position (\d(?: \d)?), (\d(?: \d)?)\.")


def _read(record: Any) -> Steps:
    return steps_of_list(record) if isinstance(record, list) else steps_of_history(record)


def _draft(task: str, steps: Steps, options: Mapping[str, Any]) -> Draft:
    starts = grid(options.get("maze", "double_t")).starts
    if task == "maze":
        told = _POSITION.search(steps.observations[0])
        if told is None:
            raise MalformedRecord(f"the first text is {steps.observations[0]!r:.100}; it gives no position")
        row, column = (int(digits.replace(" ", "")) for digits in told.groups())
        if (row, column) not in starts:
            raise MalformedRecord(f"it starts at {[row, column]}, where no episode can")
        starts = [(row, column)]
    fitting: list[Draft] = []
    furthest = (-1, "")
    for cell in starts:
        found = _play(task, steps, {**options, "start": list(cell)})
        if isinstance(found, Draft):
            fitting.append(found)
        else:
            furthest = max(furthest, found, key=lambda difference: difference[0])
    if not fitting:
        raise MalformedRecord(furthest[1])
    if len(fitting) > 1:
        fitting[0].info = {**fitting[0].info, "possible_starts": len(fitting)}
    return fitting[0]


def _play(task: str, steps: Steps, env_kwargs: Mapping[str, Any]) -> Draft | tuple[int, str]:
    """The episode from one start; or after how many actions the record departs from the rules, and how."""
    env = make_env(task, env_kwargs)
    observation, step, invalid = env.reset(0), None, 0
    for number, turn in enumerate(turns_of(steps)):
        if step is not None and step.done:
            return number, f"it goes on with action {number} after {observation!r}, where the episode ends"
        if observation != turn.observation:
            return (
                number,
                f"text before action {number} is {turn.observation!r:.160}; by the rules it is {observation!r}",
            )
        step = env.step(turn.action)
        if step.reward != turn.reward:
            what = f"action {number}, {turn.action!r:.40},"
            return number, f"the reward of {what} is {turn.reward:g}; by the rules it is {step.reward:g}"
        observation, invalid = step.observation, invalid + (not step.legal)
    assert step is not None, "a record has at least one action"
    if steps.final is not None and steps.final != observation:
        return len(steps.actions), f"the last text is {steps.final!r:.160}; by the rules it is {observation!r}"
    return Draft(
        turns=turns_of(steps),
        final_observation=observation,
        terminated=step.terminated,
        end_reason=step.end_reason or RECORD_END,
        success=step.success,
        num_invalid=invalid,
        env_kwargs=env_kwargs,
        info=env.info,
    )


def _layout(task: str) -> Layout:
    return Layout(
        read=_read,
        draft=functools.partial(_draft, task),
        options=("maze", "reward"),
        reasons=CUT,
        lists=True,
    )


LAYOUTS = {task: _layout(task) for task in ("maze", "maze_po")}
