"""What records are made of: values of JSON as what they must be, and steps in the two forms that several layouts have.

All of it raises `MalformedRecord`, with a message that says what was found and what must be there.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

from env_servers.trajectory import Turn
from hub_datasets.importers import MalformedRecord, Steps

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


def turns_of(steps: Steps, rewards: Sequence[float] | None = None) -> tuple[Turn, ...]:
    """The steps as turns, with these rewards where the record gives none."""
    return tuple(map(Turn, steps.observations, steps.actions, steps.rewards if rewards is None else rewards))
