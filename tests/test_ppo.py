"""PPO as a trainer: its rows and advantages, what must not change the result, alarms, and the whole way."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from serving import lmrl_serve
from test_ilql import TOKENIZER, language_model, weights
from tiny_models import episode, maze_episodes

from env_servers.play import Played
from env_servers.policy import Action
from env_servers.tasks import load_task
from trainers import online
from trainers.actor_critic import ActorCritic, LossSettings
from trainers.adapters import LoraSettings
from trainers.alarms import Limits, TrainingCollapsed, alarm_of_round, alarm_of_update
from trainers.load import PolicyRecord, load_policy, save_policy
from trainers.online import OUT_OF_TOKENS, OnlinePolicy
from trainers.policy import Sampling
from trainers.ppo import PPOConfig, PPOTrainer
from trainers.ppo_rows import RoundRows, Row, advantages_of, episode_slices, load_rows, make_batch, rows_of
from trainers.ppo_training import PPORun, train_ppo
from trainers.runs import read_record
from trainers.sequences import build_dataset
from trainers.tokens import Renderer
from trainers.values import HeadSettings

torch.set_num_threads(1)


# Rows and advantages


@functools.cache
def player(task: str) -> OnlinePolicy:
    spec = load_task(task).spec
    return OnlinePolicy(
        language_model(), TOKENIZER, spec, name="p", sampling=Sampling(max_new_tokens=3), max_length=160
    )


def played(task: str, rewards: list[float], **end: Any) -> Played:
    """An episode as a policy of that task would have made it, in actions of two ids; the last was cut to one."""
    policy, history, actions = player(task), list[tuple[str, str, float]](), list[Action]()
    before: list[int] = []
    for number, reward in enumerate(rewards):
        observation = f"There is a wall {number}."
        prompt = None
        if before:
            prompt = policy.renderer.continued_ids(before, number, observation)
        prompt = prompt or policy.renderer.prompt_ids([], observation)
        ids = [50 + number, *TOKENIZER.encode("\n")][: 1 if number == len(rewards) - 1 else 2]
        before = [*prompt, *ids]
        actions.append(Action(chr(97 + number), tuple(prompt), tuple(ids), (-0.5,) * len(ids), "stop"))
        history.append((observation, chr(97 + number), reward))
    return Played(episode(task, history, **end), tuple(actions), (True,) * len(actions))


ENDS = {
    "goal": {"terminated": True, "truncated": False, "end_reason": "goal"},
    "turn_limit": {"end_reason": "turn_limit"},
    "budget": {"end_reason": OUT_OF_TOKENS},
}


@pytest.mark.parametrize(("task", "chunks"), [("maze", 3), ("maze_po", 1)])
def test_rows_hold_the_very_ids_and_only_a_budget_s_cut_is_bootstrapped(task: str, chunks: int) -> None:
    for name, end in ENDS.items():
        one = played(task, [-1.0, -4.0, -1.0], **end)
        rows = rows_of(one, player(task))
        tokens = [row.input_ids[place + 1] for row in rows for place in row.places]
        assert tokens == [token for action in one.actions for token in action.token_ids or ()]
        assert [reward for row in rows for reward in row.rewards] == [0.0, -1.0, 0.0, -4.0, -1.0]
        assert [end for row in rows for end in row.ends] == [False, True, False, True, True]
        assert [row.last for row in rows] == [False] * (len(rows) - 1) + [True]
        assert list(episode_slices(rows)) == [slice(0, 5)]
        states = [row.input_ids[: row.next_state + 1] for row in rows if row.next_state is not None]
        if name == "budget":
            assert states == [player(task).final_prompt(one)] and states[0] is not None
            assert len(rows) == chunks + (task == "maze"), "the newest observation is a row of its own"
        else:
            assert not states and len(rows) == chunks


def test_advantages_flow_through_all_chunks_of_an_episode() -> None:
    """Two episodes, of three chunks and of one; as the sum over later tokens, with the value behind a cut."""
    rows = [
        Row(0, [1, 2, 3], [0, 1], [0.0, -1.0], [False, True], [0.0, 0.0]),
        Row(0, [1, 4], [0], [-4.0], [True], [0.0]),
        Row(0, [1, 5, 6], [0, 1], [0.0, -1.0], [False, True], [0.0, 0.0], last=True),
        Row(1, [1, 7], [0], [2.0], [True], [0.0], last=True, next_state=1),
    ]
    rewards = torch.tensor([r for row in rows for r in row.rewards])
    values = torch.tensor([0.5, -1.0, 2.0, 0.3, 0.1, 1.0])
    for per_turn in (False, True):
        gammas = [1.0, 0.9, 0.9, 1.0, 0.9] if per_turn else [0.9] * 5
        lams = [1.0, 0.8, 0.8, 1.0, 0.8] if per_turn else [0.8] * 5
        after = [-1.0, 2.0, 0.3, 0.1, 0.0]
        errors = [rewards[t].item() + gammas[t] * after[t] - values[t].item() for t in range(5)]
        expected = [
            sum(math.prod(gammas[i] * lams[i] for i in range(t, u)) * errors[u] for u in range(t, 5)) for t in range(5)
        ]
        expected.append(2.0 + 0.9 * 3.0 - 1.0)
        found = advantages_of(rows, rewards, values, torch.tensor([0.0, 3.0]), gamma=0.9, lam=0.8, per_turn=per_turn)
        assert found.advantages.tolist() == pytest.approx(expected, abs=1e-5)
        assert torch.allclose(found.returns, found.advantages + values, atol=1e-6)


def round_rows(episodes: list[int], counts: dict[int, int]) -> RoundRows:
    rows = [Row(e, [e, n], [0], [0.0], [True], [0.0]) for e in episodes for n in range(counts[e])]
    numbers = torch.arange(float(len(rows)))
    return RoundRows(rows, counts, numbers, numbers + 100, numbers + 200, numbers + 300)


def test_minibatches_are_the_same_for_any_number_of_processes() -> None:
    counts = {7: 3, 4: 1, 9: 5, 5: 2}

    def names(rows: RoundRows) -> list[list[tuple[int, int]]]:
        return [
            sorted((rows.rows[n].episode, rows.rows[n].input_ids[1]) for n in mine) for mine in rows.minibatches(3, 1)
        ]

    whole = names(round_rows([4, 5, 7, 9], counts))
    drawn = [name for mini in whole for name in mini]
    assert sorted(map(len, whole)) == [3, 4, 4] and drawn != sorted(drawn)
    assert len(set(drawn)) == 11, "each row once"
    parts = [names(round_rows(mine, counts)) for mine in ([4, 9], [5, 7])]
    assert [sorted(one + other) for one, other in zip(*parts, strict=True)] == whole


def test_a_batch_has_its_rows_numbers_and_one_without_rows_weighs_nothing(tmp_path: Path) -> None:
    rows = round_rows([4, 5], {4: 1, 5: 2})
    rows.save(tmp_path / "round.pt")
    batch = rows.batch([2, 0], pad_id=0)
    assert batch["old_logprobs"].tolist() == [2, 0] and batch["returns"].tolist() == [302, 300]
    assert batch["tokens"].tolist() == [1, 0] and batch["weights"].tolist() == [1, 1]
    kept = load_rows(tmp_path / "round.pt")
    assert (kept.rows, kept.counts) == (rows.rows, rows.counts) and torch.equal(kept.returns, rows.returns)
    empty = rows.batch([], pad_id=0)
    assert empty["weights"].tolist() == [0] and empty.keys() == batch.keys()


# The model


def actor(kind: str = "gpt2", **options: Any) -> ActorCritic:
    model = language_model(kind)
    torch.manual_seed(1)
    made = ActorCritic(model, HeadSettings(linear=True, bias=-1.0), LossSettings(), **options)
    torch.nn.init.normal_(made.v.output.weight)
    return made


SOME = [
    Row(0, [5, 6, 7, 8, 9], [1, 3], [0.0, 1.0], [True, True], [0.0, 0.0]),
    Row(1, [9, 8, 7], [1], [0.0], [True], [0.0], last=True, next_state=2),
]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_what_is_thought_of_tokens_against_the_plain_model(kind: str) -> None:
    """Row by row, without padding, at a temperature of 2."""
    model = actor(kind, temperature=2.0)
    batch = make_batch(SOME, 0, states=True)
    found = model(**batch.inputs)
    assert batch.acts.tolist() == [True, True, True, False]
    logprobs, entropies, values = [], [], []
    for row in SOME:
        output = model.model(torch.tensor([row.input_ids]), output_hidden_states=True)
        each = (output.logits[0] / 2).log_softmax(-1)
        logprobs += [each[place, row.input_ids[place + 1]].item() for place in row.places]
        entropies += [-(each[place].exp() * each[place]).sum().item() for place in row.places]
        of_row = [*row.places, *([] if row.next_state is None else [row.next_state])]
        values += [model.v(output.hidden_states[-1][0, place]).item() for place in of_row]
    assert found["logprobs"][batch.acts].tolist() == pytest.approx(logprobs, abs=1e-5)
    assert found["ref_logprobs"][batch.acts].tolist() == pytest.approx(logprobs, abs=1e-5)
    assert found["entropies"][batch.acts].tolist() == pytest.approx(entropies, abs=1e-5)
    assert found["values"].tolist() == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("lora", [None, LoraSettings(2, 4.0)])
def test_the_reference_stays_while_the_policy_learns(lora: LoraSettings | None) -> None:
    """With adapters it is the same model with these off, and there is no copy; at the end they are added in."""
    model = actor(lora=lora)
    batch = make_batch(SOME, 0).inputs
    first = {name: tensor.clone() for name, tensor in model(**batch).items()}
    known = {"old_logprobs": first["logprobs"], "old_values": first["values"], "weights": torch.ones(3)}
    known |= {"advantages": torch.tensor([1.0, -1.0, 1.0]), "returns": torch.tensor([1.0, 2.0, 3.0])}
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert (model.reference is None) == (lora is not None)
    optimizer = torch.optim.SGD(learned, lr=0.05)
    outputs = model(**batch, **known)
    model.losses = LossSettings(cliprange_value=0)
    far = model(**batch, **{**known, "old_values": first["values"] + 100})
    assert far["losses/value"].item() == pytest.approx(outputs["losses/value"].item()), "0 clips no values"
    assert outputs["policy/ratio"].item() == pytest.approx(3.0) and outputs["policy/approx_kl"].item() == 0
    for _ in range(2):  # of adapters, the first step changes but one of their two factors
        model(**batch, **known)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    then = model(**batch)
    assert torch.allclose(then["ref_logprobs"], first["ref_logprobs"], atol=1e-6)
    change = then["logprobs"] - first["logprobs"]
    assert (change * known["advantages"]).sum() > 0.01, "what turned out well is more likely"
    plain = language_model().eval()
    plain.load_state_dict(model.policy_state())
    ids = torch.tensor([SOME[0].input_ids])
    assert plain(ids).logits.log_softmax(-1)[0, 1, 7].item() == pytest.approx(then["logprobs"][0].item(), abs=1e-5)


# The trainer


def trainer(folder: Path, task: str = "maze", *, model: Any = None, **options: Any) -> PPOTrainer:
    """Short episodes of a model that knows nothing: two actions of three ids."""
    given = {name: options.pop(name) for name in ("bc_dataset", "peft_config") if name in options}
    values: dict[str, Any] = {
        "rounds": 2, "rollouts": 6, "slots": 3, "num_ppo_epochs": 2, "num_mini_batches": 2, "learning_rate": 1e-3,
        "response_length": 3, "max_episode_tokens": 6, "reward_scale": 0.1, "kl_coef": 0.1, "logging_steps": 4,
        "save_strategy": "no", "seed": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True, **options,
    }  # fmt: skip
    arguments = PPOConfig(output_dir=str(folder), **values)
    renderer = Renderer(TOKENIZER, load_task(task).spec, max_length=160)
    return PPOTrainer(
        model or language_model(), arguments, task, TOKENIZER, renderer=renderer, transcripts=folder / "read", **given
    )


def train(folder: Path, task: str = "maze", *, resume: str | None = None, **options: Any) -> PPOTrainer:
    made = trainer(folder, task, **options)
    made.train(resume_from_checkpoint=resume)
    return made


def logged(made: PPOTrainer, name: str) -> list[float]:
    return [entry[name] for entry in made.state.log_history if name in entry]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> PPOTrainer:
    return train(tmp_path_factory.mktemp("whole"), rounds=3, save_strategy="steps", save_steps=3, save_total_limit=2,
                 kl_target=0.01, kl_horizon=30)  # fmt: skip


def test_a_run_logs_what_it_does(whole: PPOTrainer) -> None:
    assert logged(whole, "rollout/env_steps") == [12.0] * 3 and logged(whole, "rollout/total_env_steps") == [12, 24, 36]
    assert max(logged(whole, "sampler/mismatch")) < 1e-5, "the pass that learns agrees with the sampler"
    kl = logged(whole, "objective/kl")
    assert kl[0] == pytest.approx(0, abs=1e-6) and kl[1] > 0 and logged(whole, "policy/approx_kl")[0] > 0
    expected = [0.1]
    for now in kl[:-1]:
        expected.append(expected[-1] * (1 + max(-0.2, min(0.2, now / 0.01 - 1)) * 6 / 30))
    assert logged(whole, "objective/kl_coef") == pytest.approx(expected)
    assert logged(whole, "rollout/cut_actions")[0] > 0 and logged(whole, "rollout/truncated") == [1.0] * 3
    read = (Path(str(whole.args.output_dir)) / "read" / "round-00002.txt").read_text()
    assert read.startswith("maze-ppo-round-2-train-0000012: return -8, token_budget") and "invalid" in read


def test_a_process_without_episodes_goes_on_with_the_others(whole: PPOTrainer) -> None:
    found = whole._assess([], {})
    assert [len(tensor) for tensor in (found.logprobs, found.values, *found.advantages)] == [0] * 4
    mine = RoundRows([], {3: 2}, found.logprobs, found.values, *found.advantages)
    assert mine.minibatches(2, seed=0) == [[], []] and not mine.batch([], 0)["weights"].any()


def test_a_run_stopped_in_mid_round_ends_with_the_same_weights(whole: PPOTrainer, tmp_path: Path) -> None:
    """Step 9 is the second of the third round; that round is read, not played. Older rounds are gone."""
    folder = Path(str(whole.args.output_dir))
    assert sorted(path.name for path in (folder / "rounds").iterdir()) == [
        f"0000{number}-0.{ending}" for number in (1, 2) for ending in ("jsonl", "pt")
    ], "the last checkpoint when the third round began was of step 6, in the second"
    resumed = train(folder, rounds=3, resume=str(folder / "checkpoint-9"), kl_target=0.01, kl_horizon=30)
    assert torch.equal(weights(whole), weights(resumed))
    assert logged(resumed, "objective/kl_coef") == logged(whole, "objective/kl_coef")
    (folder / "rounds" / "00002-0.pt").unlink()
    with pytest.raises(FileNotFoundError, match="from the middle of round 2"):
        train(folder, rounds=3, resume=str(folder / "checkpoint-9"))


def test_accumulation_does_not_change_the_result(tmp_path: Path) -> None:
    """Whole histories, so that rows are ragged; offline rows beside."""
    rows = build_dataset(maze_episodes("maze_po", 3), Renderer(TOKENIZER, load_task("maze_po").spec, max_length=160))
    options = {"rounds": 1, "rollouts": 5, "bc_dataset": rows, "bc_batch_size": 4, "max_episode_tokens": 12}
    one, parts = (train(tmp_path / str(n), "maze_po", gradient_accumulation_steps=n, **options) for n in (1, 3))
    assert torch.allclose(weights(one), weights(parts), atol=5e-5), "steps are of 1e-3"
    for name in ("losses/policy", "losses/value", "losses/bc", "policy/clipfrac"):
        assert logged(one, name) == pytest.approx(logged(parts, name), abs=1e-4), name
    assert logged(one, "losses/bc")[0] > 1


SCRIPT = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import torch
from test_ppo import logged, train, weights
# Two processes from one, since reading the packages is what takes long.
if os.fork():
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0"
else:
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = "1"
made = train(Path({folder!r}), rollouts=5)
if made.is_world_process_zero():
    torch.save((weights(made), made.state.log_history), {result!r})
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)
"""


