"""The whole default Maze datasets: their tokens, and what is learned from them, by exact values.

A Maze policy without memory is a table of move probabilities, so its expected return follows by dynamic
programming: no sampling noise stands between a policy and what it is compared with.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tiny_models import plain_tokenizer

from env_servers.play import episode_starts, play
from env_servers.tasks import load_task, make_policy
from env_servers.tasks.maze import MOVES, SOLVER_SHARE, Maze, grid, sub_maze
from env_servers.trajectory import Trajectory
from hub_datasets.build import build
from hub_datasets.generators import load_generator
from hub_datasets.load import load_trajectories
from hub_datasets.plan import make_plan
from trainers.bc import train_bc
from trainers.load import load_policy
from trainers.policy import LanguageModelPolicy
from trainers.tokens import Memory, Renderer, encode

Cell = tuple[int, int]
Table = Mapping[Cell, Mapping[str, float]]
GRID = grid("double_t")
TOKENIZER = plain_tokenizer()
torch.set_num_threads(1)


def default_episodes(task: str) -> list[Trajectory]:
    """All 1,240 episodes of the default dataset."""
    generator, found = load_generator(task), []
    for split, count in generator.episodes.items():
        starts = episode_starts(task, split, range(count))
        found += [p.trajectory for p in play(task, make_policy(task, "behavior"), starts, stop=generator.stop)]
    assert len(found) == 1240
    return found


@pytest.mark.parametrize("task", ["maze", "maze_po"])
@pytest.mark.parametrize(("memory", "max_length"), [(None, 4096), (0, 128), (20, 1024), (None, 200)])
def test_every_row_is_encoded_as_it_is_acted(task: str, memory: Memory, max_length: int) -> None:
    """Each action token exactly once, rewards sum to the return, and before each action stands its prompt."""
    renderer = Renderer(TOKENIZER, load_task(task).spec, memory=memory, max_length=max_length)
    split = 0
    for trajectory in default_episodes(task):
        sequences = encode(trajectory, renderer)
        split += len(sequences) > 1
        assert [turn for sequence in sequences for turn in sequence.turns] == list(range(trajectory.num_turns))
        assert sum(sum(s.rewards) for s in sequences) == trajectory.episode_return
        for sequence in sequences:
            assert len(sequence.input_ids) == len(sequence.action_mask) == len(sequence.rewards) <= max_length
            place = 0
            for number in sequence.turns:
                turn = trajectory.turns[number]
                place = sequence.action_mask.index(1, place)
                prompt = renderer.prompt_ids(trajectory.turns[:number], turn.observation)
                action = renderer.action_ids(turn.action)
                assert sequence.input_ids[:place] == prompt
                end = place + len(action)
                assert sequence.input_ids[place:end] == action
                assert sequence.action_mask[place:end] == [1] * len(action)
                assert sequence.rewards[place:end] == [0.0] * (len(action) - 1) + [turn.reward]
                place = end
            assert 1 not in sequence.action_mask[place:]
    assert (split > 0) == (memory == 0 or max_length == 200 or memory == 20)


def expected_return(table: Table) -> float:
    """Mean over the 25 starts of a table's expected return; what is missing to probability 1 is no legal move."""
    value = dict.fromkeys(GRID.starts, -1.0)  # the action that ends the episode at the limit
    for _ in range(100):
        value = {cell: _backed_up(cell, table[cell], value) for cell in GRID.starts}
    return sum(value.values()) / len(value)


def _backed_up(cell: Cell, moves: Mapping[str, float], value: Mapping[Cell, float]) -> float:
    total = (1 - sum(moves.values())) * (value[cell] - 4)
    for move, probability in moves.items():
        target = GRID.move(cell, move)
        total += probability * (0.0 if target == GRID.goal else value[target] - 1)
    return total


def behavior_table() -> Table:
    """The collecting policy as its card describes it."""
    table = {}
    for cell in GRID.starts:
        allowed = [m for m in MOVES if sub_maze(cell) != "stem" or sub_maze(GRID.move(cell, m)) == "stem"]
        table[cell] = {move: (1 - SOLVER_SHARE) / len(allowed) for move in allowed}
        table[cell][GRID.shortest_move(cell)] += SOLVER_SHARE
    return table


def data_table(trajectories: list[Trajectory]) -> Table:
    """How often each move was made in each cell: what BC learns if it learns perfectly."""
    counts: dict[Cell, Counter[str]] = defaultdict(Counter)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            row, column = re.findall(r"current position is at position ([\d ]+), ([\d ]+)\.", turn.observation)[0]
            counts[int(row.replace(" ", "")), int(column.replace(" ", ""))][turn.action] += 1
    return {cell: {move: n / found.total() for move, n in found.items()} for cell, found in counts.items()}


def model_table(policy: LanguageModelPolicy) -> Table:
    """The probability that a model says each move, terminator included, in each cell."""
    table: dict[Cell, dict[str, float]] = {}
    for cell in GRID.starts:
        prompt = policy.renderer.prompt_ids([], Maze(start=list(cell)).reset(0))
        table[cell] = {}
        for move in MOVES:
            action = policy.renderer.action_ids(move)
            with torch.no_grad():
                logprobs = policy.model(torch.tensor([prompt + action])).logits[0].log_softmax(-1)
            places = range(len(prompt) - 1, len(prompt) + len(action) - 1)
            table[cell][move] = (
                sum(logprobs[place, token] for place, token in zip(places, action, strict=True)).exp().item()
            )
    return table


def test_bc_is_the_behavior_policy_and_filtered_bc_is_better(tmp_path: Path) -> None:
    """On the default dataset: BC within 1.5 of what the data says and near the collector, filtered BC far above."""
    build(make_plan("maze"), tmp_path / "data", workers=1)
    train = list(load_trajectories(str(tmp_path / "data")))
    values = {}
    for name, rule in (("bc", None), ("filtered", "top:20")):
        train_bc("maze", str(tmp_path / "data"), tmp_path / name, rule=rule)
        values[name] = expected_return(model_table(load_policy(str(tmp_path / name), task="maze", device="cpu")))
    collector, said = expected_return(behavior_table()), expected_return(data_table(train))
    exact = {"collector": collector, "data": said, **values}
    print("\nexact returns:", {name: round(value, 2) for name, value in exact.items()})
    assert collector == pytest.approx(-40.2, abs=0.05)
    assert values["bc"] == pytest.approx(said, abs=1.5)
    assert values["bc"] == pytest.approx(collector, abs=2.5)
    assert values["filtered"] > collector + 20
