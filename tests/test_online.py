"""Rounds of episodes: alike for any number of processes, resumed from the journal, cut by budgets, without the lost."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ilql import TOKENIZER, language_model

from env_servers.play import Played
from env_servers.policy import Action, Context
from env_servers.task import Env, EpisodeError
from env_servers.tasks import load_task, make_env
from env_servers.trajectory import Trajectory, Turn
from hub_datasets.journal import decode_line, encode_line
from trainers.online import (
    OUT_OF_TOKENS,
    EpisodeNumbers,
    OnlinePolicy,
    Rollouts,
    collect,
    from_record,
    numbers_of,
    round_metrics,
    to_record,
    write_transcripts,
)
from trainers.policy import Sampling

torch.set_num_threads(1)


@functools.cache
def model() -> Any:
    return language_model().eval()


def policy(task: str = "maze", *, tokens: int | None = 6, **options: Any) -> OnlinePolicy:
    """At most three tokens an action, and by default two actions an episode."""
    options = {"sampling": Sampling(max_new_tokens=3), "name": "small", "max_length": 160, **options}
    return OnlinePolicy(model(), TOKENIZER, load_task(task).spec, max_episode_tokens=tokens, **options)


def round_of(folder: Path, task: str = "maze", number: int = 0, **options: Any) -> list[Played]:
    player = policy(task, **options.pop("policy", {}))
    made = {"env_maker": options.pop("env_maker")} if "env_maker" in options else {}
    rollouts = Rollouts(task, **{"episodes": 5, "slots": 2, **options})
    return collect(rollouts, player, number, folder / f"{number}-{rollouts.process}.jsonl", **made).played


def assert_same(ones: Sequence[Played], others: Sequence[Played]) -> None:
    """Log-probabilities are rounded otherwise in another batch."""
    for one, other in zip(ones, others, strict=True):
        assert one.trajectory == other.trajectory
        for action, same in zip(one.actions, other.actions, strict=True):
            assert (action.prompt_ids, action.token_ids) == (same.prompt_ids, same.token_ids)
            assert action.logprobs == pytest.approx(same.logprobs, abs=1e-5)


def test_a_round_does_not_depend_on_slots_and_processes(tmp_path: Path) -> None:
    whole = round_of(tmp_path / "whole", slots=5)
    parts = [round_of(tmp_path / "parts", process=process, processes=2, slots=2) for process in range(2)]
    assert [len(part) for part in parts] == [3, 2]
    joined = sorted((played for part in parts for played in part), key=lambda played: played.trajectory.index)
    assert_same(whole, joined)


def test_rounds_and_seeds_have_random_numbers_of_their_own(tmp_path: Path) -> None:
    first, second = round_of(tmp_path), round_of(tmp_path, number=1)
    assert [played.trajectory.index for played in second] == [5, 6, 7, 8, 9]
    assert not {played.trajectory.seed for played in first} & {played.trajectory.seed for played in second}
    other = round_of(tmp_path / "other", seed=1)
    assert [p.trajectory.seed for p in other] == [p.trajectory.seed for p in first], "the same episodes"
    assert all(p.actions[0].token_ids != q.actions[0].token_ids for p, q in zip(first, other, strict=True))


class Interrupted(OnlinePolicy):
    """Is stopped, as by a signal, after some calls."""

    left = 3

    def act(self, contexts: Sequence[Context]) -> list[Action]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().act(contexts)


def test_a_round_that_was_stopped_loses_no_finished_episode(tmp_path: Path) -> None:
    whole = round_of(tmp_path / "whole")
    rollouts, journal = Rollouts("maze", 5, slots=2), tmp_path / "cut.jsonl"
    short: dict[str, Any] = {"sampling": Sampling(max_new_tokens=3), "max_episode_tokens": 6}
    first = Interrupted(model(), TOKENIZER, load_task("maze").spec, name="small", **short)
    with pytest.raises(KeyboardInterrupt):
        collect(rollouts, first, 0, journal)
    kept = journal.read_bytes()
    assert kept.count(b"\n") == 2, "two episodes of two actions in two slots, and no more"
    journal.write_bytes(kept + kept[:40])  # torn in writing
    begun: list[int] = []

    def counting(task: str, options: Mapping[str, Any]) -> Env:
        begun.append(1)
        return make_env(task, options)

    found = collect(rollouts, policy(max_length=256), 0, journal, counting)
    assert (found.resumed, len(begun)) == (2, 3)
    assert_same(found.played, whole)
    again = collect(rollouts, policy(), 0, journal, counting)
    assert (again.resumed, len(begun)) == (5, 3) and again.played == found.played, "and whole it is only read"


def test_a_journal_of_another_round_is_refused(tmp_path: Path) -> None:
    round_of(tmp_path)
    with pytest.raises(ValueError, match=r"0-0.jsonl holds episodes that are not of round 3; delete it"):
        collect(Rollouts("maze", 5), policy(), 3, tmp_path / "0-0.jsonl")


@pytest.mark.parametrize("task", ["maze", "maze_po"])
def test_a_record_gives_back_the_episode(task: str, tmp_path: Path) -> None:
    """With the whole past in each prompt its record still grows with the episode alone, not with its square."""
    for played in round_of(tmp_path, task, episodes=2, policy={"tokens": 30}):
        line = encode_line(to_record(played))
        read = decode_line(line)
        assert read is not None and from_record(read) == played
        ids = sum(len(turn["prompt_ids"]) + len(turn["token_ids"]) for turn in to_record(played)["turns"])
        prompts = sum(len(action.prompt_ids or ()) for action in played.actions)
        assert ids < prompts / 3 if task == "maze_po" else ids > prompts


def test_the_budget_of_tokens_cuts_an_episode(tmp_path: Path) -> None:
    """Before an action that might not fit: 10 ids are three actions of at most three, and 30 at least ten."""
    for tokens, least in ((10, 3), (30, 10)):
        for played in round_of(tmp_path / str(tokens), "maze_po", episodes=3, policy={"tokens": tokens}):
            numbers = numbers_of(played)
            assert tokens - 3 < numbers.tokens <= tokens and numbers.num_turns >= least
            assert played.trajectory.end_reason == OUT_OF_TOKENS and played.trajectory.truncated
            assert {action.finish_reason for action in played.actions} <= {"stop", "length"}
            assert numbers.cut_actions == sum(len(a.token_ids or ()) == 3 and a.finish_reason == "length"
                                              for a in played.actions)  # fmt: skip


@pytest.mark.parametrize("task", ["maze", "maze_po"])
def test_the_final_prompt_is_the_one_it_would_have_been_given(task: str, tmp_path: Path) -> None:
    """The same episodes with a larger budget: their next action's prompt."""
    player = policy(task)
    cut = round_of(tmp_path / "cut", task, policy={"tokens": 9})
    longer = round_of(tmp_path / "longer", task, policy={"tokens": 18})
    for short, long in zip(cut, longer, strict=True):
        turns = len(short.actions)
        assert short.actions == long.actions[:turns]
        assert player.final_prompt(short) == list(long.actions[turns].prompt_ids or ())


