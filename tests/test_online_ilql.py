"""Online ILQL: transitions of sampled ids, what batches are drawn from, what must not change the result."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import test_ppo
import torch
from test_ilql import TOKENIZER, language_model, weights
from test_ppo import logged, played, player
from tiny_models import maze_episodes

from env_servers.play import Played
from env_servers.policy import Action
from env_servers.tasks import load_task
from trainers.ilql import ILQLModel
from trainers.load import load_policy
from trainers.online import OUT_OF_TOKENS
from trainers.online_ilql import OFFLINE, OWN, Buffer, OnlineILQLConfig, OnlineILQLTrainer, fit_v, token_sequences
from trainers.online_ilql_training import OnlineILQLRun, train_online_ilql
from trainers.runs import read_record
from trainers.tokens import Renderer, encode
from trainers.transitions import Discounting, build_transitions, to_transition_rows
from trainers.value_policy import ValuePolicy
from trainers.values import HeadSettings, trunk_of

torch.set_num_threads(1)
first_policy = test_ppo.start  # a fixture


def renderer_of(task: str) -> Renderer:
    return Renderer(TOKENIZER, load_task(task).spec, max_length=160)


def offline_rows(task: str = "maze", episodes: int = 3) -> Any:
    return build_transitions(maze_episodes(task, episodes), renderer_of(task), Discounting(0.9))


def trainer(folder: Path, task: str = "maze", **options: Any) -> OnlineILQLTrainer:
    """Short episodes of a model that knows nothing: two actions of three ids."""
    values: dict[str, Any] = {
        "rounds": 2, "rollouts": 4, "slots": 3, "steps_per_round": 3, "batch_size": 6, "learning_rate": 1e-3,
        "response_length": 3, "max_episode_tokens": 6, "gamma": 0.9, "logging_steps": 3, "beta": 2.0,
        "save_strategy": "no", "seed": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True, **options,
    }  # fmt: skip
    arguments, behavior = OnlineILQLConfig(output_dir=str(folder), **values), language_model()
    torch.manual_seed(3)
    model = ILQLModel(trunk_of(language_model()), HeadSettings())
    return OnlineILQLTrainer(
        model, arguments, task, TOKENIZER, behavior=behavior, offline=offline_rows(task), renderer=renderer_of(task)
    )


def train(folder: Path, task: str = "maze", *, resume: str | None = None, **options: Any) -> OnlineILQLTrainer:
    made = trainer(folder, task, **options)
    made.train(resume_from_checkpoint=resume)
    return made


@pytest.mark.parametrize("task", ["maze", "maze_po"])
@pytest.mark.parametrize("end", ["terminated", "cut", "closed"])
def test_own_transitions_hold_the_very_ids_and_their_ends(task: str, end: str) -> None:
    """A terminated episode has no successor; a cut one has the next prompt; after `Failure` nothing is known."""
    ends: dict[str, dict[str, Any]] = {
        "terminated": {"terminated": True, "truncated": False, "end_reason": "goal"},
        "cut": {"terminated": False, "truncated": True, "end_reason": OUT_OF_TOKENS, "final_observation": "Where now?"},
        "closed": {"terminated": False, "truncated": True, "end_reason": "turn_limit", "final_observation": "Failure"},
    }
    one, policy = played(task, [-1.0, -4.0, 2.0], **ends[end]), player(task)
    found = token_sequences(one, policy)
    discounting = Discounting(0.5, "turn")
    rows = to_transition_rows(found, discounting)
    rewards = [reward for row in rows for reward in row["rewards"] if reward]
    assert rewards == ([-1.0, -4.0] if end == "closed" else [-1.0, -4.0, 2.0])
    assert rows[-1]["bootstrap"] is (end != "terminated")
    said = [token for action in one.actions for token in action.token_ids or ()]
    told = [row["input_ids"][place] for row in rows for place in row["places"]]
    assert told == (said[: len(told)] if end == "closed" else said)
    if end == "cut":
        assert found[-1].final_observation_ids == policy.final_prompt(one)


@pytest.mark.parametrize("task", ["maze", "maze_po"])
def test_own_transitions_are_the_dataset_s_where_the_ids_agree(task: str) -> None:
    """Episodes of the data, as if a policy had sampled the very ids that their texts are encoded as."""
    policy, discounting = player(task), Discounting(0.5, "turn")
    for episode in maze_episodes(task, 4):
        expected = encode(episode, policy.renderer)
        actions = []
        for sequence in expected:
            acts = sequence.action_mask
            begins = [n for n, act in enumerate(acts) if act and not acts[n - 1]]
            ends = [n + 1 for n, act in enumerate(acts) if act and (n + 1 == len(acts) or not acts[n + 1])]
            for first, end in zip(begins, ends, strict=True):
                prompt, ids = tuple(sequence.input_ids[:first]), tuple(sequence.input_ids[first:end])
                actions.append(Action("", prompt, ids, (0.0,) * len(ids), "stop"))
        one = Played(episode, tuple(actions), (True,) * len(actions))
        found = to_transition_rows(token_sequences(one, policy), discounting)
        assert found == to_transition_rows(expected, discounting)


def test_a_batch_has_its_share_of_own_rows(tmp_path: Path) -> None:
    """Of ten rows three tenths are own, whether rows are drawn or all distinct ones are there with their weight."""
    own = {"input_ids": [1, 2, 3], "places": [2], "rewards": [0.5], "discounts": [0.9], "returns": [0.5],
           "next_prompt": [], "bootstrap": False, "length": 3, "weight": 1.0}  # fmt: skip
    rows = [{**own, "rewards": [0.5 + number], "returns": [0.0]} for number in range(20)]
    for size, many in ((10, 20), (10, 1), (1000, 20)):
        made = trainer(tmp_path, batch_size=size, online_share=0.3)
        kept = rows[:many]
        batches = list(made.round_batches(Buffer({0: many}, {0: kept}), 0, 0))
        assert len(batches) == 3
        for batch in batches:
            mine = batch["tokens"] == 3
            mine &= (batch["rewards"] % 1 == 0.5) & (batch["discounts"] == torch.tensor(0.9))
            assert batch["weights"][mine].sum() == pytest.approx(0.3 * size)
            assert (int(mine.sum()) == many) == (many <= size)
        same = [torch.equal(batches[0]["tokens"], batch["tokens"]) for batch in batches[1:]]
        assert all(same) == (size == 1000), "nothing is drawn where all fits"
    made = trainer(tmp_path, batch_size=10, online_share=0.3)
    before = list(trainer(tmp_path, offline_steps=2).batches_before_rounds())
    assert len(before) == 2 and all((batch["rewards"] != 0.5).all() for batch in before)
    nothing = list(made.round_batches(Buffer({7: 0}, {7: []}), 0, 2))
    assert len(nothing) == 1, "without own rows all are offline"


@pytest.mark.parametrize("size", [6, 1000])
def test_a_step_weighs_as_many_rows_as_a_batch_has(tmp_path: Path, size: int) -> None:
    """A batch of all distinct rows weighs what one that is drawn does in the mean."""
    made = trainer(tmp_path, batch_size=size, online_share=0.0)
    [first, *_] = made.round_batches(made.play_round(0), 0, 0)
    tokens = [len(row["places"]) for row in made._offline]
    mean = sum(tokens) / len(tokens)
    if size == 1000:
        assert first["weights"].sum() == pytest.approx(size * mean)
    else:
        assert min(tokens) * size <= first["weights"].sum() <= max(tokens) * size


def test_a_run_logs_its_buffer_and_keeps_to_its_last_rounds(tmp_path: Path) -> None:
    made = train(tmp_path, rounds=3, buffer_rounds=2, offline_steps=2)
    assert logged(made, "rollout/env_steps") == [8.0] * 3 and made.state.global_step == 2 + 3 * 3
    assert logged(made, OFFLINE) == [float(len(made._offline))] * 3
    assert sorted(made._own) == [1, 2]
    first, both, last = logged(made, OWN)
    assert first == 8 and both == last == 16, "each of two actions is a row; the first round has left"
    assert {"losses/q", "losses/v", "losses/cql"} <= made.state.log_history[-2].keys() | set().union(
        *(entry.keys() for entry in made.state.log_history)
    )


def test_the_values_of_now_play(tmp_path: Path) -> None:
    """Values that want one token get it; the behaviour policy, without them, says others as well."""
    made = trainer(tmp_path, beta=1.0)
    wanted = 5
    with torch.no_grad():
        for head in (made.model.q1, made.model.q2):
            for parameter in head.parameters():
                parameter.zero_()
            list(head.parameters())[-1][wanted] = 100.0
    kept = made.play(0).played
    assert {token for one in kept for action in one.actions for token in action.token_ids or ()} == {wanted}


def test_v_is_learned_of_q_that_is_there() -> None:
    """Q is 2 everywhere, so V has to become 2; nothing else moves."""
    torch.manual_seed(0)
    model = ILQLModel(trunk_of(language_model()), HeadSettings(linear=True), tau=0.7)
    with torch.no_grad():
        for head in (model.slow_head1, model.slow_head2):
            for name, parameter in head.named_parameters():
                parameter.fill_(2.0 if name.endswith("bias") else 0.0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows = offline_rows()
    first = fit_v(model, rows, 0, steps=1, batch_size=8, seed=0)
    last = fit_v(model, rows, 0, steps=600, batch_size=8, seed=0)
    assert first > 1 and last < 0.01
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved and all(name.startswith("v.") for name in moved)


def test_a_run_stopped_in_mid_round_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Step 6 is in the second round, after two offline steps; both rounds' episodes are read, none is played."""
    options = {"offline_steps": 2, "save_strategy": "steps", "save_steps": 6}
    made = train(tmp_path, **options)
    journals = sorted((tmp_path / "rounds").iterdir())
    before = [path.stat().st_mtime_ns for path in journals]
    resumed = train(tmp_path, resume=str(tmp_path / "checkpoint-6"), **options)
    assert torch.equal(weights(made), weights(resumed)) and len(journals) == 2
    assert [path.stat().st_mtime_ns for path in journals] == before
    journals[0].unlink()
    with pytest.raises(FileNotFoundError, match="that round's episodes, is gone"):
        train(tmp_path, resume=str(tmp_path / "checkpoint-6"), **options)


