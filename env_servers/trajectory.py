"""What an episode is: `Turn`, `Trajectory`, and their invariants.

A turn is one observation of the environment, the agent's action on it, and the reward for that action. An
episode is a tuple of turns and, where the environment says something after the last action, a final
observation. This form cannot express the mistakes that a flat list of messages can (two actions in a row, a
reward without an action), so every other form (rows on the Hub, token sequences, logs) is derived from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """One exchange. Texts carry no trailing newline: a rendering adds the separators."""

    observation: str
    action: str
    reward: float


@dataclass(frozen=True)
class Trajectory:
    """One finished episode, with all that is needed to play it again.

    Attributes:
        task: Task id, a key of `env_servers.tasks.TASKS`.
        task_version: Version of the task's rules and texts that the episode was played under.
        env_kwargs: Keyword arguments of the environment. JSON values only.
        split: `train`, `validation` or `test`.
        index: Number of the episode within its split; with `split` it gives `seed`.
        seed: Argument of `Env.reset`.
        turns: The exchanges, at least one.
        final_observation: What the environment said after the last action, or None.
        terminated: The task itself ended (goal reached, game lost). A value estimate must not bootstrap.
        truncated: The episode was cut (turn limit, the collector stopped). A value estimate must bootstrap.
        end_reason: Why it ended: one of the task's `end_reasons`, or the reason for which the collector cut it.
        success: The task's own predicate, never "return above zero".
        num_invalid: Number of actions that the task could not understand or did not allow.
        behavior_policy: Name of the policy that acted.
        info: Anything else, secrets (the hidden word, the city) included. JSON values only.
    """

    task: str
    task_version: str
    env_kwargs: Mapping[str, Any]
    split: str
    index: int
    seed: int
    turns: tuple[Turn, ...]
    final_observation: str | None
    terminated: bool
    truncated: bool
    end_reason: str
    success: bool
    num_invalid: int
    behavior_policy: str
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError(f"{self.episode_id}: an episode has at least one turn, got none")
        if self.terminated == self.truncated:
            raise ValueError(
                f"{self.episode_id}: a finished episode is either terminated or truncated, got "
                f"terminated={self.terminated}, truncated={self.truncated}"
            )
        for number, turn in enumerate(self.turns):
            if not math.isfinite(turn.reward):
                raise ValueError(f"{self.episode_id}: reward of turn {number} is {turn.reward}, not a finite number")
        if not 0 <= self.num_invalid <= len(self.turns):
            raise ValueError(
                f"{self.episode_id}: num_invalid is {self.num_invalid}, allowed are 0 to {len(self.turns)} (the turns)"
            )

    @property
    def episode_id(self) -> str:
        """`<task>-<behaviour policy>-<split>-<index>`, unique within a dataset."""
        return f"{self.task}-{self.behavior_policy}-{self.split}-{self.index:07d}"

    @property
    def rewards(self) -> tuple[float, ...]:
        """One reward per turn, in order."""
        return tuple(turn.reward for turn in self.turns)

    @property
    def num_turns(self) -> int:
        """Number of the agent's actions."""
        return len(self.turns)

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the rewards."""
        return math.fsum(self.rewards)

    def __repr__(self) -> str:
        end = "terminated" if self.terminated else "truncated"
        return (
            f"Trajectory({self.episode_id}: {len(self.turns)} turns, return {self.episode_return:g}, "
            f"{end} by {self.end_reason}, success {self.success}, {self.num_invalid} invalid)"
        )
