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
import reprlib
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


# What records are made of -----------------------------------------------------------------------------------------
LARGEST = 1e12
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def shown(value: object) -> str:
    """A value for a message, cut to a line."""
    return _SHORT.repr(value)


def fields(value: object, *keys: str, where: str = "the record") -> dict[str, Any]:
    """The object itself, if it has these keys."""
    if not isinstance(value, dict):
        raise MalformedRecord(
            f"{where} is {shown(value)}; it must be an object{' with ' * bool(keys)}{', '.join(keys)}"
        )
    missing = [key for key in keys if key not in value]
    if missing:
        raise MalformedRecord(f"{where} lacks {', '.join(missing)}; it has {shown(list(value))}")
    return value


def items(value: object, where: str) -> list[Any]:
    """The list itself."""
    if not isinstance(value, list):
        raise MalformedRecord(f"{where} is {shown(value)}; it must be a list")
    return value


def text(value: object, where: str) -> str:
    """The text without newlines at its end."""
    if not isinstance(value, str):
        raise MalformedRecord(f"{where} is {shown(value)}; it must be a text")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise MalformedRecord(f"{where} has characters that are none: it is not in UTF-8, or was cut inside one")
    return value.rstrip("\n")


def number(value: object, where: str) -> float:
    """The number itself, as a float."""
    # Integers of JSON have no largest value, and sums of the largest floats are no number.
    if isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST:
        return float(value)
    raise MalformedRecord(f"{where} is {shown(value)}; it must be a number of at most {LARGEST:.0e}")


def flag(value: object, where: str) -> bool:
    """A truth value, also as 0 or 1."""
    if isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1)):
        return bool(value)
    raise MalformedRecord(f"{where} is {shown(value)}; it must be true or false")


def steps_of_list(record: list[Any], state: str = "state") -> Steps:
    """The steps of a list of objects with the observation, `action`, `reward` and `done`."""
    steps = Steps([], [], [], None, False)
    for place, step in enumerate(record):
        where = f"step {place}"
        fields(step, state, "action", "reward", "done", where=where)
        if steps.done:
            raise MalformedRecord(f"{where} follows one that is done")
        steps.observations.append(text(step[state], f"{state} of {where}"))
        steps.actions.append(text(step["action"], f"action of {where}"))
        steps.rewards.append(number(step["reward"], f"reward of {where}"))
        steps.done = flag(step["done"], f"done of {where}")
    return _not_empty(steps)


def steps_of_history(record: object) -> Steps:
    """The steps of an object with `text_history` (observations and actions in turn), `rewards` and `dones`.

    These have one value per action, or one per text, of which those of observations must be 0 and false.
    """
    keys = ("text_history", "rewards", "dones")
    found = fields(record, *keys)
    lists = {key: items(found[key], key) for key in keys}
    texts = [text(value, f"text {place}") for place, value in enumerate(lists["text_history"])]
    values = [number(value, f"reward {place}") for place, value in enumerate(lists["rewards"])]
    flags = [flag(value, f"done {place}") for place, value in enumerate(lists["dones"])]
    actions = texts[1::2]
    for name, given in (("rewards", values), ("dones", flags)):
        if len(given) not in (len(actions), len(texts)):
            raise MalformedRecord(
                f"there are {len(given)} {name} for {len(actions)} actions in {len(texts)} texts; there must be one "
                "for each action, or for each text"
            )
        if len(given) == len(texts) > len(actions):
            wrong = [place for place, value in enumerate(given) if place % 2 == 0 and value]
            if wrong:
                raise MalformedRecord(f"{name} has {given[wrong[0]]!r} for text {wrong[0]}, which is an observation")
            del given[::2]
    if any(flags[:-1]):
        raise MalformedRecord(f"action {flags.index(True)} is done, and {len(actions) - 1 - flags.index(True)} follow")
    final = texts[-1] if len(texts) % 2 else None
    return _not_empty(Steps(texts[: 2 * len(actions) : 2], actions, values, final, bool(flags and flags[-1])))


def _not_empty(steps: Steps) -> Steps:
    if not steps.actions:
        raise MalformedRecord("there is no action")
    return steps


def turns_of(steps: Steps) -> tuple[Turn, ...]:
    """The steps as turns."""
    return tuple(map(Turn, steps.observations, steps.actions, steps.rewards))
