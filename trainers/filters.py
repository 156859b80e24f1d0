"""Filtered behaviour cloning's filter: which episodes are worth imitating (LMRL-Gym, arXiv 2311.18232, section 5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from env_servers.seeding import hash_seed


class Filterable(Protocol):
    """What the rules look at; a `Trajectory` has it."""

    @property
    def episode_id(self) -> str: ...

    @property
    def episode_return(self) -> float: ...

    @property
    def success(self) -> bool: ...

    @property
    def info(self) -> Mapping[str, Any]: ...


E = TypeVar("E", bound=Filterable)


def check_rule(rule: str) -> None:
    """Raise a ValueError unless `filter_trajectories` knows the rule."""
    _share(rule)


def filter_trajectories(trajectories: Iterable[E], rule: str) -> list[E]:
    """The episodes that filtered BC learns from, in the order given.

    Args:
        trajectories: Episodes; their order does not change which are kept.
        rule: `success`: those that the task calls a success. `top:<percent>`: the best by undiscounted return, among
            episodes with the same start state where the task has such (`info["start"]`, as LMRL-Gym compares in
            Maze), else among all. `top-all:<percent>`: the best among all. At least one of each group is kept; the
            number is rounded down.

    Raises:
        ValueError: The rule is unknown, or it leaves nothing.
    """
    episodes, share = list(trajectories), _share(rule)
    if share is None:
        kept = [episode for episode in episodes if episode.success]
        if not kept:
            raise ValueError(f"none of the {len(episodes)} episodes is a success; use another filter, such as top:10")
        return kept
    groups: dict[str, list[int]] = {}
    for number, episode in enumerate(episodes):
        start = str(episode.info.get("start")) if rule.startswith("top:") else ""
        groups.setdefault(start, []).append(number)
    chosen: set[int] = set()
    for numbers in groups.values():
        # Equal returns are common; a hash of the name decides, so neither order nor position in the data does.
        numbers.sort(key=lambda n: (-episodes[n].episode_return, hash_seed("filter", episodes[n].episode_id)))
        chosen.update(numbers[: max(1, math.floor(len(numbers) * share))])
    return [episode for number, episode in enumerate(episodes) if number in chosen]


def _share(rule: str) -> float | None:
    """The share that a `top` rule keeps; None for `success`."""
    if rule == "success":
        return None
    name, _, percent = rule.partition(":")
    try:
        share = float(percent) / 100 if name in ("top", "top-all") else math.nan
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(
            f"unknown filter {rule!r}; allowed are success, top:<percent> (among equal starts) and top-all:<percent>, "
            "with a percentage above 0 up to 100, such as top:10"
        )
    return share