def test_two_processes_are_one(tmp_path: Path) -> None:
    """Five episodes, so that one process plays three and one two."""
    one = train(tmp_path / "one", rollouts=5)
    result, script = tmp_path / "two.pt", tmp_path / "two.py"
    values = {"tests": str(Path(__file__).parent), "folder": str(tmp_path / "two"), "result": str(result)}
    script.write_text(SCRIPT.format(**values))
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
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
    for name in ("rollout/return", "objective/kl", "values/explained_variance", "loss", "policy/ratio"):
        assert logged(one, name) == pytest.approx([entry[name] for entry in log if name in entry], abs=1e-4), name


# Alarms


ROUND = {"objective/kl": 0.1, "objective/entropy": 0.5, "rollout/invalid": 0.02, "rollout/return": -40.0}
UPDATE = {"policy/approx_kl": 0.01, "policy/ratio": 1.0, "losses/value": 2.0}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"objective/kl": 6.0}, "6 nats per token away from its reference (limit 5)"),
        ({"objective/kl": math.nan}, "divergence from the reference is nan"),
        ({"objective/entropy": 1e-5, "rollout/return": -20.0}, None),
        ({"objective/entropy": 1e-5, "rollout/return": -90.0}, "nothing left to try: its entropy is 1e-05"),
        ({"objective/entropy": 4.55}, "says anything at all: its entropy is 4.55 of at most 4.61"),
        ({"rollout/invalid": 0.6}, "60% of its actions are invalid (limit 50%; 2% in the first round)"),
    ],
)
def test_alarms_of_a_round(changes: dict[str, float], told: str | None) -> None:
    found = alarm_of_round(ROUND | changes, ROUND, Limits(), 100)
    assert (found is None) if told is None else told in str(found)
    off = Limits(0, 0, 0, 0, 0)
    assert alarm_of_round(ROUND | changes, ROUND, off, 100) is None or "nan" in str(found)


