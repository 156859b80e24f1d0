"""Online filtered BC: whose tokens it learns from, what must not change the result, and the whole way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import test_ppo
import torch
from test_ilql import TOKENIZER, language_model, weights
from test_ppo import logged
from tiny_models import maze_episodes

from env_servers.tasks import load_task
from trainers.load import load_policy
from trainers.online_bc import (
    KEPT,
    KEPT_RETURN,
    Candidate,
    Kept,
    OnlineBCConfig,
    OnlineBCTrainer,
    batch_numbers,
    rows_of,
)
from trainers.online_bc_training import OnlineBCRun, train_online_bc
from trainers.runs import read_record
from trainers.sequences import build_dataset
from trainers.tokens import IGNORED, Renderer

torch.set_num_threads(1)
first_policy = test_ppo.start  # a fixture


def trainer(folder: Path, task: str = "maze", **options: Any) -> OnlineBCTrainer:
    """Short episodes of a model that knows nothing: two actions of three ids."""
    given = {name: options.pop(name) for name in ("bc_dataset", "peft_config") if name in options}
    values: dict[str, Any] = {
        "rounds": 2, "rollouts": 6, "slots": 3, "steps_per_round": 3, "batch_size": 4, "filter": "top-all:50",
        "learning_rate": 1e-3, "response_length": 3, "max_episode_tokens": 6, "logging_steps": 3,
        "save_strategy": "no", "seed": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True, **options,
    }  # fmt: skip
    arguments = OnlineBCConfig(output_dir=str(folder), **values)
    renderer = Renderer(TOKENIZER, load_task(task).spec, max_length=160)
    return OnlineBCTrainer(language_model("llama"), arguments, task, TOKENIZER, renderer=renderer, **given)


def train(folder: Path, task: str = "maze", *, resume: str | None = None, **options: Any) -> OnlineBCTrainer:
    made = trainer(folder, task, **options)
    made.train(resume_from_checkpoint=resume)
    return made


def test_batches_are_passes_over_all_rows() -> None:
    """Seven rows in batches of three: each of the first two passes has each row once, and no step is as another."""
    steps = [batch_numbers(7, 3, step, seed=5) for step in range(7)]
    said = [number for step in steps for number in step]
    for first in (0, 7, 14):
        assert sorted(said[first : first + 7]) == list(range(7))
    assert said[:7] != said[7:14]
    assert Counter(batch_numbers(2, 5, 0, seed=1)) in (Counter({0: 3, 1: 2}), Counter({0: 2, 1: 3}))


def test_rows_are_the_sampled_ids_of_the_best_episodes(tmp_path: Path) -> None:
    """Half of six episodes: the rule keeps the three with the best returns of the last two rounds' twelve: six."""
    made = trainer(tmp_path, buffer_rounds=2, rounds=2)
    first, second = made.play_round(0), made.play_round(1)
    assert [len(kept.candidates) for kept in (first, second)] == [3, 6]
    everything = {played.trajectory.index: played for at in made._own.values() for played in at[1]}
    assert sorted(everything) == list(range(12)) and {one.place for one in first.candidates} <= set(range(6))
    worst_kept = min(one.episode_return for one in second.candidates)
    left = [one for place, one in everything.items() if place not in second.rows]
    assert all(one.trajectory.episode_return <= worst_kept for one in left) and len(left) == 6
    for place, rows in second.rows.items():
        said = [token for action in everything[place].actions for token in action.token_ids or ()]
        assert [token for row in rows for token in row["labels"] if token != IGNORED] == said
        assert rows == rows_of(everything[place])
        for row in rows:
            assert all(label in (IGNORED, token) for label, token in zip(row["labels"], row["input_ids"], strict=True))
    assert logged(made, KEPT) == [3, 6]
    expected = sum(one.episode_return for one in first.candidates) / 3
    assert logged(made, KEPT_RETURN)[0] == pytest.approx(expected)


def test_a_batch_has_its_share_of_offline_rows(tmp_path: Path) -> None:
    rows = build_dataset(maze_episodes("maze", 2), Renderer(TOKENIZER, load_task("maze").spec, max_length=160))
    made = trainer(tmp_path, bc_dataset=rows, offline_share=0.25)
    candidates = [Candidate(0, "a", 0.0, True, {}, 1)]
    own = {"input_ids": [1, 2, 3], "labels": [IGNORED, IGNORED, 3]}
    offline = {tuple(row["input_ids"]) for row in rows}
    batches = list(made.round_batches(Kept(candidates, {0: [own]}), 0, 0))
    assert len(batches) == 3
    for batch in batches:
        texts = [
            tuple(ids[mask.bool()].tolist())
            for ids, mask in zip(*(batch[name] for name in ("input_ids", "attention_mask")), strict=True)
        ]
        assert texts.count((1, 2, 3)) == 3 and len([text for text in texts if text in offline]) == 1
    with pytest.raises(ValueError, match="there is no dataset"):
        trainer(tmp_path, offline_share=0.5)


