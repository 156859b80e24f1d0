"""Text-Nav of the original release: `text_history`, `rewards` and `dones`, the actions without newline.

The release's texts are TextWorld's, ours are another implementation's, so that an episode cannot be played again. What
can be checked is that a win pays 1, at the end, and nothing else pays.

An episode ends at the win, or when the stale food is eaten, or where the collector stopped; the collector marks each of
them as done, so that the text and the reward tell them apart.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from env_servers.tasks.text_nav import LIST
from hub_datasets.importers import CUT, RECORD_END, Draft, Layout, MalformedRecord, Steps
from hub_datasets.importers.values import steps_of_history, turns_of

OTHER_WORDING = "its texts are TextWorld's, which the environment here words differently"
LOST = "You lost"
CARRIED = "You are carrying"
# Commands that TextWorld allows and the collector left out of its list.
UNLISTED = ("examine", "look", "inventory")


def _read(record: Any) -> Steps:
    steps = steps_of_history(record)
    steps.observations = [observation.strip() for observation in steps.observations]
    steps.actions = [action.strip() for action in steps.actions]
    steps.final = None if steps.final is None else steps.final.strip()
    return steps


def _draft(task: str, steps: Steps, options: Mapping[str, Any]) -> Draft:
    *before, last = steps.rewards
    if any(before) or last not in (0.0, 1.0):
        raise MalformedRecord(f"the rewards are {steps.rewards}; all are 0, but the last may be 1")
    answers = [*steps.observations[1:], *([] if steps.final is None else [steps.final])]
    carrying = [number for number, answer in enumerate(answers, 1) if CARRIED in answer]
    if task == "text_nav_po" and carrying:
        raise MalformedRecord(f"text {2 * carrying[0]} says what is carried, so it is of text_nav")
    if task == "text_nav" and answers[:-1] and not carrying:
        raise MalformedRecord("no text says what is carried, so it is of text_nav_po")
    won, lost = last == 1.0, steps.final is not None and LOST in steps.final
    return Draft(
        turns=turns_of(steps),
        final_observation=steps.final,
        terminated=won or lost,
        end_reason="goal" if won else "stale_food_eaten" if lost else RECORD_END,
        success=won,
        num_invalid=sum(map(_is_refused, steps.observations, steps.actions)),
        env_kwargs=options,
        no_replay=OTHER_WORDING,
    )


def _is_refused(observation: str, command: str) -> bool:
    """Whether a command is none of those that the text lists; where it lists none, nothing is known against it."""
    _, found, listed = observation.rpartition(LIST)
    return bool(found) and command not in listed.split(", ") and not command.startswith(UNLISTED)


def _layout(task: str) -> Layout:
    return Layout(
        read=_read,
        draft=functools.partial(_draft, task),
        reasons=CUT,
        no_replay=(OTHER_WORDING,),
    )


LAYOUTS = {task: _layout(task) for task in ("text_nav", "text_nav_po")}
