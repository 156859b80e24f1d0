"""The registry of tasks: one literal dict, and the entry-point group `lmrl.tasks` for tasks of other packages."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from env_servers.policy import Policy
from env_servers.task import Env

TASKS: Mapping[str, str] = {
    "maze": "env_servers.tasks.maze:Maze",
    "maze_po": "env_servers.tasks.maze:MazePartiallyObserved",
    "text_nav": "env_servers.tasks.text_nav:TextNav",
    "text_nav_po": "env_servers.tasks.text_nav:TextNavPartiallyObserved",
    "wordle": "env_servers.tasks.wordle:Wordle",
    "chess": "env_servers.tasks.chess_game:Chess",
    "chess_endgames": "env_servers.tasks.chess_endgames:ChessEndgames",
    "twenty_questions": "env_servers.tasks.twenty_questions:TwentyQuestions",
    "guess_my_city": "env_servers.tasks.guess_my_city:GuessMyCity",
    "car_dealer": "env_servers.tasks.car_dealer:CarDealer",
}


def task_ids() -> list[str]:
    """Ids of all tasks, ours first, then those that installed packages add."""
    return [*TASKS, *(name for name in _added_tasks() if name not in TASKS)]


def load_task(task: str) -> type[Env]:
    """The environment class of a task.

    Raises:
        ValueError: No such task; the message names the nearest and all known ones.
        ModuleNotFoundError: The task needs a package that is not installed.
    """
    target = TASKS.get(task) or _added_tasks().get(task)
    if target is None:
        raise ValueError(unknown("task", task, task_ids()))
    module, _, name = target.partition(":")
    cls: type[Env] = getattr(importlib.import_module(module), name)
    return cls


def make_env(task: str, env_kwargs: Mapping[str, Any] | None = None) -> Env:
    """An environment of a task with the given options.

    Raises:
        ValueError: No such task, no such option, or a value that the option does not take.
    """
    cls, kwargs = load_task(task), dict(env_kwargs or {})
    allowed = _options(cls)
    for name in kwargs:
        if name not in allowed:
            raise ValueError(unknown(f"option of task {task!r}", name, allowed))
    return cls(**kwargs)


def make_policy(task: str, name: str) -> Policy:
    """A scripted policy of a task.

    Raises:
        ValueError: No such task or policy.
    """
    policies = load_task(task).policies
    if name not in policies:
        raise ValueError(unknown(f"scripted policy of task {task!r}", name, policies))
    return policies[name]()


def unknown(kind: str, given: str, allowed: Iterable[str]) -> str:
    """The message for a name that is not known: what was given, the nearest, all allowed."""
    names = list(allowed)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {given!r}; {hint}known: {', '.join(names)}"


@functools.cache
def _options(cls: type[Env]) -> tuple[str, ...]:
    return tuple(inspect.signature(cls).parameters)


@functools.cache
def _added_tasks() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group="lmrl.tasks")}