def test_a_policy_that_was_no_better_at_first_sets_off_no_alarm() -> None:
    first = ROUND | {"rollout/invalid": 0.9, "objective/entropy": 4.58}
    assert alarm_of_round(first, first, Limits(), 100) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        (
            {"policy/approx_kl": 1.5, "policy/ratio": 3.25},
            "changed the policy by 1.5 nats per token (limit 1; mean ratio",
        ),
        ({"policy/approx_kl": math.inf}, "changed the policy by inf"),
        ({"losses/value": 25.0}, "value loss is 25, 12.5 times the first round's (limit 10 times)"),
    ],
)
def test_alarms_of_the_passes(changes: dict[str, float], told: str | None) -> None:
    found = alarm_of_update(UPDATE | changes, 2.0, Limits())
    assert (found is None) if told is None else told in str(found)
    assert alarm_of_update(UPDATE | {"losses/value": 25.0}, None, Limits()) is None, "the first round is the measure"


# From a policy to a saved one


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "policy"
    record = PolicyRecord(
        "bc", "maze", load_task("maze").spec.version, "plain", 0, 128, 8, {"source": None, "revision": None}
    )
    save_policy(folder, language_model(), TOKENIZER, record)
    return folder


def run(start: Path, **options: Any) -> PPORun:
    small = {"rounds": 2, "rollouts": 4, "slots": 4, "num_ppo_epochs": 1, "num_mini_batches": 2, "response_length": 3}
    return PPORun("maze", str(start), **{**small, "max_episode_tokens": 6, "reward_scale": 0.1, **options})


