"""The files of the original LMRL-Gym release (arXiv 2311.18232), as episodes. One module per layout, found by task.

A layout turns a record into `Steps`, what the record says in a form common to all layouts, and steps into a `Draft`, an
episode by the task's rules without its place in a dataset. What the rules fix and the record leaves out (the answer to
the last action, the number of invalid actions, how it ended) is filled in; what contradicts them is malformed.

Where the environment can be brought into the recorded start state, an episode replays exactly, and a draft says so.
Where it cannot (another implementation's wording, a word list that is not ours), where it judges otherwise, or where
the record lacks what the opponent did last, the reason is kept. Such a row says so in `info`, and `verify` holds it
against `draft` again in place of playing it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from env_servers.tasks import unknown
from env_servers.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from hub_datasets.importers.records import Entry

POLICY = "lmrl_gym"  # `behavior_policy` of imported episodes, and the name of their configuration
IMPORTED = "imported"  # key of `info`: {file, place}, and no_replay where the episode cannot be played again
RECORD_END = "record_end"  # the reason that an episode ended which the record breaks off

# By layout, which is named as its task: its module here, and what a record of it is.
LAYOUTS: Mapping[str, tuple[str, str]] = {
    "maze": ("maze", "lists of {state, action, reward, done}, or text_history"),
    "maze_po": ("maze", "the same of the partially observed maze"),
    "text_nav": ("text_nav", "{text_history, rewards, dones}"),
    "text_nav_po": ("text_nav", "the same of the partially observed house"),
    "wordle": ("wordle", "{sequence, reward, done}"),
    "chess": ("chess_game", "lists of {state, action, reward, done}, or a move a line"),
    "chess_endgames": ("chess_game", "the same of endgames"),
    "twenty_questions": ("questions", "{lines, correct, word} or {conversation, done, word}"),
    "guess_my_city": ("questions", "the same of cities"),
    "car_dealer": ("car_dealer", "{buyer_info, lines}, with output or with purchase_price"),
}


class MalformedRecord(ValueError):
    """A record that is no episode of its layout, or contradicts the task's rules."""


class LeftOutRecord(ValueError):
    """A sound record that must not become a row."""


@dataclass
class Steps:
    """What a record says.

    Attributes:
        observations: What the environment said before each action.
        actions: As many.
        rewards: As many; or none, where the record gives the outcome in place of rewards.
        final: What the environment said after the last action, None where the record does not tell.
        done: Whether the record says that the last action ended the episode.
        facts: What else the record tells, by name: entries of the row's `info`, and `success` where it is told.
    """

    observations: list[str]
    actions: list[str]
    rewards: list[float]
    final: str | None
    done: bool
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Draft:
    """An episode without its place in a dataset.

    Attributes:
        turns: As in `Trajectory`, as are the others of that name.
        final_observation: As there.
        terminated: As there; an episode that is not is truncated.
        end_reason: As there.
        success: As there.
        num_invalid: As there.
        env_kwargs: Options of the environment.
        info: For the row's `info`.
        no_replay: Why the environment cannot play it again; empty where it can, or where that is tried.
        starts: Values of `Layout.start_of`, one of which the episode's seed must draw; None for any.
    """

    turns: tuple[Turn, ...]
    final_observation: str | None
    terminated: bool
    end_reason: str
    success: bool
    num_invalid: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    no_replay: str = ""
    starts: Collection[str] | None = None


@dataclass(frozen=True)
class Layout:
    """How the files of one task are read.

    Attributes:
        read: The steps of a record.
        draft: The episode of steps, given the options of the environment.
        options: Options of the environment that an import takes.
        reasons: How an episode can end besides the task's `end_reasons`, with the meaning.
        no_replay: Reasons that a draft can have for `no_replay`.
        lists: Whether a record can be a list, of steps.
        join: Makes records of the entries of a file that has several for each; it is given blank lines, too.
        start_of: What a seed draws, from the environment's `info` after `reset`; None if `env_kwargs` say it all, or
            nothing that is drawn tells in a replay.
        drawn: What of that `info` goes into the row's.
        tried: Where the rules do not settle whether the environment plays an episode again, it is tried; this is then
            the reason for those of which it plays another.
    """

    read: Callable[[Any], Steps]
    draft: Callable[[Steps, Mapping[str, Any]], Draft]
    options: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    no_replay: tuple[str, ...] = ()
    lists: bool = False
    join: Callable[[Iterator[Entry]], Iterator[Entry]] | None = None
    start_of: Callable[[Mapping[str, Any]], str] | None = None
    drawn: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    tried: str = ""


CUT = {RECORD_END: "the record ends there, and the task goes on or the record does not tell"}


def load_layout(name: str) -> Layout:
    """The layout of a task's files.

    Raises:
        ValueError: There is none; the message names those that there are.
        ModuleNotFoundError: It needs a package that is not installed.
    """
    if name not in LAYOUTS:
        raise ValueError(unknown("layout", name, LAYOUTS))
    layout: Layout = importlib.import_module(f"hub_datasets.importers.{LAYOUTS[name][0]}").LAYOUTS[name]
    return layout


def is_without_replay(behavior_policy: str, info: Mapping[str, Any] | None) -> bool:
    """Whether an episode with these two columns is imported and says that it cannot be played again."""
    source = (info or {}).get(IMPORTED)
    return behavior_policy == POLICY and isinstance(source, Mapping) and "no_replay" in source


def check_without_replay(trajectory: Trajectory) -> str | None:
    """Hold an imported episode that cannot be played again against its layout's rules; None if it keeps them.

    Raises:
        ModuleNotFoundError: The layout needs a package that is not installed.
    """
    if trajectory.task not in LAYOUTS:
        return f"there is no layout of task {trajectory.task!r}, so it cannot be imported"
    layout, reason = load_layout(trajectory.task), trajectory.info[IMPORTED]["no_replay"]
    if reason not in layout.no_replay:
        known = "; ".join(layout.no_replay) or "none, such episodes always replay"
        return f"it is said not to replay, since {reason!r}; known reasons are: {known}"
    steps = Steps(
        observations=[turn.observation for turn in trajectory.turns],
        actions=[turn.action for turn in trajectory.turns],
        rewards=list(trajectory.rewards),
        final=trajectory.final_observation,
        done=trajectory.terminated,
        facts={**trajectory.info, "success": trajectory.success},
    )
    try:
        draft = layout.draft(steps, trajectory.env_kwargs)
    except (MalformedRecord, LeftOutRecord) as error:
        return str(error)
    for number, (found, expected) in enumerate(zip(trajectory.turns, draft.turns, strict=True)):
        if found != expected:
            return f"turn {number} is {found}, by the rules it is {expected}"
    for name in ("final_observation", "terminated", "end_reason", "success", "num_invalid"):
        found, expected = getattr(trajectory, name), getattr(draft, name)
        if found != expected:
            return f"{name} is {found!r}, by the rules it is {expected!r}"
    return None
