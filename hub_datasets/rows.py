"""Trajectories as rows, and back: the only file that knows the columns.

One row is one episode. `messages` alternate between `user` (the environment) and `assistant` (the agent),
`user` first, and the last may be the final observation; `rewards` has one number per assistant message. So a
dataset goes into TRL as it is, and the Hub's viewer shows conversations. `env_kwargs` and `info` are JSON, as
they differ between tasks; every other column is typed, and every file carries these `Features`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets import Features, Json, List, Value

from env_servers.partners import Interaction
from env_servers.play import Start
from env_servers.trajectory import Trajectory, Turn

EPISODE_FEATURES = Features(
    {
        "episode_id": Value("string"),
        "task": Value("string"),
        "task_version": Value("string"),
        "env_kwargs": Json(),
        "split": Value("string"),
        "index": Value("int64"),
        "seed": Value("int64"),
        "messages": List({"role": Value("string"), "content": Value("string")}),
        "rewards": List(Value("float64")),
        "terminated": Value("bool"),
        "truncated": Value("bool"),
        "end_reason": Value("string"),
        "success": Value("bool"),
        "num_turns": Value("int32"),
        "num_invalid": Value("int32"),
        "episode_return": Value("float64"),
        "behavior_policy": Value("string"),
        "info": Json(),
    }
)
START_FEATURES = Features(
    {
        "task": Value("string"),
        "task_version": Value("string"),
        "split": Value("string"),
        "index": Value("int64"),
        "seed": Value("int64"),
        "env_kwargs": Json(),
    }
)
INTERACTION_FEATURES = Features(
    {
        "task": Value("string"),
        "secret": Json(),
        "history": Value("string"),
        "seed": Value("int64"),
        "question": Value("string"),
        "prefix": Value("string"),
        "answer": Value("string"),
        "understood": Value("bool"),
        "partner": Value("string"),
        "revision": Value("string"),
        "times": Value("int64"),
    }
)


def to_messages(trajectory: Trajectory) -> list[dict[str, str]]:
    """The episode as chat messages, without system text."""
    messages = []
    for turn in trajectory.turns:
        messages.append({"role": "user", "content": turn.observation})
        messages.append({"role": "assistant", "content": turn.action})
    if trajectory.final_observation is not None:
        messages.append({"role": "user", "content": trajectory.final_observation})
    return messages


def to_row(trajectory: Trajectory) -> dict[str, Any]:
    """The episode as one row with the columns of `EPISODE_FEATURES`."""
    return {
        "episode_id": trajectory.episode_id,
        "task": trajectory.task,
        "task_version": trajectory.task_version,
        "env_kwargs": dict(trajectory.env_kwargs),
        "split": trajectory.split,
        "index": trajectory.index,
        "seed": trajectory.seed,
        "messages": to_messages(trajectory),
        "rewards": list(trajectory.rewards),
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "end_reason": trajectory.end_reason,
        "success": trajectory.success,
        "num_turns": trajectory.num_turns,
        "num_invalid": trajectory.num_invalid,
        "episode_return": trajectory.episode_return,
        "behavior_policy": trajectory.behavior_policy,
        "info": dict(trajectory.info),
    }


def from_row(row: Mapping[str, Any]) -> Trajectory:
    """The episode of a row; the inverse of `to_row`.

    Raises:
        ValueError: A column is missing, the messages do not alternate, there is not one reward per action, or a
            derived column (`episode_id`, `num_turns`, `episode_return`) disagrees with the rest. The message
            names the episode.
    """
    name = row.get("episode_id", "a row")
    missing = [column for column in EPISODE_FEATURES if column not in row]
    if missing:
        raise ValueError(f"{name}: lacks the columns {', '.join(missing)}; a row has {', '.join(EPISODE_FEATURES)}")
    messages, rewards = row["messages"], row["rewards"]
    for number, message in enumerate(messages):
        expected = "assistant" if number % 2 else "user"
        if message["role"] != expected:
            raise ValueError(
                f"{name}: message {number} has role {message['role']!r}, expected {expected!r}: "
                "user (the environment) and assistant (the agent) alternate, user first"
            )
    if len(messages) // 2 != len(rewards):
        raise ValueError(f"{name}: {len(rewards)} rewards for {len(messages) // 2} assistant messages")
    texts = [message["content"] for message in messages]
    turns = tuple(
        Turn(observation, action, reward)
        for observation, action, reward in zip(texts[: 2 * len(rewards) : 2], texts[1::2], rewards, strict=True)
    )
    trajectory = Trajectory(
        task=row["task"],
        task_version=row["task_version"],
        env_kwargs=row["env_kwargs"] or {},
        split=row["split"],
        index=row["index"],
        seed=row["seed"],
        turns=turns,
        final_observation=texts[-1] if len(texts) % 2 else None,
        terminated=row["terminated"],
        truncated=row["truncated"],
        end_reason=row["end_reason"],
        success=row["success"],
        num_invalid=row["num_invalid"],
        behavior_policy=row["behavior_policy"],
        info=row["info"] or {},
    )
    for column in ("episode_id", "num_turns", "episode_return"):
        if row[column] != getattr(trajectory, column):
            raise ValueError(f"{name}: {column} is {row[column]!r}, the rest gives {getattr(trajectory, column)!r}")
    return trajectory


def to_start_row(task: str, task_version: str, start: Start) -> dict[str, Any]:
    """The start of a test episode as one row with the columns of `START_FEATURES`."""
    return {
        "task": task,
        "task_version": task_version,
        "split": start.split,
        "index": start.index,
        "seed": start.seed,
        "env_kwargs": dict(start.env_kwargs),
    }


def from_start_row(row: Mapping[str, Any]) -> Start:
    """The inverse of `to_start_row`."""
    return Start(row["split"], row["index"], row["seed"], row["env_kwargs"] or {})


def to_interaction_row(interaction: Interaction) -> dict[str, Any]:
    """What was asked of a partner as one row with the columns of `INTERACTION_FEATURES`.

    Half a surrogate pair, which a recording can hold and no Parquet file, becomes a question mark.
    """
    texts = {name: getattr(interaction, name).encode(errors="replace").decode() for name in ("question", "answer")}
    return {**interaction._asdict(), **texts, "secret": dict(interaction.secret)}


def from_interaction_row(row: Mapping[str, Any]) -> Interaction:
    """The inverse of `to_interaction_row`.

    Raises:
        ValueError: A column is missing.
    """
    if missing := [column for column in INTERACTION_FEATURES if column not in row]:
        raise ValueError(f"an interaction lacks {', '.join(missing)}; it has {', '.join(INTERACTION_FEATURES)}")
    return Interaction(**{column: row[column] for column in INTERACTION_FEATURES})
