"""Runs that play while they learn: what is measured, which weights are kept, what the log and the card say of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from datasets import Dataset
from safetensors.torch import load_file
from tiny_models import maze_episodes

import trainers.bc as bc_module
import trainers.runs as runs_module
from env_servers.play import episode_starts, play
from env_servers.scores import summarize
from hub_datasets.load import Source
from trainers import monitor
from trainers.bc import train_bc
from trainers.curves import points, read_log
from trainers.ilql import ILQLTrainer
from trainers.load import load_policy
from trainers.monitor import Measured
from trainers.value_training import ValueRun, train_values

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def data() -> Any:
    episodes = maze_episodes("maze", 12)
    with pytest.MonkeyPatch.context() as patch:
        for module in (bc_module, "trainers.value_training"):
            target = module if isinstance(module, str) else module.__name__
            patch.setattr(f"{target}.resolve", lambda source, revision=None, token=None: Source("lmrl/maze", "c" * 40))
        patch.setattr(runs_module, "load_trajectories", lambda *args, **kwargs: iter(episodes))
        yield


@pytest.fixture(scope="module")
def behavior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bc") / "policy"
    train_bc("maze", "maze", folder, steps=60, eval_steps=20, eval_episodes=6)
    return folder


def mean_return(folder: Path, episodes: int, **options: Any) -> float:
    policy = load_policy(str(folder), task="maze", device="cpu", **options)
    played = play("maze", policy, episode_starts("maze", "validation", range(episodes)))
    return summarize(p.trajectory for p in played).mean_return


def test_the_best_weights_by_return_are_kept_and_replay_to_that_return(behavior: Path) -> None:
    log = read_log(behavior)
    steps, returns = points(log, "eval_return")
    assert steps == [20, 40, 60] and len(set(returns)) == 3
    record = json.loads((behavior / "policy.json").read_text())["training"]
    assert record["best_return"] == max(returns) and record["best_step"] == steps[returns.index(max(returns))]
    assert mean_return(behavior, 6) == pytest.approx(max(returns))
    card = (behavior / "README.md").read_text()
    assert f"weights of step {record['best_step']}" in card and f"{max(returns):.2f}" in card
    assert (behavior / "curves.png").read_bytes().startswith(b"\x89PNG") and "](curves.png)" in card
    for name in ("eval_success", "eval_length", "eval_invalid"):
        assert len(points(log, name)[1]) == 3


@pytest.mark.parametrize("form", [{"trunk": "tiny"}, {"lora_rank": 2}])
def test_values_are_measured_with_their_behaviour_policy(behavior: Path, tmp_path: Path, form: dict[str, Any]) -> None:
    """With a trunk of its own and random weights, and with an adapter; playing does not change what is learned."""
    run = ValueRun("ilql", "maze", "maze", None, str(behavior), steps=20, lr=3e-3, beta=8.0, head_bias=-3, **form)
    before = load_file(behavior / "model.safetensors")
    train_values(run._replace(eval_steps=5, eval_episodes=4), tmp_path / "played")
    log = read_log(tmp_path / "played")
    steps, returns = points(log, "eval_return")
    assert steps == [5, 10, 15, 20]
    assert mean_return(tmp_path / "played", 4) == pytest.approx(max(returns))
    train_values(run, tmp_path / "silent")
    logged = [entry for entry in read_log(tmp_path / "silent") if "loss" in entry]
    assert [entry["loss"] for entry in logged] == [entry["loss"] for entry in log if "loss" in entry]
    kept = load_file(tmp_path / "played/model.safetensors")
    assert all(torch.equal(before[name], kept[name]) for name in before)
    for name in ("losses/q", "losses/v", "losses/cql", "values/q", "values/v", "values/target_q", "grad_norm"):
        assert all(name in entry for entry in logged), name


def test_what_is_logged_adds_up_to_the_loss(behavior: Path, tmp_path: Path) -> None:
    run = ValueRun("mc", "maze", "maze", None, str(behavior), steps=10, cql_weight=0.25, batch_size=1024)
    train_values(run, tmp_path)
    (entry,) = [entry for entry in read_log(tmp_path) if "loss" in entry]
    assert entry["loss"] == pytest.approx(entry["losses/q"] + 0.25 * entry["losses/cql"], rel=1e-5)
    card = (tmp_path / "README.md").read_text()
    assert "Monte Carlo returns" in card and "lmrl train mc --task maze" in card


def test_trackers_get_what_is_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
        train_bc("maze", "maze", tmp_path / "run", steps=10, eval_steps=5, eval_episodes=2, report_to="tensorboard")
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    steps, returns = points(read_log(tmp_path / "run"), "eval_return")
    assert [event.step for event in events.Scalars("eval/return")] == steps == [5, 10]
    assert [event.value for event in events.Scalars("eval/return")] == pytest.approx(returns)


def test_values_beyond_what_returns_can_be_end_the_run() -> None:
    trainer = object.__new__(ILQLTrainer)
    trainer.value_range = (-100.0, 0.0)
    trainer.state = type("State", (), {"global_step": 7})()
    trainer._check_divergence(3.0, {"values/q": -390.0, "values/v": 290.0})
    with pytest.raises(FloatingPointError, match=r"mean of values/v is 301, .* from -100 to 0 after 7 steps: training"):
        trainer._check_divergence(3.0, {"values/q": -390.0, "values/v": 301.0})


def test_without_playing_evaluation_is_the_trainers_own() -> None:
    class Base:
        def evaluate(self, dataset: Dataset) -> dict[str, float]:
            return {"eval_loss": float(len(dataset))}

    class Trainer(Measured, Base):
        pass

    assert Trainer().evaluate(Dataset.from_dict({"a": [1, 2]})) == {"eval_loss": 2.0}


def test_values_read_as_much_of_the_past_as_their_behaviour_policy(tmp_path: Path) -> None:
    train_bc("maze", "maze", tmp_path / "bc", steps=1, batch_size=8, memory=1)
    train_values(ValueRun("mc", "maze", "maze", None, str(tmp_path / "bc"), steps=1, batch_size=8), tmp_path / "mc")
    for name in ("bc", "mc"):
        assert json.loads((tmp_path / name / "policy.json").read_text())["memory"] == 1


def test_who_cannot_play_alone_is_refused_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of FSDP, accelerate's state tells nothing before there is a trainer; its launcher's settings do."""
    gpus = SimpleNamespace(distributed_type=DistributedType.MULTI_GPU, device=torch.device("cuda"))
    monkeypatch.setattr(monitor, "processes", lambda: gpus)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    assert not monitor.weights_in_parts()
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match=r"the weights are divided among processes"):
        monitor.check_env("maze", 1, "ws://127.0.0.1:9")
    reached = RuntimeError("its servers are looked for")

    def env_maker(_: str) -> Any:
        raise reached

    monkeypatch.setattr(monitor, "env_maker", env_maker)
    with pytest.raises(RuntimeError, match="are looked for"):
        monitor.check_env("maze", 1, "ws://127.0.0.1:9", alone=True)
    gpus.device = torch.device("cpu")
    assert not monitor.weights_in_parts(), "there accelerate leaves it at copies"
