"""Episodes for TRL's GRPOTrainer: the ids and masks it is given, groups, failures, and the trainer itself at work."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tiny_models import chat_tokenizer, plain_tokenizer

from env_servers.play import episode_starts, play
from env_servers.task import Env, EpisodeError, Step
from env_servers.tasks import load_task, make_policy
from trainers.policy import Sampling
from trainers.rollouts import (
    RolloutPolicy,
    _playing_model,
    environment_factory_for,
    episode_rows,
    return_reward,
    rollout_func_for,
    sampled_sequences,
)
from trainers.scratch import new_model
from trainers.tokens import Renderer, encode

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
torch.set_num_threads(1)
TASK = "wordle"
SPEC = load_task(TASK).spec
PLAIN, CHAT = plain_tokenizer(), chat_tokenizer()
PAD_IS_END = plain_tokenizer()
PAD_IS_END.pad_token = PAD_IS_END.eos_token
QWEN = plain_tokenizer()
QWEN.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
QWEN.eos_token = "<|im_end|>"
QWEN.chat_template = files("trl").joinpath("chat_templates/qwen3.jinja").read_text()


class Letters(Env):
    """Three turns; each pays the number of letters in what was said. It keeps its transcript for the tests."""

    spec: ClassVar = SPEC

    def __init__(self) -> None:
        self.number = 0
        self.said: list[str] = []

    def _reset(self, rng: random.Random) -> str:
        self.heard, self.said = [f"Say something about the number {rng.randrange(10**6)}."], []
        return self.heard[0]

    def _step(self, action: str) -> Step:
        self.said.append(action)
        reward = sum(letter.isalpha() for letter in action)
        if len(self.said) == 3:
            return Step.end("Thanks.", reward, "solved", success=reward > 3)
        self.heard.append(f"More, after {len(self.said)}.")
        return Step.ongoing(self.heard[-1], reward)


class Maker:
    """An `env_maker` that keeps what it made; the n-th environment fails where `fails` says so."""

    def __init__(self, fails: Any = lambda number: False) -> None:
        self.made: list[Letters] = []
        self._fails = fails

    def __call__(self, task: str, env_kwargs: Mapping[str, Any]) -> Env:
        assert (task, env_kwargs) == (TASK, {})
        env = Letters()
        self.made.append(env)
        if self._fails(len(self.made) - 1):
            env._step = self._fail  # type: ignore[method-assign]
        return env

    @staticmethod
    def _fail(action: str) -> Step:
        raise EpisodeError("the server is gone")


def trainer(rollout: Any, folder: Path, *, tokenizer: Any = PLAIN, task: str = TASK, **options: Any) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    settings = {
        "per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 2, "max_steps": 2,
        "max_completion_length": 400, "learning_rate": 1e-2, "logging_steps": 1,
    }  # fmt: skip
    args = GRPOConfig(
        output_dir=str(folder), report_to=[], bf16=False, use_cpu=True, save_strategy="no", disable_tqdm=True,
        **{**settings, **options},
    )  # fmt: skip
    return GRPOTrainer(
        talker(tokenizer),
        reward_funcs=return_reward,
        args=args,
        train_dataset=Dataset.from_list(episode_rows(task, range(4))),
        processing_class=tokenizer,
        rollout_func=rollout,
    )


def talker(tokenizer: Any, end: str = "\n") -> Any:
    """A model with random weights that ends its words now and then."""
    model = new_model("tiny", tokenizer, 1024, seed=1)
    bias = torch.zeros(len(tokenizer))
    for word in (end, tokenizer.eos_token):
        [token] = tokenizer(word, add_special_tokens=False)["input_ids"]
        bias[token] = 4.0
    model.lm_head.bias = torch.nn.Parameter(bias)
    return model


def runs(ids: list[int], mask: list[int]) -> list[tuple[int, list[int]]]:
    """The ids in runs of equal mask, with that mask."""
    assert len(ids) == len(mask)
    groups = itertools.groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
    return [(acts, [token for token, _ in run]) for acts, run in groups]


def test_two_steps_of_the_real_trainer(tmp_path: Path) -> None:
    maker, rounds = Maker(), []
    inner = rollout_func_for(TASK, env_maker=maker, max_new_tokens=6)

    def rollout(prompts: list[Any], training: Any) -> Any:
        before = {name: weights.clone() for name, weights in training.model.state_dict().items()}
        given = inner(prompts, training)
        assert training.model.training
        rounds.append((prompts, given, before))
        return given

    training = trainer(rollout, tmp_path)
    first = [parameter.detach().clone() for parameter in training.model.parameters()]
    training.train()
    assert any(not torch.equal(a, b) for a, b in zip(first, training.model.parameters(), strict=True))
    assert len(rounds) == 2
    renderer, made, model = Renderer(PLAIN, SPEC), iter(maker.made), talker(PLAIN)
    for prompts, given, weights in rounds:
        assert [len(values) for values in given.values()] == [8] * len(given)
        by_words = {tuple(env.said): env for env in itertools.islice(made, 8)}
        assert len(by_words) == 8
        model.load_state_dict(weights)
        groups: dict[str, set[str]] = {}
        for row, prompt in enumerate(prompts):
            ids, mask = given["completion_ids"][row], given["env_mask"][row]
            said = [part for acts, part in runs(ids, mask) if acts]
            env = by_words[tuple(renderer.action_text(part) for part in said)]
            assert given["prompt_ids"][row] == renderer.prompt_ids([], env.heard[0])
            groups.setdefault(prompt, set()).add(env.heard[0])
            # The reward functions are given the rewards that were paid for these words, where they were earned.
            rewards = [float(sum(letter.isalpha() for letter in words)) for words in env.said]
            assert given["turn_rewards"][row] == rewards and given["episode_return"][row] == sum(rewards)
            ends = [n for n, acts in enumerate(mask) if acts and (n + 1 == len(mask) or not mask[n + 1])]
            assert [given["token_rewards"][row][end] for end in ends] == rewards
            assert sum(given["token_rewards"][row]) == sum(rewards)
            with torch.no_grad():
                whole = torch.tensor([given["prompt_ids"][row] + ids])
                logprobs = model(whole).logits[0].double().log_softmax(-1)[-len(ids) - 1 : -1]
            own = logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0] * torch.tensor(mask)
            assert given["logprobs"][row] == pytest.approx(own.tolist(), abs=1e-4)
        # A group has one seed, so one first observation, about which different things were said.
        assert [len(observations) for observations in groups.values()] == [1, 1]
    mean = sum(sum(given["episode_return"]) for _, given, _ in rounds) / 16
    logged = [entry["rewards/return_reward/mean"] for entry in training.state.log_history[:2]]
    assert sum(logged) / 2 == pytest.approx(mean)


class Stub:
    """What `rollout_func` uses of a trainer, without the trainer."""

    def __init__(self, tokenizer: Any, end: str = "\n", **args: Any) -> None:
        self.model_wrapped = talker(tokenizer, end)
        self.accelerator, self.processing_class = Accelerator(cpu=True), tokenizer
        self.eos_token_ids, self.state = [tokenizer.eos_token_id], SimpleNamespace(global_step=0)
        settings = {
            "seed": 3, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_completion_length": 400, "use_vllm": False,
            "min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None, "mask_truncated_completions": False,
            "ds3_gather_for_generation": True, "gradient_checkpointing_kwargs": None,
        }  # fmt: skip
        self.args = SimpleNamespace(**{**settings, **args})


@pytest.mark.parametrize(
    ("tokenizer", "rendering", "end", "between"),
    [(CHAT, "chat", "<|im_end|>", "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"),
     (PAD_IS_END, "plain", "\n", "{}\n")],
    ids=["chat", "pad is end"],
)  # fmt: skip
def test_masks_hold_exactly_what_was_said(tokenizer: Any, rendering: str, end: str, between: str) -> None:
    """With actions that the agent ended, that it ended by another token, and that the budget cut."""
    maker, renderer = Maker(), Renderer(tokenizer, SPEC, rendering)
    rollout = rollout_func_for(TASK, env_maker=maker, rendering=rendering, max_new_tokens=8)
    given = rollout(["wordle/train/5"] * 8, Stub(tokenizer, end))
    by_words = {tuple(env.said): env for env in maker.made}
    last_words = set()
    for row in range(8):
        prompt, parts = given["prompt_ids"][row], runs(given["completion_ids"][row], given["env_mask"][row])
        said = [part for acts, part in parts if acts]
        others = [tokenizer.decode(part) for acts, part in parts if not acts]
        env = by_words[tuple(renderer.action_text(part) for part in said)]
        assert prompt == renderer.prompt_ids([], env.heard[0]) and given["stretches"][row] == 1
        assert [acts for acts, _ in parts] == [1, 0, 1, 0, 1]
        for words, other, observation in zip(said, others, env.heard[1:], strict=False):
            ended = tokenizer.decode(words[-1:]) == end
            assert other == ("" if ended else end) + between.format(observation)
        for words in said:
            assert end not in tokenizer.decode(words[:-1]) and len(words) <= 8
            last = tokenizer.decode(words[-1:])
            last_words.add(last if last in (end, tokenizer.eos_token) else "cut")
    assert last_words == {end, tokenizer.eos_token, "cut"}


def test_what_was_sampled_is_never_tokenised_again() -> None:
    """A model with random weights spells nearly everything in a way of its own; the episode is one sequence still."""
    policy = RolloutPolicy(new_model("tiny", PLAIN, 512, seed=1), PLAIN, SPEC, name="own", sampling=Sampling())
    policy.begin(1)
    odd = 0
    for played in play(TASK, policy, episode_starts(TASK, "train", range(6)), env_maker=Maker()):
        (sequence,) = sampled_sequences(played)
        assert sequence.turns == [0, 1, 2]
        said = [part for acts, part in runs(sequence.input_ids, sequence.action_mask) if acts]
        assert said == [list(action.token_ids or ()) for action in played.actions]
        odd += encode(played.trajectory, policy.renderer)[0].input_ids != sequence.input_ids
    assert odd >= 5


def test_a_round_is_drawn_from_its_seed_whatever_the_slots() -> None:
    def texts(seed: int, slots: int) -> set[tuple[str, ...]]:
        policy = RolloutPolicy(new_model("tiny", PLAIN, 512, seed=1), PLAIN, SPEC, name="own", sampling=Sampling())
        policy.begin(seed)
        [start] = episode_starts(TASK, "train", [3])
        episodes = play(TASK, policy, [start] * 5, slots=slots, env_maker=Maker())
        return {tuple(turn.action for turn in played.trajectory.turns) for played in episodes}

    assert len(texts(1, 5)) == 5
    assert texts(1, 5) == texts(1, 2) != texts(2, 5)


def test_a_policy_without_a_past_gives_one_of_its_turns() -> None:
    maker, renderer = Maker(), Renderer(PLAIN, SPEC)
    given = rollout_func_for(TASK, env_maker=maker, memory=0, max_new_tokens=6)(["wordle/train/2"] * 12, Stub(PLAIN))
    assert given["stretches"] == given["num_turns"] == [3] * 12
    chosen = set()
    for row in range(12):
        heard = [renderer.prompt_ids([], text) for text in maker.made[0].heard]
        turn = heard.index(given["prompt_ids"][row])
        chosen.add(turn)
        assert set(given["env_mask"][row]) == {1}
        assert given["token_rewards"][row][-1] == given["turn_rewards"][row][turn]
        assert given["episode_return"][row] == sum(given["turn_rewards"][row])
        words = renderer.action_text(given["completion_ids"][row])
        assert words in {env.said[turn] for env in maker.made}
    assert chosen == {0, 1, 2}


def test_an_episode_may_fill_several_rows_each_with_another_turn() -> None:
    """Episodes have three turns: two rows show two of them, four rows all of them and one again."""
    for rows in (2, 4):
        rollout = rollout_func_for(TASK, env_maker=Maker(), memory=0, max_new_tokens=6, rows_per_episode=rows)
        given = rollout(["wordle/train/2"] * 12 + ["wordle/train/5"] * 4, Stub(PLAIN))
        for first in range(0, 16, rows):
            own = slice(first, first + rows)
            assert len({str(rewards) for rewards in given["turn_rewards"][own]}) == 1
            assert len({str(ids) for ids in given["prompt_ids"][own]}) == min(rows, 3)
        assert len(given["prompt_ids"]) == 16


@pytest.mark.parametrize(("names", "rows"), [([2, 2, 2, 5], 2), ([2, 2, 2], 2)])
def test_rows_of_an_episode_have_to_be_of_one_name(names: list[int], rows: int) -> None:
    rollout = rollout_func_for(TASK, env_maker=Maker(), memory=0, rows_per_episode=rows)
    with pytest.raises(ValueError, match="an episode fills 2 rows"):
        rollout([f"wordle/train/{number}" for number in names], Stub(PLAIN))
    with pytest.raises(ValueError, match="fills at least 1 row"):
        rollout_func_for(TASK, rows_per_episode=0)


def test_a_model_with_adapters_keeps_its_own_settings() -> None:
    stub = Stub(PLAIN)
    inside = stub.model_wrapped
    own = inside.generation_config.to_dict()
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    stub.model_wrapped = get_peft_model(inside, lora)
    given = rollout_func_for(TASK, env_maker=Maker(), max_new_tokens=4)(["wordle/train/1"] * 2, stub)
    assert given["num_turns"] == [3, 3]
    assert stub.model_wrapped.generation_config.to_dict() == own == inside.generation_config.to_dict()


def test_an_episode_is_cut_before_it_outgrows_the_completion() -> None:
    stub = Stub(PLAIN, max_completion_length=24)
    given = rollout_func_for(TASK, env_maker=Maker(), max_new_tokens=5)(["wordle/train/0"] * 6, stub)
    assert all(len(ids) <= 24 for ids in given["completion_ids"])
    assert given["end_reason"] == ["completion_limit"] * 6 and given["terminated"] == [False] * 6
    longer = rollout_func_for(TASK, env_maker=Maker(), max_new_tokens=5)(["wordle/train/0"] * 6, Stub(PLAIN))
    assert max(map(len, longer["completion_ids"])) > 24 and longer["end_reason"] == ["solved"] * 6


def test_a_context_that_is_full_begins_a_new_stretch() -> None:
    rollout = rollout_func_for(TASK, env_maker=Maker(), max_length=60, max_new_tokens=8)
    given = rollout(["wordle/train/0"] * 8, Stub(PLAIN))
    assert max(given["stretches"]) > 1 and given["num_turns"] == [3] * 8
    assert all(
        len(prompt) + len(ids) <= 60 for prompt, ids in zip(given["prompt_ids"], given["completion_ids"], strict=True)
    )


def test_failed_episodes_are_played_again_and_then_left_out(tmp_path: Path) -> None:
    again = Maker(fails=lambda number: number < 6)
    given = rollout_func_for(TASK, env_maker=again)(["wordle/train/0"] * 8, Stub(PLAIN))
    assert len(again.made) == 14 and None not in given["episode_return"]
    # Three rows have no episode at all: the trainer goes on with the others.
    lost = Maker(fails=lambda number: number % 8 < 3 if number < 8 else number < 14)
    training = trainer(rollout_func_for(TASK, env_maker=lost, max_new_tokens=6), tmp_path, max_steps=1)
    training.train()
    assert len(lost.made) == 8 + 3 + 3
    assert training._logs["advantages"].count(0.0) >= 3
    assert not any(torch.isnan(parameter).any() for parameter in training.model.parameters())
    with pytest.raises(EpisodeError, match="gone"):
        rollout_func_for(TASK, env_maker=Maker(fails=lambda number: True))(["wordle/train/0"] * 2, Stub(PLAIN))


def test_what_cannot_be_is_refused() -> None:
    for prompt in ("Wordle:", "maze/train/1", "wordle/train/x", [{"role": "user", "content": "wordle/train/1"}]):
        with pytest.raises(ValueError, match=r"names no episode of wordle.*episode_rows\('wordle'"):
            rollout_func_for(TASK)([prompt], Stub(PLAIN))
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        rollout_func_for(TASK)(["wordle/dev/1"], Stub(PLAIN))
    for name, value in (("min_p", 0.1), ("repetition_penalty", 1.2), ("generation_kwargs", {"num_beams": 2})):
        with pytest.raises(ValueError, match=f"{name} is .*temperature, top_k and top_p alone"):
            rollout_func_for(TASK)(["wordle/train/1"], Stub(PLAIN, **{name: value}))
    with pytest.raises(ValueError, match="use_vllm is set"):
        rollout_func_for(TASK)(["wordle/train/1"], Stub(PLAIN, use_vllm=True))
    with pytest.raises(ValueError, match="mask_truncated_completions leaves out"):
        rollout_func_for(TASK)(["wordle/train/1"], Stub(PLAIN, mask_truncated_completions=True))
    [played] = play(TASK, make_policy(TASK, "random"), episode_starts(TASK, "train", [0]))
    with pytest.raises(ValueError, match="turn 0 has no sampled ids"):
        sampled_sequences(played)


def test_who_has_weights_in_parts_plays_with_a_copy() -> None:
    """Or not at all: the others would wait for ever for a process whose episodes have ended."""
    parts: Any = SimpleNamespace(distributed_type=DistributedType.FSDP)
    with (
        pytest.raises(ValueError, match=r"divided by FSDP.*use trainers\.grpo\.EpisodeGRPOTrainer"),
        _playing_model(SimpleNamespace(accelerator=parts)),
    ):
        pass
    with _playing_model(SimpleNamespace(accelerator=parts, player=1, playing_model=lambda: "a copy")) as model:
        assert model == "a copy"


def test_an_episode_as_a_tool() -> None:
    kind = environment_factory_for("maze")
    episode = kind()
    [start] = episode_starts("maze", "validation", [4])
    [played] = play("maze", make_policy("maze", "optimal"), [start])
    turns = played.trajectory.turns
    row = episode_rows("maze", [4], split="validation", conversational=True)[0]
    assert row["prompt"][0]["content"].startswith(load_task("maze").spec.instructions)
    for _ in range(2):
        observation = episode.reset(**row)
        for turn in turns:
            assert observation == turn.observation
            observation = episode.act(turn.action)
        assert observation.endswith("The episode is over.")
        assert episode.act("move left") == "The episode is over."
        assert episode.get_reward() == played.trajectory.episode_return
    assert kind.__name__ == "maze"
    assert [name for name in vars(kind) if not name.startswith("_")] == ["reset", "act", "get_reward"]


def test_a_tool_whose_environment_fails() -> None:
    maker = Maker(fails=lambda number: number == 0)
    episode = environment_factory_for(TASK, env_maker=maker)()
    episode.reset(index=0)
    assert episode.act("a") == "The episode is over." and episode.get_reward() is None

    class Unreachable(Letters):
        def _reset(self, rng: random.Random) -> str:
            raise EpisodeError("no answer")

    tries: list[int] = []

    def maker_of(number: int) -> Any:
        return lambda task, options: (tries.append(0), Unreachable() if len(tries) < number else Letters())[1]

    assert environment_factory_for(TASK, env_maker=maker_of(3))().reset(index=0).startswith("Say something")
    tries.clear()
    with pytest.raises(EpisodeError, match="no answer"):
        environment_factory_for(TASK, env_maker=maker_of(9))().reset(index=0)
    assert len(tries) == 3


def test_environments_are_closed_with_their_tool() -> None:
    closed: list[int] = []

    class Closing(Letters):
        def close(self) -> None:
            closed.append(1)

    episode = environment_factory_for(TASK, env_maker=lambda task, options: Closing())()
    episode.reset(index=0)
    episode.reset(index=1)
    assert closed == []
    del episode
    assert closed == [1]


def test_the_real_trainer_calls_the_tool(tmp_path: Path) -> None:
    """Two steps, with the ids that a model which knows tools would write in place of the sampled ones."""
    from trl import GRPOConfig, GRPOTrainer

    words = itertools.cycle(["move left", "move right", "move up", "nonsense"])

    def write(prompts: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        calls = [
            f'<tool_call>\n{{"name": "act", "arguments": {{"text": "{next(words)}"}}}}\n</tool_call>' for _ in prompts
        ]
        return [QWEN(text + "<|im_end|>", add_special_tokens=False)["input_ids"] for text in calls], None

    args = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_generations=4, max_steps=2, report_to=[],
        bf16=False, use_cpu=True, max_completion_length=900, save_strategy="no", disable_tqdm=True, logging_steps=1,
        max_tool_calling_iterations=2,
    )  # fmt: skip
    training = GRPOTrainer(
        new_model("tiny", QWEN, 2048, seed=1),
        args=args,
        train_dataset=Dataset.from_list(episode_rows("maze", range(4), conversational=True)),
        processing_class=QWEN,
        environment_factory=environment_factory_for("maze"),
    )
    training._generate_single_turn = write
    training.train()
    entries = training.state.log_history[:2]
    assert all(entry["tools/call_frequency"] == 2 and entry["tools/failure_frequency"] == 0 for entry in entries)
    # Two actions each: -1 for a move, -4 for words that are none.
    assert [entry["rewards/maze/mean"] for entry in entries] == [2 * (-1 - 1 - 1 - 4) / 4] * 2