class Failing:
    """Environments of which the first `times` fail, and those of one start always."""

    def __init__(self, times: int, always: int | None = None) -> None:
        self.times, self.always = times, always

    def __call__(self, task: str, options: Mapping[str, Any]) -> Env:
        env = make_env(task, options)
        begin = env.begin

        def fail(seed: int, named: Any = None) -> Any:
            self.times -= 1
            if self.times >= 0 or (named is not None and named["index"] == self.always):
                raise EpisodeError("the server is gone")
            return begin(seed, named)

        env.begin = fail  # type: ignore[method-assign]
        return env


def test_what_fails_outside_of_the_task_is_played_again_or_left_out(tmp_path: Path) -> None:
    whole = round_of(tmp_path / "whole")
    assert_same(round_of(tmp_path / "again", env_maker=Failing(3)), whole)
    rollouts = Rollouts("maze", 5)
    found = collect(rollouts, policy(), 0, tmp_path / "without", Failing(0, always=2))
    assert_same(found.played, [played for played in whole if played.trajectory.index != 2])
    assert (found.failed, found.error) == (1, "the server is gone")
    nothing = collect(rollouts, policy(), 0, tmp_path / "nothing", Failing(1000))
    assert (nothing.played, nothing.failed) == ([], 5)


def test_the_numbers_of_a_round_by_hand() -> None:
    episodes = [
        EpisodeNumbers(0, -3.0, True, 4, 1, 10, 2, False),
        EpisodeNumbers(1, -9.0, False, 6, 0, 20, 0, True),
    ]
    assert round_metrics(episodes, 1, 2.5) == {
        "rollout/return": -6.0, "rollout/return_std": pytest.approx(18**0.5), "rollout/success": 0.5,
        "rollout/length": 5.0, "rollout/invalid": 0.1, "rollout/cut_actions": 0.2, "rollout/truncated": 0.5,
        "rollout/tokens": 30.0, "rollout/env_steps": 10.0, "rollout/failed": 1.0, "rollout/seconds": 2.5,
    }  # fmt: skip
    assert round_metrics(episodes[:1], 0, 0.0)["rollout/return_std"] == 0.0
    json.dumps(round_metrics(episodes, 0, 0.0), allow_nan=False)


def test_transcripts_are_for_reading(tmp_path: Path) -> None:
    trajectory = Trajectory(
        "maze", "1.0", {}, "train", 3, 9, (Turn("Here.", "go", -4.0), Turn("There.", "move up", 0.0)), "End", True,
        False, "goal", True, 1, "ppo-round-1",
    )  # fmt: skip
    actions = (Action("go", finish_reason="length"), Action("move up", finish_reason="stop"))
    path = tmp_path / "t" / "round.txt"
    write_transcripts(path, [Played(trajectory, actions, (False, True))] * 2)
    one = (
        "maze-ppo-round-1-train-0000003: return -4, goal\n"
        "  env:   Here.\n"
        "  agent: go  (-4, cut after so many tokens, invalid)\n"
        "  env:   There.\n"
        "  agent: move up  (+0)\n"
        "  env:   End\n"
    )
    assert path.read_text() == one + "\n" + one
