"""`lmrl train grpo`: what it refuses, what it hands on to TRL, and that a run can be stopped and gone on with."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_rollouts import Maker, talker
from tiny_models import plain_tokenizer

from env_servers.play import episode_starts, play
from trainers.curves import points, read_log
from trainers.grpo import EpisodeGRPOTrainer, GRPORun, read_options, train_grpo
from trainers.load import load_policy

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with random weights that ends its words now and then."""
    folder, tokenizer = tmp_path_factory.mktemp("talker"), plain_tokenizer()
    talker(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def run_of(init: str, **settings: Any) -> GRPORun:
    few = {"steps": 3, "episodes": 4, "num_generations": 2, "lr": 1e-2, "max_completion_length": 200, "starts": 8}
    return GRPORun("wordle", init, **{**few, **settings})


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"num_generations": 3}, "4 episodes do not divide into groups of 3"), ({"init": "tiny"}, "random weights"),
     ({"num_generations": 1}, "each of at least 2"), ({"lr": 0}, "lr is 0; it must be above 0"),
     ({"option": ["scale_rewards"]}, "has no value; give NAME=VALUE"),
     ({"option": ["beta=0.1"]}, "option beta is not free here"),
     ({"option": ["scale_reward=none"]}, "unknown field of GRPOConfig 'scale_reward'.*scale_rewards")],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        train_grpo(run_of("nowhere")._replace(**settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_are_json_or_text() -> None:
    words = ["scale_rewards=none", "num_iterations=2", "epsilon_high=0.28", "shuffle_dataset=false"]
    assert read_options(words) == {
        "scale_rewards": "none", "num_iterations": 2, "epsilon_high": 0.28, "shuffle_dataset": False,
    }  # fmt: skip


def test_a_stopped_run_goes_on_to_the_same_weights(
    tmp_path: Path, talking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what was said pays its number of letters."""
    for module in ("grpo", "monitor"):
        monkeypatch.setattr(f"trainers.{module}.env_maker", lambda _: contextlib.nullcontext(Maker()))
    run = run_of(talking, option=("scale_rewards=none",), eval_steps=3, eval_episodes=2, rows_per_episode=2)
    train_grpo(run, tmp_path / "whole")
    step = EpisodeGRPOTrainer.training_step

    def stopped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(EpisodeGRPOTrainer, "training_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_grpo(run, tmp_path / "parts")
    train_grpo(run, tmp_path / "parts")
    first, whole, parts = (
        load_file(Path(at) / "model.safetensors") for at in (talking, tmp_path / "whole", tmp_path / "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert any(not torch.equal(first[name], whole[name]) for name in whole)

    record = json.loads((tmp_path / "parts/policy.json").read_text())
    assert (record["algorithm"], record["training"]["episodes"]) == ("grpo", 12)
    steps, returns = points(read_log(tmp_path / "parts"), "eval_return")
    assert steps == [3]
    policy = load_policy(str(tmp_path / "parts"), task="wordle", device="cpu")
    played = [
        one.trajectory.episode_return
        for one in play("wordle", policy, episode_starts("wordle", "validation", range(2)), env_maker=Maker())
    ]
    assert sum(played) / 2 == pytest.approx(returns[0])
    card = (tmp_path / "parts/README.md").read_text()
    assert "GRPO" in card and "--option scale_rewards=none" in card and "its own episodes" in card
