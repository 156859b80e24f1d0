"""Rows: an episode survives the way into a row, a Parquet file and back; broken rows are refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, concatenate_datasets, load_dataset

from env_servers.play import episode_starts, play
from env_servers.tasks import make_policy
from env_servers.trajectory import Trajectory
from hub_datasets.rows import EPISODE_FEATURES, START_FEATURES, from_row, from_start_row, to_row, to_start_row


def some_trajectories(task: str = "maze", episodes: int = 20) -> list[Trajectory]:
    return [
        p.trajectory for p in play(task, make_policy(task, "behavior"), episode_starts(task, "test", range(episodes)))
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_parquet_round_trip(tmp_path: Path, streaming: bool) -> None:
    trajectories = some_trajectories() + some_trajectories("maze_po")
    Dataset.from_list([to_row(t) for t in trajectories], features=EPISODE_FEATURES).to_parquet(tmp_path / "a.parquet")
    rows = load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train", streaming=streaming)
    assert rows.features == EPISODE_FEATURES
    assert [from_row(row) for row in rows] == trajectories


def test_messages_alternate_and_end_with_the_final_observation() -> None:
    trajectory = next(t for t in some_trajectories() if t.success)
    row = to_row(trajectory)
    assert [m["role"] for m in row["messages"]] == ["user", "assistant"] * trajectory.num_turns + ["user"]
    assert row["messages"][-1]["content"] == "Success"
    assert len(row["rewards"]) == trajectory.num_turns
    assert row["episode_return"] == sum(row["rewards"]) == 1 - trajectory.num_turns
    assert set(row) == set(EPISODE_FEATURES)


def test_shards_of_different_content_concatenate() -> None:
    """Without explicit features a first shard whose JSON is all empty would fix a type that the next one breaks."""
    empty = to_row(some_trajectories(episodes=1)[0]) | {"env_kwargs": {}, "info": {}}
    full = to_row(some_trajectories(episodes=2)[1]) | {"info": {"deep": {"list": [1, "a", None]}}}
    both = concatenate_datasets([Dataset.from_list([row], features=EPISODE_FEATURES) for row in (empty, full)])
    assert [row["info"] for row in both] == [{}, {"deep": {"list": [1, "a", None]}}]


def broken(change: str) -> dict[str, Any]:
    row = copy.deepcopy(to_row(some_trajectories(episodes=1)[0]))
    if change == "roles":
        row["messages"][1]["role"] = "user"
    elif change == "order":
        row["messages"] = row["messages"][1:]
    elif change == "rewards":
        row["rewards"] = row["rewards"][:-1]
    elif change == "column":
        del row["success"]
    elif change == "return":
        row["episode_return"] += 1
    elif change == "turns":
        row["num_turns"] += 1
    elif change == "id":
        row["episode_id"] = "other"
    return row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("roles", "message 1 has role 'user', expected 'assistant'"),
        ("order", "message 0 has role 'assistant', expected 'user'"),
        ("rewards", "rewards for .* assistant messages"),
        ("column", "lacks the columns success"),
        ("return", "episode_return is .*, the rest gives"),
        ("turns", "num_turns is"),
        ("id", "other: episode_id is 'other', the rest gives 'maze-behavior-test-0000000'"),
    ],
)
def test_broken_rows_are_refused_by_name(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_row(broken(change))


def test_starts_round_trip() -> None:
    starts = list(episode_starts("maze", "test", range(30)))
    rows = Dataset.from_list([to_start_row("maze", "1.0", start) for start in starts], features=START_FEATURES)
    assert [from_start_row(row) for row in rows] == starts