def test_a_run_stopped_in_mid_round_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Step 5 is in the second round, whose rule chose from both rounds: both are read, neither is played."""
    options = {"buffer_rounds": 2, "save_strategy": "steps", "save_steps": 5}
    made = train(tmp_path, **options)
    journals = sorted((tmp_path / "rounds").iterdir())
    before = [path.stat().st_mtime_ns for path in journals]
    resumed = train(tmp_path, resume=str(tmp_path / "checkpoint-5"), **options)
    assert torch.equal(weights(made), weights(resumed))
    assert [path.stat().st_mtime_ns for path in journals] == before
    journals[0].unlink()
    with pytest.raises(FileNotFoundError, match="that round's episodes, is gone"):
        train(tmp_path, resume=str(tmp_path / "checkpoint-5"), **options)


def test_accumulation_does_not_change_the_result(tmp_path: Path) -> None:
    one, parts = (train(tmp_path / str(n), "maze_po", gradient_accumulation_steps=n, rounds=1) for n in (1, 3))
    assert torch.allclose(weights(one), weights(parts), atol=5e-5), "steps are of 1e-3"


SCRIPT = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import torch
from test_online_bc import train, weights
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if os.fork() else "1"
made = train(Path({folder!r}), rollouts=5)
if made.is_world_process_zero():
    torch.save((weights(made), made.state.log_history), {result!r})
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)
"""


def test_two_processes_are_one(tmp_path: Path) -> None:
    """Five episodes, so that one process plays three and one two; the rule looks at all five."""
    one = train(tmp_path / "one", rollouts=5)
    result, script = tmp_path / "two.pt", tmp_path / "two.py"
    values = {"tests": str(Path(__file__).parent), "folder": str(tmp_path / "two"), "result": str(result)}
    script.write_text(SCRIPT.format(**values))
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environment["MASTER_PORT"] = str(free.getsockname()[1])
    environment |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**os.environ, **environment}, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    two, log = torch.load(result, weights_only=False)
    assert torch.allclose(weights(one), two, atol=1e-5)
    for name in ("rollout/return", KEPT, KEPT_RETURN, "loss"):
        assert logged(one, name) == pytest.approx([entry[name] for entry in log if name in entry], abs=1e-4), name


def run(start: Path, **options: Any) -> OnlineBCRun:
    small = {"rounds": 2, "rollouts": 4, "slots": 4, "steps_per_round": 2, "batch_size": 4, "response_length": 3}
    return OnlineBCRun("maze", str(start), **{**small, "filter": "top-all:50", "max_episode_tokens": 6, **options})


def test_from_a_policy_to_a_saved_one(first_policy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "online-bc"
    settings = run(first_policy, lora_rank=2, lr=1e-2, eval_rounds=1, eval_episodes=2)
    result = train_online_bc(settings, folder)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["transcripts"]
    record = read_record(folder)
    assert record is not None and (record.algorithm, record.filter) == ("online_bc", "top-all:50")
    assert record.training["env_steps"] == 16 and record.training["rounds"] == 2
    policy, first = (load_policy(str(place), task="maze", device="cpu") for place in (folder, first_policy))
    assert policy.model.state_dict().keys() == first.model.state_dict().keys(), "adapters are merged"
    assert not torch.equal(*(p.model.transformer.h[0].mlp.c_fc.weight for p in (policy, first)))
    card = (folder / "README.md").read_text()
    assert "imitates the best of them" in card and "--filter top-all:50" in card and "`top-all:50` kept" in card
    log = json.loads((folder / "training_log.json").read_text())
    assert sum(KEPT in entry for entry in log) == 2 and sum("eval_return" in entry for entry in log) == 2
    again = train_online_bc(settings, folder)
    assert again.seconds < result.seconds and again.loss == result.loss


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"filter": "best"}, "unknown filter 'best'"), ({"init": "tiny"}, "random weights"),
     ({"offline_share": 0.5}, "needs both"), ({"lr": 0}, "lr is 0; it must be above 0"),
     ({"buffer_rounds": -1}, "buffer_rounds is -1; allowed are 0"), ({"rollouts": 0}, "rollouts is 0; it must be")],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(
    first_policy: Path, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:  # fmt: skip
    with pytest.raises(ValueError, match=words):
        train_online_bc(run(first_policy)._replace(**settings), tmp_path / "run")


def test_a_rule_that_leaves_nothing_says_what_to_do(first_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"round 0: none of the 4 episodes is a success.*buffer_rounds"):
        train_online_bc(run(first_policy, filter="success"), tmp_path / "run")
