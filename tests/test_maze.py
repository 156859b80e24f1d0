"""Maze against recorded episodes of the reference, exact values, and its golden transcript."""

from __future__ import annotations

import math
import random

import pytest

from env_servers.play import episode_starts, play
from env_servers.policy import ScriptedPolicy
from env_servers.scores import summarize
from env_servers.tasks import make_env, make_policy
from env_servers.tasks.maze import MOVES, best_memory_values, grid

# Recorded from the reference environment: distances to the goal from each start.
DISTANCES = {
    (1, 1): 12, (1, 2): 11, (1, 3): 10, (1, 4): 11, (1, 5): 12, (1, 7): 12, (1, 8): 11, (1, 9): 10, (1, 10): 11,
    (1, 11): 12, (2, 3): 9, (2, 9): 9, (3, 3): 8, (3, 9): 8, (4, 3): 7, (4, 9): 7, (5, 3): 6, (5, 4): 5, (5, 5): 4,
    (5, 6): 3, (5, 7): 4, (5, 8): 5, (5, 9): 6, (6, 6): 2, (7, 6): 1,
}  # fmt: skip
GOAL = "The goal is at position 8, 6. Your current position is at position"


def test_distances_and_starts() -> None:
    double_t = grid("double_t")
    assert double_t.goal == (8, 6)
    assert {cell: double_t.distance[cell] for cell in double_t.starts} == DISTANCES
    umaze = grid("umaze")
    assert umaze.goal == (3, 3)
    assert umaze.distance[3, 1] == 6


@pytest.mark.parametrize(
    ("seed", "start"), [(0, (7, 6)), (1, (5, 5)), (2, (1, 3)), (3, (5, 5)), (4, (1, 11)), (5, (6, 6))]
)
def test_the_same_seed_starts_where_the_reference_does(seed: int, start: tuple[int, int]) -> None:
    env = make_env("maze")
    env.reset(seed)
    assert tuple(env.info["start"]) == start


def test_golden_transcript_with_walls_and_illegal_actions() -> None:
    """Reference episode `fo_walls_and_invalid_actions`: bumping pays -1, anything but the four strings pays -4."""
    env = make_env("maze", {"start": [5, 6]})
    assert env.reset(0) == f"{GOAL} 5, 6. There is a wall above you."
    expected = [
        ("move up", f"{GOAL} 5, 6. There is a wall above you.", -1.0, True),
        ("jump", f"{GOAL} 5, 6. There is a wall above you.", -4.0, False),
        ("move left", f"{GOAL} 5, 5. There are walls above you, below you.", -1.0, True),
        ("Move down", f"{GOAL} 5, 5. There are walls above you, below you.", -4.0, False),
        ("move right\n", f"{GOAL} 5, 6. There is a wall above you.", -1.0, True),
        ("move left ", f"{GOAL} 5, 6. There is a wall above you.", -4.0, False),
        ("move down", f"{GOAL} 6, 6. There are walls to your right, to your left.", -1.0, True),
        ("move down", f"{GOAL} 7, 6. There are walls to your right, to your left.", -1.0, True),
    ]
    for action, observation, reward, legal in expected:
        step = env.step(action)
        assert (step.observation, step.reward, step.legal, step.done) == (observation, reward, legal, False)
    last = env.step("move down")
    assert (last.observation, last.reward, last.terminated, last.truncated) == ("Success", 0.0, True, False)
    assert (last.end_reason, last.success) == ("goal", True)


def test_digits_are_spaced_and_walls_come_right_left_above_below() -> None:
    env = make_env("maze", {"start": [1, 11]})
    assert env.reset(0) == f"{GOAL} 1, 1 1. There are walls to your right, above you, below you."
    assert env.step("move left").observation == f"{GOAL} 1, 1 0. There are walls above you, below you."
    assert grid("umaze").describe_walls((1, 2)) == "There are walls above you, below you."


def test_partially_observed_tells_only_the_walls() -> None:
    """Reference episode `po_optimal_from_1_11`."""
    env = make_env("maze_po", {"start": [1, 11]})
    texts = [env.reset(0)]
    for move in ["left", "left", "down"]:
        texts.append(env.step(f"move {move}").observation)
    assert texts == [
        "There are walls to your right, above you, below you.",
        "There are walls above you, below you.",
        "There is a wall above you.",
        "There are walls to your right, to your left.",
    ]


@pytest.mark.parametrize(("action", "total"), [("move up", -101.0), ("fly", -401.0)])
def test_the_limit_ends_the_episode_at_the_101st_action(action: str, total: float) -> None:
    env = make_env("maze", {"start": [1, 7]})
    env.reset(0)
    steps = [env.step(action) for _ in range(100)]
    assert not any(step.done for step in steps)
    last = env.step(action)
    assert (last.observation, last.reward, last.terminated, last.truncated) == ("Failure", -1.0, False, True)
    assert last.legal == (action == "move up"), "what pays like a move at the limit still counts as no action"
    assert (last.end_reason, last.success) == ("turn_limit", False)
    assert sum(step.reward for step in steps) + last.reward == total


