"""The contract of every task in TASKS, written once."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from env_servers.play import Start, episode_starts, play, replay
from env_servers.policy import ScriptedPolicy
from env_servers.scores import normalize
from env_servers.task import Env
from env_servers.tasks import load_task, make_env, make_policy, task_ids

TASKS = task_ids()


def repeatable_env(task: str, options: Mapping[str, Any] | None = None) -> Env:
    return make_env(task, {**load_task(task).spec.repeatable, **(options or {})})


def train_starts(task: str, indices: Iterable[int]) -> Iterator[Start]:
    return episode_starts(task, "train", indices, load_task(task).spec.repeatable)


def transcript(task: str, seed: int, actions: list[str]) -> list[str]:
    env = repeatable_env(task)
    texts = [env.reset(seed)]
    for action in actions:
        step = env.step(action)
        texts.append(f"{step}")
        if step.done:
            break
    env.close()
    return texts


def scripted_actions(task: str, policy: str, seed_index: int) -> list[str]:
    (played,) = play(task, make_policy(task, policy), train_starts(task, [seed_index]))
    return [turn.action for turn in played.trajectory.turns]


def junk(rng: random.Random) -> str:
    kinds = [
        "", "\n", " ", "\x00", "💥" * 3, "move", "MOVE LEFT", "move left\nmove left", "x" * 5000,
        "".join(rng.choices(string.printable, k=rng.randrange(40))), "</s><|endoftext|>", "'; drop table",
    ]  # fmt: skip
    return rng.choice(kinds)


@pytest.mark.parametrize("task", TASKS)
def test_same_seed_same_episode_also_with_neighbours(task: str) -> None:
    policy = next(iter(load_task(task).policies))
    actions = scripted_actions(task, policy, 0)
    alone = transcript(task, 5, actions)
    neighbours = [repeatable_env(task) for _ in range(3)]
    for number, neighbour in enumerate(neighbours):
        neighbour.reset(number)
    env = repeatable_env(task)
    beside = [env.reset(5)]
    for action in actions[: len(alone) - 1]:
        for neighbour in neighbours:
            if neighbour._playing:
                neighbour.step(action)
        beside.append(f"{env.step(action)}")
    assert beside == alone


@pytest.mark.parametrize("task", TASKS)
def test_a_reset_forgets_the_last_episode(task: str) -> None:
    actions = scripted_actions(task, next(iter(load_task(task).policies)), 1)
    env = repeatable_env(task)
    env.reset(1)
    for action in actions:
        if env.step(action).done:
            break
    assert env.reset(9) == repeatable_env(task).reset(9)


@pytest.mark.parametrize("task", TASKS)
def test_seeds_give_different_episodes(task: str) -> None:
    policy = make_policy(task, next(iter(load_task(task).policies)))
    episodes = [played.trajectory for played in play(task, policy, train_starts(task, range(40)))]
    assert len({(episode.turns, json.dumps(episode.info)) for episode in episodes}) > 5


@pytest.mark.parametrize("task", TASKS)
def test_junk_never_crashes_and_returns_stay_in_the_spec_range(task: str) -> None:
    spec = load_task(task).spec
    policies = [make_policy(task, name) for name in load_task(task).policies]
    policies.append(ScriptedPolicy("junk", lambda context: junk(context.rng)))
    for policy in policies:
        for played in play(task, policy, train_starts(task, range(30))):
            trajectory = played.trajectory
            assert spec.min_return <= trajectory.episode_return <= spec.max_return
            assert trajectory.num_turns <= spec.max_turns
            assert trajectory.end_reason in spec.end_reasons
            assert replay(trajectory) is None


@pytest.mark.parametrize("task", TASKS)
def test_wrong_calls_are_refused(task: str) -> None:
    env = repeatable_env(task)
    with pytest.raises(RuntimeError, match=r"no episode yet; call reset\(seed\)"):
        env.step("anything")
    with pytest.raises(TypeError, match="must be an integer"):
        env.reset("5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be negative"):
        env.reset(-1)
    env.reset(0)
    with pytest.raises(TypeError, match="must be a string"):
        env.step(3)  # type: ignore[arg-type]
    for _ in range(env.spec.max_turns):
        if env.step("no such action").done:
            break
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("anything")


@pytest.mark.parametrize("task", TASKS)
def test_global_randomness_is_left_alone(task: str) -> None:
    random.seed(7)
    before = random.getstate()
    for name in load_task(task).policies:
        for _ in play(task, make_policy(task, name), train_starts(task, range(3))):
            pass
    assert random.getstate() == before


@pytest.mark.parametrize("task", TASKS)
def test_texts_have_no_trailing_newline_and_info_is_json(task: str) -> None:
    policy = make_policy(task, next(iter(load_task(task).policies)))
    for played in play(task, policy, train_starts(task, range(5))):
        texts = [text for turn in played.trajectory.turns for text in turn[:2]]
        texts.append(played.trajectory.final_observation or "x")
        assert not any(text.endswith("\n") for text in texts)
        assert json.loads(json.dumps(played.trajectory.info)) == played.trajectory.info


@pytest.mark.parametrize("task", TASKS)
def test_the_spec_is_consistent(task: str) -> None:
    spec = load_task(task).spec
    assert spec.id == task
    assert {"paper", "lmrl"} <= set(spec.normalisations)
    for scale in spec.normalisations.values():
        assert scale.low < scale.middle < scale.high
        assert [normalize(value, scale) for value in (scale.low, scale.middle, scale.high)] == [0, 50, 100]
    assert spec.test_episodes % len(spec.test_starts) == 0
    for options in spec.test_starts:
        make_env(task, options).close()


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown task 'maez'; did you mean 'maze'\? known: maze, maze_po"):
        load_task("maez")
    with pytest.raises(
        ValueError, match=r"unknown option of task 'maze' 'strat'; did you mean 'start'\? known: maze, "
    ):
        make_env("maze", {"strat": [1, 1]})
    with pytest.raises(ValueError, match="unknown scripted policy of task 'maze' 'optimum'; did you mean 'optimal'"):
        make_policy("maze", "optimum")


def test_closing_twice_is_allowed() -> None:
    env: Env = make_env("maze")
    env.close()
    env.close()
