"""Every task through the rooms: rows and back, tokens as acted, a dataset that verifies, a policy that trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_models import chat_tokenizer, plain_tokenizer

from env_servers.play import episode_starts, play
from env_servers.policy import Context, ScriptedPolicy
from env_servers.scores import Summary, summarize
from env_servers.tasks import load_task, make_policy, task_ids
from env_servers.trajectory import Trajectory
from eval_harness.run import run
from hub_datasets import build as build_module
from hub_datasets.build import build
from hub_datasets.plan import make_plan
from hub_datasets.rows import from_row, to_row
from hub_datasets.verify import verify
from trainers.bc import train_bc
from trainers.tokens import Renderer, encode

TASKS = task_ids()


def episodes(task: str, number: int = 6) -> list[Trajectory]:
    """Of all scripted policies and of one that also gives what is no action."""

    def mumble(context: Context) -> str:
        good = make_policy(task, "random").act([context])[0].text
        return context.rng.choice([good, "er, let me think", ""])

    spec, found = load_task(task).spec, list[Trajectory]()
    policies = [make_policy(task, name) for name in load_task(task).policies] + [ScriptedPolicy("mumble", mumble)]
    for policy in policies:
        starts = episode_starts(task, "train", range(number), spec.repeatable)
        found += [played.trajectory for played in play(task, policy, starts)]
    return found


@pytest.mark.parametrize("task", TASKS)
def test_rows_give_equal_trajectories_back(task: str) -> None:
    for trajectory in episodes(task):
        assert from_row(to_row(trajectory)) == trajectory


@pytest.mark.parametrize("rendering", ["plain", "chat"])
@pytest.mark.parametrize("task", TASKS)
def test_each_action_is_encoded_once_after_its_own_prompt(task: str, rendering: str) -> None:
    tokenizer = chat_tokenizer() if rendering == "chat" else plain_tokenizer()
    renderer = Renderer(tokenizer, load_task(task).spec, rendering=rendering, max_length=6000)
    for trajectory in episodes(task, 2):
        sequences = encode(trajectory, renderer)
        assert [turn for sequence in sequences for turn in sequence.turns] == list(range(trajectory.num_turns))
        assert sum(sum(s.rewards) for s in sequences) == pytest.approx(trajectory.episode_return)
        for sequence in sequences:
            place = 0
            for number in sequence.turns:
                turn = trajectory.turns[number]
                prompt = renderer.prompt_ids(trajectory.turns[:number], turn.observation)
                action = renderer.action_ids(turn.action)
                place = sequence.action_mask.index(1, place)
                end = place + len(action)
                assert sequence.input_ids[:place] == prompt
                assert sequence.input_ids[place:end] == action
                assert sequence.action_mask[place:end] == [1] * len(action)
                place = end
            assert 1 not in sequence.action_mask[place:]


@pytest.fixture(scope="module")
def datasets_of_all_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def built(task: str, folder: Path) -> Path:
    """A small default dataset of the task; the reference scores, which are the cards' own, are cut short."""

    def few(task: str, policy: str, episodes: int, env_kwargs: Mapping[str, Any]) -> Summary:
        starts = episode_starts(task, "test", range(2), env_kwargs)
        return summarize(p.trajectory for p in play(task, make_policy(task, policy), starts))

    if not (folder / task).exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build_module, "reference_score", few)
            build(make_plan(task, episodes={"train": 12, "validation": 4}), folder / task, workers=1)
    return folder / task


@pytest.mark.parametrize("task", TASKS)
def test_a_default_dataset_verifies(task: str, datasets_of_all_tasks: Path) -> None:
    found = verify(str(built(task, datasets_of_all_tasks)))
    assert found.problem is None
    assert (found.episodes, found.starts) == (16, load_task(task).spec.test_episodes)


@pytest.mark.parametrize("task", ["text_nav", "wordle", "chess_endgames"])
def test_a_policy_is_trained_on_it_and_measured(task: str, datasets_of_all_tasks: Path, tmp_path: Path) -> None:
    data = built(task, datasets_of_all_tasks)
    train_bc(task, str(data), tmp_path / "model", init="tiny", steps=2)
    result = run(task, str(tmp_path / "model"), episodes=2, output=tmp_path / "run", progress=False, max_new_tokens=4)
    assert result.scored.summary.episodes == 2
    spec = load_task(task).spec
    assert spec.min_return <= result.scored.summary.min_return <= result.scored.summary.max_return <= spec.max_return