@pytest.mark.parametrize(
    ("mode", "rewards"), [("illegal_penalty", (0, -1, 1)), ("illegal_penalty_scaled", (-1, -100, 1))]
)
def test_reward_modes(mode: str, rewards: tuple[float, float, float]) -> None:
    env = make_env("maze", {"start": [7, 6], "reward": mode})
    env.reset(0)
    assert tuple(env.step(action).reward for action in ("move left", "jump", "move down")) == rewards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maze": "big"}, "maze is 'big'; allowed: double_t, umaze"),
        ({"reward": "none"}, "reward is 'none'; allowed: standard, illegal_penalty"),
        ({"start": [0, 0]}, r"start is \[0, 0\]; allowed cells \[row, column\]: \[1, 1\], "),
        ({"start": [8, 6]}, r"start is \[8, 6\]; allowed cells"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env("maze", options)


def score(task: str, policy: str, episodes: int) -> float:
    played = play(task, make_policy(task, policy), episode_starts(task, "test", range(episodes)))
    return summarize(p.trajectory for p in played).mean_return


def test_optimal_policy_scores_exactly() -> None:
    assert score("maze", "optimal", 25) == -6.84
    assert sum(-(d - 1) for d in DISTANCES.values()) / 25 == -6.84


def test_best_memory_policy_scores_exactly() -> None:
    assert score("maze_po", "best_memory", 25) == -7.24


def test_best_memory_value_agrees_with_playing_and_bounds_every_other_policy() -> None:
    """The value of the first beliefs, weighted by their cells, is what playing gives."""
    firsts: dict[str, set[tuple[int, int]]] = {}
    for cell in grid("double_t").starts:
        firsts.setdefault(grid("double_t").describe_walls(cell), set()).add(cell)
    values = best_memory_values()
    assert math.isclose(sum(len(c) * values[frozenset(c)] for c in firsts.values()) / 25, -7.24, abs_tol=1e-12)
    assert score("maze_po", "behavior", 25) < -7.24


def random_return_by_dynamic_programming() -> float:
    """Expected return of uniform moves: 100 moves, then the 101st call at -1, averaged over the starts."""
    double_t = grid("double_t")
    value = dict.fromkeys(double_t.starts, -1.0)  # the call that ends the episode
    for _ in range(100):
        value = {
            cell: sum(
                0.0 if double_t.move(cell, m) == double_t.goal else value[double_t.move(cell, m)] - 1 for m in MOVES
            )
            / 4
            for cell in double_t.starts
        }
    return sum(value.values()) / 25


def test_uniform_random_agrees_with_dynamic_programming() -> None:
    exact = random_return_by_dynamic_programming()
    assert round(exact, 2) == -85.89
    played = play("maze", make_policy("maze", "random"), episode_starts("maze", "test", range(2000)))
    summary = summarize(p.trajectory for p in played)
    assert abs(summary.mean_return - exact) < 3 * summary.std_return / math.sqrt(2000)


def test_behavior_moves_as_documented() -> None:
    """In the stem never into an arm; in an arm all four moves, the solver's more often by 0.15."""
    policy = make_policy("maze", "behavior")
    rng = random.Random(0)
    from env_servers.policy import Context
    from env_servers.tasks.maze import Maze

    for position in ([5, 6], [1, 1]):
        counts = dict.fromkeys(MOVES, 0)
        for _ in range(8000):
            context = Context(Maze.spec, [], "", rng, {"position": position})
            counts[policy.act([context])[0].text] += 1
        shares = {move: count / 8000 for move, count in counts.items()}
        if position == [5, 6]:
            expected = {"move left": 0, "move right": 0, "move up": 0.425, "move down": 0.575}
        else:
            expected = {"move left": 0.2125, "move right": 0.3625, "move up": 0.2125, "move down": 0.2125}
        assert shares == pytest.approx(expected, abs=0.02)


def test_a_person_sees_the_maze() -> None:
    env = make_env("maze", {"start": [7, 6]})
    env.reset(0)
    picture = env.draw().splitlines()
    assert picture[0] == "██" * 13
    assert picture[7] == "██" * 6 + "@ " + "██" * 6
    assert picture[8] == "██" * 6 + "G " + "██" * 6
    assert "@" not in make_env("maze").draw().replace("@ ", "", 1)


def test_illegal_actions_keep_the_history_of_the_partially_observed_maze() -> None:
    """The reference drops the history there; here the next context still has it."""
    seen: list[int] = []

    def choose(context: object) -> str:
        seen.append(len(context.history))  # type: ignore[attr-defined]
        return "hop" if len(seen) == 2 else "move right"

    list(play("maze_po", ScriptedPolicy("probe", choose), episode_starts("maze_po", "test", [0])))
    assert seen[:4] == [0, 1, 2, 3]