def test_from_a_policy_to_a_saved_one(start: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ppo"
    result = train_ppo(run(start, lora_rank=2, lr=1e-2), folder)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["transcripts"]
    record = read_record(folder)
    assert record is not None and record.algorithm == "ppo" and record.training["env_steps"] == 16
    assert record.base_model == {"source": "policy", "revision": None}
    policy = load_policy(str(folder), task="maze", device="cpu")
    first = load_policy(str(start), task="maze", device="cpu")
    assert policy.model.state_dict().keys() == first.model.state_dict().keys(), "adapters are merged"
    assert not torch.equal(*(p.model.transformer.h[0].mlp.c_fc.weight for p in (policy, first)))
    card = (folder / "README.md").read_text()
    assert "its own episodes" in card and "--rollouts 4" in card and "--lora-rank 2" in card
    log = json.loads((folder / "training_log.json").read_text())
    assert sum("rollout/return" in entry for entry in log) == 2
    again = train_ppo(run(start, lora_rank=2, lr=1e-2), folder)
    assert again.seconds < result.seconds and again.loss == result.loss


def test_an_alarm_stops_the_run_and_leaves_the_last_good_policy(start: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ppo"
    with pytest.raises(TrainingCollapsed, match=r"stopped .*last good policy, of step \d, is in .*last_good") as told:
        train_ppo(run(start, rounds=5, lr=1e-3, alarm_kl=0.003), folder)
    assert "nats per token away from its reference" in str(told.value)
    record = read_record(folder / "last_good")
    assert record is not None and record.training["steps"] == 2 * record.training["rounds"] > 0
    assert f"of step {record.training['steps']}," in str(told.value)
    assert load_policy(str(folder / "last_good"), task="maze", device="cpu").name
    assert not (folder / "policy.json").exists()


def test_an_alarm_before_any_checkpoint_leaves_the_first_policy(start: Path, tmp_path: Path) -> None:
    """So that `last_good` is there after every alarm."""
    for name, alarm in {"passes": {"alarm_ratio": 1e-9}, "playing": {"alarm_entropy": 1e-9, "alarm_kl": 1e-9}}.items():
        folder = tmp_path / name
        with pytest.raises(TrainingCollapsed, match=r"The last good policy, the one that it began with \(.*last_good$"):
            train_ppo(run(start, lr=1e-3, **alarm), folder)
        first, left = (load_policy(str(at), task="maze", device="cpu") for at in (start, folder / "last_good"))
        assert torch.equal(weights_of(first), weights_of(left))
        record = read_record(folder / "last_good")
        assert record is not None and (record.training["steps"], record.training["env_steps"]) == (0, 0)


def weights_of(policy: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()])


def test_adapters_begin_alike_wherever_the_seed_is_the_same(tmp_path: Path) -> None:
    """Whatever was drawn before; each process makes its own, and FSDP puts parts of all of them together."""
    made = []
    for seed in (1, 1, 2):
        torch.rand(3)
        one = trainer(tmp_path, peft_config=LoraSettings(2, 4.0), seed=seed)
        names = [name for name, _ in one.model.named_parameters() if "lora_A" in name]
        made.append(torch.cat([one.model.get_parameter(name).detach().flatten() for name in names]))
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_a_checkpoint_has_each_weight_once_and_no_reference(tmp_path: Path) -> None:
    """Also where the state is handed over, as DeepSpeed gathers it: tied weights twice, and the reference."""
    made = trainer(tmp_path)
    state = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    state["model.lm_head.weight"] = state["model.transformer.wte.weight"]
    assert any(name.startswith("reference.") for name in state)
    made._save(str(tmp_path / "own"))
    made._save(str(tmp_path / "given"), state_dict=state)
    own, given = (load_file(tmp_path / name / "model.safetensors") for name in ("own", "given"))
    assert own.keys() == given.keys() and all(torch.equal(own[name], given[name]) for name in own)
    assert not any(name.startswith("reference.") for name in own) and "v.output.weight" in own


def test_a_server_that_is_killed_costs_its_episodes_alone(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two, amid the second round: its episodes are played again on the other, to the result of a run without any."""
    many = {"rounds": 3, "rollouts": 8, "slots": 8, "max_episode_tokens": 30}
    train_ppo(run(start, **many), tmp_path / "here")
    lost, acts, act, play = list[int](), 0, OnlinePolicy.act, online.play

    def kill(self: OnlinePolicy, contexts: Any) -> Any:
        nonlocal acts
        acts += self.name.endswith("round-1")
        if acts == 3 and first.poll() is None:
            first.kill()
            first.wait()
        return act(self, contexts)

    def told(*args: Any, on_failure: Any, **options: Any) -> Any:
        return play(*args, on_failure=lambda one: (lost.append(one.start.index), on_failure(one)), **options)

    monkeypatch.setattr(OnlinePolicy, "act", kill)
    monkeypatch.setattr(online, "play", told)
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
    servers = [lmrl_serve(folder, "--tasks", "maze") for folder in folders]
    with servers[0] as (first, a), servers[1] as (second, b):
        train_ppo(run(start, **many), tmp_path / "served", env=f"{a},{b}")
        assert first.returncode == -signal.SIGKILL and second.poll() is None
    assert len(lost) == len(set(lost)) == 4 and set(lost) < set(range(8, 16)), "half of the round's, and each once"
    here, served = (json.loads((tmp_path / name / "training_log.json").read_text()) for name in ("here", "served"))
    for metric in ("rollout/return", "rollout/env_steps", "rollout/failed"):
        assert [e[metric] for e in served if metric in e] == [e[metric] for e in here if metric in e], metric
    assert [e["rollout/failed"] for e in served if "rollout/failed" in e] == [0, 0, 0]
    one, other = (load_policy(str(tmp_path / name), task="maze", device="cpu") for name in ("here", "served"))
    assert torch.allclose(weights_of(one), weights_of(other), atol=1e-5)


def test_settings_that_cannot_be_are_refused(start: Path, tmp_path: Path) -> None:
    for changes, told in [
        ({"init": "tiny"}, "init is tiny, random weights"),
        ({"lam": 1.5}, "lam is 1.5; allowed are numbers from 0 to 1"),
        ({"kl_estimator": "k2"}, "kl_estimator is 'k2'; allowed: k1, k3"),
        ({"rollouts": 0}, "rollouts is 0; it must be above 0"),
        ({"discount": "day"}, "discount is 'day'; allowed: token, turn"),
        ({"lora_alpha": 2.0}, "there is no lora_rank"),
    ]:
        with pytest.raises(ValueError, match=told):
            train_ppo(run(start)._replace(**changes), tmp_path / "run", overwrite=True)