def test_accumulation_does_not_change_the_result(tmp_path: Path) -> None:
    one, parts = (train(tmp_path / str(n), "maze_po", gradient_accumulation_steps=n, rounds=1) for n in (1, 3))
    assert torch.allclose(weights(one), weights(parts), atol=5e-5), "steps are of 1e-3"


SCRIPT = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import torch
from test_online_ilql import train, weights
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if os.fork() else "1"
made = train(Path({folder!r}), rollouts=5, batch_size={size})
if made.is_world_process_zero():
    torch.save((weights(made), made.state.log_history), {result!r})
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)
"""


@pytest.mark.parametrize("size", [6, 1000])
def test_two_processes_are_one(tmp_path: Path, size: int) -> None:
    """Five episodes, so that one process plays three and one two. Rows are drawn, or all distinct ones are there."""
    one = train(tmp_path / "one", rollouts=5, batch_size=size)
    result, script = tmp_path / "two.pt", tmp_path / "two.py"
    values: dict[str, Any] = {
        "tests": str(Path(__file__).parent),
        "folder": str(tmp_path / "two"),
        "result": str(result),
        "size": size,
    }
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
    for name in ("rollout/return", OWN, "loss", "losses/q", "values/v"):
        assert logged(one, name) == pytest.approx([entry[name] for entry in log if name in entry], abs=1e-4), name


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hub_datasets.build import build
    from hub_datasets.plan import make_plan

    folder = tmp_path_factory.mktemp("data") / "maze"
    build(make_plan("maze", policy="behavior", episodes={"train": 4, "validation": 2}), folder, workers=1)
    return folder


def run(start: Path, data: Path, **options: Any) -> OnlineILQLRun:
    small = {"rounds": 2, "rollouts": 4, "slots": 4, "steps_per_round": 2, "batch_size": 4, "response_length": 3}
    return OnlineILQLRun("maze", str(data), None, str(start), **{**small, "max_episode_tokens": 6, **options})


def test_from_a_policy_to_a_saved_one_and_on(first_policy: Path, data: Path, tmp_path: Path) -> None:
    """The second run goes on from the values of the first: before its first step it plays as that one does."""
    folder = tmp_path / "online-ilql"
    settings = run(first_policy, data, offline_steps=2, lr=1e-2, eval_rounds=1, eval_episodes=2, q_vocab="dataset")
    result = train_online_ilql(settings, folder)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["transcripts"]
    record = read_record(folder)
    assert record is not None and (record.algorithm, record.kind) == ("online_ilql", "values")
    assert record.training["env_steps"] == 16 and record.training["steps"] == 6
    card = (folder / "README.md").read_text()
    assert "and on its own episodes" in card and "--online-share 0.5" in card and "--offline-steps 2" in card
    log = json.loads((folder / "training_log.json").read_text())
    assert sum(OWN in entry for entry in log) == 2
    again = train_online_ilql(settings, folder)
    assert again.seconds < result.seconds and again.loss == result.loss

    on = train_online_ilql(run(folder, data, rounds=1, lr=1e-12, beta=2.0), tmp_path / "on")
    policy, first = (load_policy(str(place), task="maze", device="cpu") for place in (on.folder, folder))
    assert isinstance(policy, ValuePolicy) and isinstance(first, ValuePolicy)
    assert policy.beta == 2.0 and policy.values.settings == first.values.settings
    for name, tensor in first.values.acting_state().items():
        assert torch.allclose(policy.values.acting_state()[name], tensor, atol=1e-6), name


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"tau": 1.0}, "tau is 1.0; allowed are numbers between 0 and 1"), ({"init": "tiny"}, "random weights"),
     ({"online_share": 1.5}, "online_share is 1.5; allowed are numbers from 0 to 1"), ({"lr": 0}, "lr is 0"),
     ({"q_vocab": "some"}, "q_vocab is 'some'"), ({"trunk": "gpt2"}, "trunk is 'gpt2'"),
     ({"buffer_rounds": -1}, "buffer_rounds is -1; allowed are 0"), ({"gamma": 2.0}, "gamma is 2.0")],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(
    first_policy: Path, data: Path, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        train_online_ilql(run(first_policy, data)._replace(**settings), tmp_path / "run")
