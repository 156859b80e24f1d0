"""What is kept of an episode between its turns: the same ids as without it, only what is new read, memory bounded."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_rollouts import talker
from tiny_models import plain_tokenizer
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from env_servers.play import Played, episode_starts, play
from env_servers.policy import Context
from env_servers.tasks import load_task
from trainers.generation import UnevenLayersError, parts
from trainers.heads import Head
from trainers.policy import LanguageModelPolicy, Sampling, draw, draw_tokens, sampling_logprobs
from trainers.rollouts import RolloutPolicy
from trainers.value_policy import ValuePolicy
from trainers.values import HeadSettings, ValueModel, trunk_of

torch.set_num_threads(1)
PLAIN = plain_tokenizer()
SHAPE = {
    "vocab_size": len(PLAIN), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3,
}  # fmt: skip


def gpt2() -> Any:
    return talker(PLAIN).double()


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).double()


def adapted() -> Any:
    torch.manual_seed(0)
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    return get_peft_model(gpt2(), lora)


def policy(model: Any, task: str = "wordle", kind: Any = LanguageModelPolicy, **options: Any) -> Any:
    made = kind(model, PLAIN, load_task(task).spec, name="test", **options)
    if isinstance(made, RolloutPolicy):
        made.begin(3)
    return made


def episodes(made: LanguageModelPolicy, slots: int = 3, number: int = 5) -> list[Played]:
    """Of at most nine turns, in the order of their starts."""
    task = made.renderer.spec.id
    starts = episode_starts(task, "train", range(number))
    played = play(task, made, starts, slots=slots, stop=lambda context: "cut" if len(context.history) == 9 else None)
    return sorted(played, key=lambda one: one.trajectory.index)


def assert_same(some: list[Played], others: list[Played], error: float = 1e-9) -> None:
    assert [one.trajectory for one in some] == [other.trajectory for other in others]
    for one, other in zip(some, others, strict=True):
        for action, same in zip(one.actions, other.actions, strict=True):
            assert (action.prompt_ids, action.token_ids) == (same.prompt_ids, same.token_ids)
            assert action.logprobs == pytest.approx(same.logprobs, abs=error)


class Counter:
    """Counts the tokens that a model reads, padding included."""

    def __init__(self, model: Any) -> None:
        self.tokens, self.calls, self._forward = 0, 0, model.forward
        model.forward = self._count

    def _count(self, *args: Any, **kwargs: Any) -> Any:
        self.tokens += kwargs["input_ids"].numel()
        self.calls += 1
        return self._forward(*args, **kwargs)


@pytest.mark.parametrize("make", [gpt2, llama, adapted])
def test_the_same_episodes_with_and_without(make: Any) -> None:
    """Rows that come, go and wait for others, in batches smaller than the slots; actions of all lengths."""
    fresh = episodes(policy(make(), kept_bytes=0), slots=1)
    lengths = {len(action.token_ids or ()) for one in fresh for action in one.actions}
    assert len(lengths) > 1
    for slots, size in ((1, 64), (5, 64), (3, 2)):
        made = policy(make(), batch_size=size)
        assert made._writer.even
        assert_same(episodes(made, slots), fresh, 1e-4 if make is llama else 1e-9)  # its norms are float32
        assert not made._writer._kept  # the episodes are gone, and so is what was kept of them


@pytest.mark.parametrize(
    "options", [{"memory": 0}, {"memory": 2}, {"max_length": 90}, {"sampling": Sampling(temperature=0)}]
)
def test_the_same_when_the_past_is_left_out(options: dict[str, Any]) -> None:
    fresh = episodes(policy(gpt2(), "maze_po", kept_bytes=0, **options))
    assert_same(episodes(policy(gpt2(), "maze_po", **options)), fresh)


def test_only_what_is_new_is_read() -> None:
    for kind in (LanguageModelPolicy, RolloutPolicy):
        made = policy(gpt2(), kind=kind)
        counter = Counter(made.model)
        [played] = episodes(made, number=1)
        expected, before = 0, tuple[int, ...]()
        for action in played.actions:
            prompt, said = action.prompt_ids or (), action.token_ids or ()
            shared = next((n for n, pair in enumerate(zip(before, prompt, strict=False)) if len({*pair}) > 1), None)
            common = min(len(before), len(prompt) - 1) if shared is None else shared
            expected += len(prompt) - common + len(said) - 1
            before = (*prompt, *said[:-1])
        assert counter.tokens == expected
        whole = sum(len(action.prompt_ids or ()) for action in played.actions)
        assert kind is LanguageModelPolicy or expected < whole
    # A policy without a past has nothing to keep, and one with a short one keeps nothing of its last prompt.
    for memory, kept in ((0, [0, 0, 0]), (2, [1, 1, 0])):
        made = policy(gpt2(), "maze_po", memory=memory)
        turns = episodes(made, number=1)[0].trajectory.turns
        rng = random.Random(0)
        found = []
        for number in range(3):
            made.act([Context(load_task("maze_po").spec, turns[:number], turns[number].observation, rng, {})])
            found.append(len(made._writer._kept))
        assert found == kept


def test_ended_rows_are_left_out() -> None:
    made = policy(talker(PLAIN))
    counter = Counter(made.model)
    spec = load_task("wordle").spec
    actions = made.act([Context(spec, [], "Wordle:", random.Random(n), {}) for n in range(8)])
    lengths = sorted(len(action.token_ids) for action in actions)
    # All rows are read together; then each step has at most the rows that go on and as many that have ended.
    going = [sum(length > step for length in lengths) for step in range(1, lengths[-1])]
    prompt = 8 * len(actions[0].prompt_ids)
    assert prompt + sum(going) <= counter.tokens < prompt + 2 * sum(going)
    assert counter.calls == lengths[-1]


def test_new_weights_are_noticed_in_the_middle_of_an_episode() -> None:
    spec, turns = load_task("wordle").spec, episodes(policy(gpt2()), number=1)[0].trajectory.turns
    context = Context(spec, turns[:3], turns[3].observation, random.Random(1), {})
    for change in ("optimizer", "load_state_dict", "forget"):
        made = policy(gpt2())
        made.act([context._replace(history=turns[:2], observation=turns[2].observation)])
        parameters = list(made.model.parameters())
        if change == "optimizer":
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            torch.optim.AdamW(parameters, lr=0.01, fused=True).step()
        elif change == "load_state_dict":
            made.model.load_state_dict({name: p * 1.1 for name, p in made.model.state_dict().items()})
        else:
            for parameter in parameters:
                parameter.data = parameter.data * 1.1
            made.forget()
        again = policy(made.model).act([context._replace(rng=random.Random(5))])
        [action] = made.act([context])
        other = policy(made.model).act([context._replace(rng=random.Random(5))])
        assert again == other
        ids = torch.tensor([[*action.prompt_ids, *action.token_ids]])
        with torch.no_grad():
            logprobs = made.model(ids).logits[0].log_softmax(-1)
        start = len(action.prompt_ids)
        expected = [float(logprobs[start - 1 + n, token]) for n, token in enumerate(action.token_ids)]
        assert action.logprobs == pytest.approx(expected, abs=1e-9)


def test_memory_is_bounded() -> None:
    fresh = episodes(policy(gpt2(), kept_bytes=0), slots=5)
    # GPT-2 of two layers 64 wide in float64: 2 * 2 * 64 * 8 bytes for a token.
    for limit in (0, 150 * 2048, 10_000 * 2048):
        made, most = policy(gpt2(), kept_bytes=limit), list[int]()
        writer, store = made._writer, made._writer._store

        def watched(*args: Any, store: Any = store, writer: Any = writer, most: list[int] = most) -> None:
            store(*args)
            held = sum(kept.nbytes for kept in writer._kept.values())
            assert held == writer._total
            most.append(held)

        writer._store = watched
        assert_same(episodes(made, slots=5), fresh)
        assert max(most) <= limit and (max(most) > 0) == (limit > 0)
    # What has not been asked for goes first, and never for the sake of nothing.
    made, spec = policy(gpt2(), kept_bytes=300 * 2048), load_task("wordle").spec
    contexts = [Context(spec, [], "Wordle:", random.Random(n), {}) for n in range(30)]
    made.act(contexts[:1])
    made.act(contexts[1:])
    assert contexts[0].rng not in made._writer._kept and 0 < len(made._writer._kept) < 29


def test_one_generator_twice_in_a_batch() -> None:
    made, spec = policy(gpt2()), load_task("wordle").spec
    turns = episodes(policy(gpt2()), number=1)[0].trajectory.turns
    for _ in range(3):
        rng = random.Random(4)
        both = [Context(spec, turns[:n], turns[n].observation, rng, {}) for n in (3, 1)]
        actions = made.act(both)
        fresh = random.Random(4)
        alone = policy(gpt2(), kept_bytes=0).act([context._replace(rng=fresh) for context in both])
        assert [action.token_ids for action in actions] == [action.token_ids for action in alone]


def test_values_are_kept_too() -> None:
    def valued(**options: Any) -> ValuePolicy:
        behavior = gpt2()
        torch.manual_seed(1)
        values = ValueModel(trunk_of(behavior), HeadSettings(), 2).double()
        for head in (module for module in values.modules() if isinstance(module, Head)):
            for parameter in head.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
        return ValuePolicy(behavior, PLAIN, load_task("wordle").spec, name="v", values=values, beta=2.0, **options)

    fresh = episodes(valued(kept_bytes=0), slots=2)
    assert_same(episodes(valued(), slots=4), fresh)
    plain = valued()
    plain._writer._even = False  # as for a model with another kind of cache
    assert_same(episodes(plain, slots=2), fresh)
    assert [one.trajectory for one in fresh] != [one.trajectory for one in episodes(policy(gpt2(), kept_bytes=0))]


def test_other_kinds_of_cache_are_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sliding = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8))
    made = policy(sliding)
    assert not made._writer.even
    spec, turns = load_task("wordle").spec, episodes(made, number=1)[0].trajectory.turns
    [action] = made.act([Context(spec, turns[:2], turns[2].observation, random.Random(0), {})])
    ids = torch.tensor([[*action.prompt_ids, *action.token_ids]])
    with torch.no_grad():
        logprobs = sliding(ids).logits[0].double().log_softmax(-1)
    start = len(action.prompt_ids)
    expected = [float(logprobs[start - 1 + n, token]) for n, token in enumerate(action.token_ids)]
    assert action.logprobs == pytest.approx(expected, abs=1e-4)
    # A model whose layers differ is found out when it runs.
    made, fresh = policy(gpt2()), episodes(policy(gpt2(), kept_bytes=0))

    def uneven(*_: Any) -> Any:
        raise UnevenLayersError

    monkeypatch.setattr("trainers.generation._Batch.cache", uneven)
    made.model.float()
    assert [p.trajectory.num_turns for p in episodes(made)] == [p.trajectory.num_turns for p in fresh]
    assert not made._writer.even


def test_rows_are_divided_where_it_saves_enough() -> None:
    assert parts([]) == [] and parts([5]) == [slice(0, 1)]
    assert parts([7] * 64) == [slice(0, 64)]
    assert parts([7] * 60 + [40] * 4) == [slice(0, 60), slice(60, 64)]  # 60 * 33 tokens of padding
    assert parts([7] * 4 + [40] * 60) == [slice(0, 64)]  # 4 * 33 are fewer than 256
    assert parts([1] * 300 + [10] * 300 + [100] * 300) == [slice(0, 300), slice(300, 600), slice(600, 900)]


@pytest.mark.parametrize("vocabulary", [40, 1500, 2048])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_have_the_model_s_probabilities(vocabulary: int, temperature: float) -> None:
    """Numbers in even steps over [0, 1) must hit each token as often as its probability says, to within one step."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(1, vocabulary, generator=generator, dtype=torch.float64)
    logits[0, [0, 3, 4, vocabulary // 2, vocabulary - 1]] = -torch.inf
    logits[0, 256:512] = -torch.inf
    steps = 2_000
    uniforms = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    sampling = Sampling(temperature=temperature)
    probabilities = (logits[0] / temperature).softmax(0)
    for dtype in (torch.float64, torch.float32):
        tokens, logprobs = draw_tokens(logits.to(dtype).expand(steps, -1), uniforms, sampling)
        counts = torch.bincount(tokens, minlength=vocabulary)
        assert float((counts - probabilities * steps).abs().max()) <= 1.01
        assert logprobs == pytest.approx(probabilities.log()[tokens].numpy(), abs=1e-5)
    expected = draw(sampling_logprobs(logits, sampling).expand(steps, -1), uniforms)
    assert torch.equal(draw_tokens(logits.expand(steps, -1), uniforms, sampling)[0], expected)
    ends = torch.tensor([0.0, 1 - 2**-53, 1.0], dtype=torch.float64)
    allowed = probabilities.nonzero()[:, 0]
    for dtype in (torch.float64, torch.float32):
        tokens, _ = draw_tokens(logits.to(dtype).expand(3, -1), ends, sampling)
        assert tokens[0] == allowed[0] and set(tokens.tolist()) <= set(allowed.tolist())


def test_a_cache_tells_transformers_its_length() -> None:
    from trainers.generation import _Batch

    batch = _Batch(1, 2, 6)
    cache, usual = batch.cache(slice(0, 2), 0), DynamicCache()
    for length in (3, 1):
        keys, values = torch.randn(2, 2, length, 4), torch.randn(2, 2, length, 4)
        for one, other in zip(cache.update(keys, values, 0), usual.update(keys, values, 0), strict=True):
            assert torch.equal(one, other)
        assert cache.get_seq_length() == usual.get_seq_length()
        assert cache.get_mask_sizes(2, 0) == usual.get_mask_sizes(2, 0)
    with pytest.raises(UnevenLayersError):
        cache.update(torch.randn(2, 3, 1, 4), torch.randn(2, 3, 1, 4), 0)
