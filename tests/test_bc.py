"""Behaviour cloning: the loss by hand, what the trainer keeps of it, filters, and whole runs of `train_bc`."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tiny_models import episode, maze_episodes, plain_tokenizer

import trainers.bc as bc_module
import trainers.runs as runs_module
from env_servers.play import episode_starts, play
from env_servers.tasks import load_task
from hub_datasets.load import Source
from hub_datasets.rows import EPISODE_FEATURES, to_row
from trainers.bc import BCConfig, BCTrainer, bc_loss, train_bc
from trainers.filters import filter_trajectories
from trainers.load import load_policy
from trainers.scratch import new_model
from trainers.sequences import build_dataset, merge_repeated, row_collator
from trainers.tokens import Renderer

torch.set_num_threads(1)
SPEC = load_task("maze").spec
TOKENIZER = plain_tokenizer()
EPISODES = maze_episodes("maze", 12)


def ragged_dataset(rows: int = 16) -> Dataset:
    """Whole short histories, so that the number of actions differs between rows."""
    cut = [
        episode("maze", list(e.turns[: 1 + number % 4]), index=number) for number, e in enumerate(EPISODES[:rows] * 2)
    ]
    return build_dataset(cut[:rows], Renderer(TOKENIZER, SPEC, memory=None))


# Without Adam, which would turn the rounding of a gradient that is truly 0 (GPT-2's key biases) into whole steps.
SGD = {"optim": "sgd", "learning_rate": 0.1}


def trained(folder: Path, dataset: Dataset, resume: bool = False, **options) -> torch.Tensor:
    """All parameters after training, as one vector."""
    settings = {"max_steps": 3, "learning_rate": 1e-2, "warmup_steps": 0, "save_strategy": "no", "disable_tqdm": True}
    args = BCConfig(output_dir=str(folder), report_to="none", use_cpu=True, **{**settings, **options})
    model = new_model("tiny", TOKENIZER, 512)
    trainer = BCTrainer(model=model, args=args, train_dataset=dataset, processing_class=TOKENIZER)
    trainer.train(resume_from_checkpoint=resume)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_loss_by_hand() -> None:
    # Two rows, three positions, two tokens: the target's probability is 1/4, 1/2, and a masked one; weights 1 and 3.
    logits = torch.tensor([[[0.0, math.log(3)], [5.0, 5.0], [1.0, 0.0]], [[0.0, 0.0], [7.0, 0.0], [7.0, 0.0]]])
    targets = torch.tensor([[0, 1, -100], [1, -100, -100]])
    expected = (math.log(4) + math.log(2) + 3 * math.log(2)) / 5
    assert bc_loss(logits, targets, torch.tensor([1, 3]), 5).item() == pytest.approx(expected)
    assert bc_loss(logits, torch.full_like(targets, -100), torch.tensor([1, 1]), 0).item() == 0.0


def test_trainer_s_loss_is_the_masked_mean_over_the_batch(tmp_path: Path) -> None:
    dataset = ragged_dataset(4)
    rows = dataset.to_list()
    model = new_model("tiny", TOKENIZER, 512)
    total, count = 0.0, 0
    for row in rows:  # one row at a time, without padding
        with torch.no_grad():
            logprobs = model(torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
        for place in range(1, len(row["input_ids"])):
            if row["labels"][place] != -100:
                total -= float(logprobs[place - 1, row["labels"][place]])
                count += 1
    args = BCConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    trainer = BCTrainer(model=model, args=args, train_dataset=dataset, processing_class=TOKENIZER)
    batch = row_collator(TOKENIZER)(rows)
    with torch.no_grad():
        assert float(trainer.compute_loss(model, dict(batch))) == pytest.approx(total / count, abs=1e-5)
        # TRL's own loss, which is used on a GPU, is the same number.
        theirs = super(BCTrainer, trainer).compute_loss(model, dict(batch))
        assert float(theirs) == pytest.approx(total / count, abs=1e-5)


def test_rows_hold_only_the_agent_s_tokens_as_labels() -> None:
    for row, turn in zip(build_dataset(EPISODES[:1], Renderer(TOKENIZER, SPEC)), EPISODES[0].turns, strict=True):
        said = [token for token in row["labels"] if token != -100]
        assert TOKENIZER.decode(said) == turn.action + "\n"
        assert TOKENIZER.decode(row["input_ids"]) == f"{turn.observation}\n{turn.action}\n"
        assert row["length"] == len(row["input_ids"]) == len(row["labels"])
    with pytest.raises(ValueError, match="no trajectories"):
        build_dataset([], Renderer(TOKENIZER, SPEC))


def test_accumulation_does_not_change_what_is_learned(tmp_path: Path) -> None:
    dataset = ragged_dataset()
    assert len({sum(label != -100 for label in row["labels"]) for row in dataset}) > 2
    whole = trained(tmp_path / "a", dataset, per_device_train_batch_size=4, **SGD)
    for size in (1, 2):
        parts = trained(
            tmp_path / str(size),
            dataset,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=4 // size,
            **SGD,
        )
        assert (whole - parts).abs().max() < 1e-5


def test_merged_rows_teach_the_same(tmp_path: Path) -> None:
    dataset = build_dataset(EPISODES[:4], Renderer(TOKENIZER, SPEC))
    merged = merge_repeated(dataset, len(dataset))
    assert len(merged) < len(dataset) and sum(merged["weight"]) == len(dataset)
    assert merge_repeated(dataset, len(merged) - 1) is dataset
    even = merge_repeated(dataset, len(dataset), multiple_of=7)
    assert len(even) % 7 == 0 and len(even) - len(merged) < 7 and sum(even["weight"]) == len(dataset)
    options = {"per_device_train_batch_size": len(dataset), **SGD}
    one, two = trained(tmp_path / "a", dataset, **options), trained(tmp_path / "b", merged, **options)
    assert (one - two).abs().max() < 1e-5
    parts = {**SGD, "per_device_train_batch_size": 8, "gradient_accumulation_steps": math.ceil(len(merged) / 8)}
    assert (one - trained(tmp_path / "c", merged, **parts)).abs().max() < 1e-5
    whole = {**SGD, "per_device_train_batch_size": len(even)}
    assert (one - trained(tmp_path / "d", even, **whole)).abs().max() < 1e-5


def test_resuming_gives_the_same_parameters(tmp_path: Path) -> None:
    dataset, options = ragged_dataset(), {"per_device_train_batch_size": 4, "max_steps": 6}
    straight = trained(tmp_path / "a", dataset, **options)
    saving = {"save_strategy": "steps", "save_steps": 3}
    trained(tmp_path / "b", dataset, **options, **saving)
    for leftover in (tmp_path / "b").glob("checkpoint-6/*"):
        leftover.unlink()
    (tmp_path / "b" / "checkpoint-6").rmdir()
    resumed = trained(tmp_path / "b", dataset, resume=True, **options, **saving)
    assert torch.equal(straight, resumed)


def test_a_dataset_that_is_not_tokenised_is_refused(tmp_path: Path) -> None:
    dataset = Dataset.from_list([{"text": "move up"}])
    with pytest.raises(ValueError, match="train_dataset has the columns text; BC needs input_ids and labels"):
        BCTrainer(
            model=new_model("tiny", TOKENIZER, 64),
            args=BCConfig(output_dir=str(tmp_path), use_cpu=True),
            train_dataset=dataset,
            processing_class=TOKENIZER,
        )


def test_defaults_suit_a_cpu(tmp_path: Path) -> None:
    args = BCConfig(output_dir=str(tmp_path), use_cpu=True)
    assert (args.bf16, args.gradient_checkpointing, args.activation_checkpointing) == (False, False, False)
    assert (args.learning_rate, args.adam_beta1, args.adam_beta2, args.max_grad_norm) == (1e-4, 0.9, 0.95, 1.0)
    assert BCConfig(output_dir=str(tmp_path), use_cpu=True, activation_checkpointing=True).gradient_checkpointing


# Filters ----------------------------------------------------------------------------------------------------------


def returns(number: int, start: list[int] | None, total: float, success: bool = False):
    info = {} if start is None else {"start": start}
    return episode("maze", [("x", "move up", total)], index=number, info=info, success=success)


def test_top_compares_episodes_of_the_same_start() -> None:
    near = [returns(n, [1, 1], -float(n)) for n in range(10)]
    far = [returns(10 + n, [2, 2], -50.0 - n) for n in range(5)]
    kept = filter_trajectories(near + far, "top:20")
    assert [e.episode_return for e in kept] == [0.0, -1.0, -50.0]
    assert [e.episode_return for e in filter_trajectories(near + far, "top-all:20")] == [0.0, -1.0, -2.0]
    # Less than one of a group is still one.
    assert [e.episode_return for e in filter_trajectories(near + far, "top:1")] == [0.0, -50.0]
    assert len(filter_trajectories(near + far, "top:100")) == 15


def test_without_start_states_all_are_compared() -> None:
    kept = filter_trajectories([returns(n, None, float(n)) for n in range(10)], "top:30")
    assert [e.episode_return for e in kept] == [7.0, 8.0, 9.0]


def test_ties_do_not_depend_on_order() -> None:
    equal = [returns(n, [1, 1], -5.0) for n in range(20)]
    kept = {e.episode_id for e in filter_trajectories(equal, "top:25")}
    shuffled = random.Random(0).sample(equal, len(equal))
    assert {e.episode_id for e in filter_trajectories(shuffled, "top:25")} == kept
    assert len(kept) == 5 and kept != {e.episode_id for e in equal[:5]}


def test_success_and_wrong_rules() -> None:
    mixed = [returns(0, None, -1.0, success=True), returns(1, None, 0.0)]
    assert filter_trajectories(mixed, "success") == mixed[:1]
    with pytest.raises(ValueError, match="none of the 1 episodes is a success"):
        filter_trajectories(mixed[1:], "success")
    for rule in ("best", "top", "top:", "top:0", "top:101", "top:nan", "success:3", "top-all:x"):
        with pytest.raises(ValueError, match="unknown filter"):
            filter_trajectories(mixed, rule)


# Whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(bc_module, "resolve", lambda source, revision=None, token=None: Source("lmrl/maze", "c" * 40))
    monkeypatch.setattr(runs_module, "load_trajectories", lambda *args, **kwargs: iter(EPISODES))
    return "maze"


def test_a_run_leaves_a_policy_with_record_and_card(tmp_path: Path, data: str) -> None:
    result = train_bc("maze", data, tmp_path / "run", rule="top:50", steps=2, batch_size=8)
    assert result.folder == tmp_path / "run" and result.revision is None and math.isfinite(result.loss)
    record = json.loads((tmp_path / "run" / "policy.json").read_text())
    assert (record["algorithm"], record["filter"], record["task"]) == ("filtered_bc", "top:50", "maze")
    assert record["dataset"] == {"source": "lmrl/maze", "revision": "c" * 40}
    assert not (tmp_path / "run" / "checkpoints").exists()
    card = (tmp_path / "run" / "README.md").read_text()
    for part in ("library_name: transformers", "- lmrl/maze\n", "lmrl train bc --task maze", "lmrl eval --model run"):
        assert part in card
    assert str(tmp_path) not in card
    policy = load_policy(str(tmp_path / "run"), task="maze", device="cpu")
    assert policy.name == "run" and policy.renderer.memory == 0
    played = list(play("maze", policy, episode_starts("maze", "test", range(1))))
    assert played[0].trajectory.behavior_policy == "run"


def test_another_command_on_the_same_folder_is_refused(tmp_path: Path, data: str) -> None:
    first = train_bc("maze", data, tmp_path, steps=1, batch_size=4)
    weights = (tmp_path / "model.safetensors").read_bytes()
    again = train_bc("maze", data, tmp_path, steps=1, batch_size=4)  # finished: nothing is trained
    assert again.loss == first.loss and again.seconds < first.seconds
    with pytest.raises(FileExistsError, match="seed was 0, is 1"):
        train_bc("maze", data, tmp_path, steps=1, batch_size=4, seed=1)
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    train_bc("maze", data, tmp_path, steps=1, batch_size=4, seed=1, overwrite=True)
    assert (tmp_path / "model.safetensors").read_bytes() != weights


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, data: str) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(FileExistsError, match="holds files but no run"):
        train_bc("maze", data, tmp_path, steps=1)
    assert (tmp_path / "thesis.tex").read_text() == "years"


def test_ctrl_c_saves_and_the_same_command_goes_on_to_the_same_weights(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"steps": 40, "batch_size": 2, "max_length": 64}
    train_bc("maze", data, tmp_path / "a", **settings)
    steps = itertools.count(1)
    whole, before = BCTrainer.training_step, signal.getsignal(signal.SIGINT)

    def step(*args, **kwargs):
        if next(steps) == 17:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(BCTrainer, "training_step", step)
        with pytest.raises(KeyboardInterrupt):
            train_bc("maze", data, tmp_path / "b", **settings)
    assert "Stopped after step 17 of 40" in capsys.readouterr().err
    assert not (tmp_path / "b/policy.json").exists()
    assert [path.name for path in (tmp_path / "b/checkpoints").glob("checkpoint-*")] == ["checkpoint-17"]
    assert signal.getsignal(signal.SIGINT) is before, "as it was before"
    train_bc("maze", data, tmp_path / "b", **settings)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_wrong_arguments(tmp_path: Path, data: str) -> None:
    for wrong, reason in [
        ({"steps": 1, "epochs": 1.0}, "give one of them"),
        ({"rule": "best"}, "unknown filter"),
        ({"epochs": 0.0}, "epochs is 0.0; it must be above 0"),
        ({"batch_size": 5, "accumulation": 2}, "does not divide"),
        ({"rendering": "plane"}, "did you mean 'plain'"),
    ]:
        with pytest.raises(ValueError, match=reason):
            train_bc("maze", data, tmp_path / str(reason), **wrong)
    with pytest.raises(ValueError, match="episodes of maze, not of maze_po"):
        train_bc("maze_po", data, tmp_path / "other", steps=1)


def maze_folder(parent: Path, number: int) -> Path:
    """A dataset folder, with nothing but what `load_dataset` needs."""
    folder = parent / "data"
    (folder / "episodes").mkdir(parents=True)
    rows = [to_row(trajectory) for trajectory in maze_episodes("maze", number)]
    Dataset.from_list(rows, features=EPISODE_FEATURES).to_parquet(str(folder / "episodes/train-00000-of-00001.parquet"))
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: episodes\n  data_files:\n  - split: train\n    path: episodes/*.parquet\n---\n"
    )
    return folder


def test_two_processes_learn_the_same_as_one(tmp_path: Path) -> None:
    source, runs = maze_folder(tmp_path, 6), {}
    for processes in (1, 2):
        output = tmp_path / f"run{processes}"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--standalone",
            "-m", "trainers", "bc", "--task", "maze", "--dataset", str(source), "--output", str(output),
            "--steps", "4", "--batch-size", str(256 // processes),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("policy saved in") == 1, "one process of them speaks and saves"
        assert json.loads((output / "run.json").read_text())["processes"] == processes
        runs[processes] = load_policy(str(output), task="maze", device="cpu").model
    # Not the parameters: Adam makes whole steps of the rounding of gradients that are truly 0 (the key biases).
    ids = torch.tensor([[number % 300 for number in range(0, 500, 7)]])
    with torch.no_grad():
        one, two = (runs[number](ids).logits for number in (1, 2))
    assert (one - two).abs().max() < 1e-3 * one.abs().max()
