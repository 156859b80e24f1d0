"""`LanguageModelPolicy`: the same actions whatever the neighbours, and numbers equal to a plain forward pass."""

from __future__ import annotations

import math
import random

import pytest
import torch
from tiny_models import chat_tokenizer, episode, maze_episodes, plain_tokenizer
from transformers import GenerationConfig

from env_servers.play import episode_starts, play
from env_servers.policy import Context
from env_servers.tasks import load_task
from trainers.policy import LanguageModelPolicy, Sampling, draw, sampling_logprobs
from trainers.scratch import new_model, train_tokenizer
from trainers.tokens import Renderer, encode

torch.set_num_threads(1)
MAZE, MAZE_PO = load_task("maze").spec, load_task("maze_po").spec
PLAIN, CHAT = plain_tokenizer(), chat_tokenizer()


def policy(*, spec=MAZE_PO, rendering="plain", batch_size=64, model=None, **sampling) -> LanguageModelPolicy:
    tokenizer = CHAT if rendering == "chat" else PLAIN
    model = model or new_model("tiny", tokenizer, 512, seed=1)
    settings = Sampling(**sampling)
    return LanguageModelPolicy(
        model, tokenizer, spec, name="test", rendering=rendering, sampling=settings, batch_size=batch_size
    )


def contexts(number: int = 12, seed: int = 0) -> list[Context]:
    """Contexts with histories of different lengths."""
    turns = next(t.turns for t in maze_episodes("maze_po", 30) if t.num_turns > number)
    return [
        Context(MAZE_PO, turns[:count], turns[count].observation, random.Random(f"{seed}-{count}"), {})
        for count in range(number)
    ]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}])
@pytest.mark.parametrize("rendering", ["plain", "chat"])
def test_neighbours_change_nothing(sampling, rendering) -> None:
    together = policy(rendering=rendering, **sampling).act(contexts())
    alone = [action for c in contexts() for action in policy(rendering=rendering, **sampling).act([c])]
    reversed_order = policy(rendering=rendering, batch_size=5, **sampling).act(contexts()[::-1])[::-1]
    for other in (alone, reversed_order):
        assert [a.token_ids for a in other] == [a.token_ids for a in together]
        assert [a.text for a in other] == [a.text for a in together]
        for one, two in zip(other, together, strict=True):
            assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)
    assert len({a.token_ids for a in together}) > 1 or sampling == {"temperature": 0.0}


def test_sampling_depends_on_the_episode_generator_alone() -> None:
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    first = policy().act(contexts(seed=1))
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    torch.manual_seed(5)
    assert [a.token_ids for a in policy().act(contexts(seed=1))] == [a.token_ids for a in first]
    assert [a.token_ids for a in policy().act(contexts(seed=2))] != [a.token_ids for a in first]


def test_prompts_are_those_of_training() -> None:
    trajectory = next(t for t in maze_episodes("maze_po", 30) if t.num_turns > 25)
    acting = policy()
    for sequence in encode(trajectory, Renderer(PLAIN, MAZE_PO, max_length=512)):
        number = sequence.turns[0]
        context = Context(
            MAZE_PO, trajectory.turns[:number], trajectory.turns[number].observation, random.Random(0), {}
        )
        (action,) = acting.act([context])
        first_action = sequence.action_mask.index(1)
        assert list(action.prompt_ids) == sequence.input_ids[:first_action]


def test_logprobs_equal_a_separate_forward_pass() -> None:
    acting = policy(temperature=1.0)
    for action in acting.act(contexts()):
        ids = torch.tensor([[*action.prompt_ids, *action.token_ids]])
        with torch.no_grad():
            logprobs = acting.model(ids).logits[0].double().log_softmax(-1)
        start = len(action.prompt_ids)
        expected = [float(logprobs[start - 1 + n, token]) for n, token in enumerate(action.token_ids)]
        assert action.logprobs == pytest.approx(expected, abs=1e-4)


def test_greedy_takes_the_most_likely_token_with_certainty() -> None:
    acting = policy(temperature=0.0)
    for action in acting.act(contexts(4)):
        ids = torch.tensor([[*action.prompt_ids, *action.token_ids]])
        with torch.no_grad():
            best = acting.model(ids).logits[0].argmax(-1).tolist()
        start = len(action.prompt_ids)
        assert list(action.token_ids) == best[start - 1 : -1]
        assert set(action.logprobs) == {0.0}


def test_sampling_distribution_by_hand() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).log()  # probabilities .4 .3 .2 .1

    def probabilities(**settings: float) -> list[float]:
        return sampling_logprobs(logits, Sampling(**settings)).exp()[0].tolist()

    assert probabilities() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert probabilities(temperature=0.5) == pytest.approx([16 / 30, 9 / 30, 4 / 30, 1 / 30])
    assert probabilities(top_k=2) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert probabilities(top_p=0.75) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    assert probabilities(top_p=0.3) == pytest.approx([1, 0, 0, 0])
    assert probabilities(temperature=0) == [1, 0, 0, 0]
    # The inverse of the distribution function, at its steps and between them.
    numbers = torch.tensor([0.0, 0.39, 0.41, 0.69, 0.71, 0.95, 1 - 1e-12], dtype=torch.float64)
    rows = sampling_logprobs(logits, Sampling()).expand(len(numbers), -1)
    assert draw(rows, numbers).tolist() == [0, 0, 1, 1, 2, 3, 3]
    without_ends = torch.tensor([[-math.inf, 0.0, -math.inf]], dtype=torch.float64)
    assert draw(without_ends.expand(2, -1), torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [1, 1]


def test_sampled_frequencies_follow_the_model() -> None:
    acting = policy(temperature=1.0, max_new_tokens=1)
    context = contexts(1)[0]
    many = [context._replace(rng=random.Random(number)) for number in range(3000)]
    actions = acting.act(many)
    with torch.no_grad():
        expected = acting.model(torch.tensor([actions[0].prompt_ids])).logits[0, -1].softmax(-1)
    top = int(expected.argmax())
    share = sum(a.token_ids == (top,) for a in actions) / len(actions)
    sigma = math.sqrt(float(expected[top]) * (1 - float(expected[top])) / len(actions))
    assert abs(share - float(expected[top])) < 4 * sigma


def forced(tokens: list[int], rendering: str = "plain", tokenizer=None, **sampling) -> LanguageModelPolicy:
    """A policy whose model says the given tokens, whatever the prompt."""
    tokenizer = tokenizer or (CHAT if rendering == "chat" else PLAIN)
    model = new_model("tiny", tokenizer, 512)
    made = LanguageModelPolicy(
        model, tokenizer, MAZE, name="forced", rendering=rendering, sampling=Sampling(temperature=0.0, **sampling)
    )
    forward, step = model.forward, iter(range(100))

    def say(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = torch.full_like(output.logits, -10.0)
        output.logits[..., tokens[next(step)]] = 10.0
        return output

    model.forward = say
    return made


def answer(made: LanguageModelPolicy):
    return made.act([Context(MAZE, [], "There are no walls near you.", random.Random(0), {})])[0]


def test_an_action_ends_at_any_token_with_a_newline() -> None:
    tokenizer = plain_tokenizer()
    tokenizer.add_tokens(["\n\n", "left\nmove"])
    move, glued, double = tokenizer("move ")["input_ids"], *tokenizer.convert_tokens_to_ids(["left\nmove", "\n\n"])
    action = answer(forced([*move, glued, 5, 5], tokenizer=tokenizer))
    assert (action.text, action.finish_reason) == ("move left", "stop")
    assert action.token_ids == (*move, glued)  # as sampled, what stands behind the newline included
    action = answer(forced([double, 5], tokenizer=tokenizer))
    assert (action.text, action.token_ids, action.finish_reason) == ("", (double,), "stop")


def test_the_end_of_text_ends_an_action_too_and_the_budget_cuts_it() -> None:
    move = PLAIN("move up")["input_ids"]
    action = answer(forced([*move, PLAIN.eos_token_id, 5]))
    assert (action.text, action.finish_reason) == ("move up", "stop")
    action = answer(forced(move * 20))
    assert action.finish_reason == "length" and len(action.token_ids) == MAZE.max_action_tokens
    assert len(answer(forced(move * 20, max_new_tokens=3)).token_ids) == 3


def test_chat_stops_at_the_template_s_end_and_at_every_end_of_the_model() -> None:
    move, end = CHAT("move up")["input_ids"], CHAT.convert_tokens_to_ids("<|im_end|>")
    action = answer(forced([*move, end, 5], "chat"))
    assert (action.text, action.token_ids, action.finish_reason) == ("move up", (*move, end), "stop")
    model = new_model("tiny", CHAT, 512)
    model.generation_config.eos_token_id = [3, 4]
    assert policy(model=model, rendering="chat", spec=MAZE).stop_ids == {3, 4, end, CHAT.eos_token_id}


def test_a_checkpoint_s_own_generation_settings_do_not_leak() -> None:
    model = new_model("tiny", PLAIN, 512, seed=1)
    expected = [a.token_ids for a in policy(model=model).act(contexts())]
    own = GenerationConfig(
        do_sample=True,
        top_k=1,
        repetition_penalty=5.0,
        min_new_tokens=7,
        suppress_tokens=[1, 2, 3],
        num_beams=2,
        max_length=600,
    )
    model.generation_config = own
    assert [a.token_ids for a in policy(model=model).act(contexts())] == expected
    assert model.generation_config is own


def test_same_episode_with_any_number_of_slots() -> None:
    model = new_model("tiny", PLAIN, 512, seed=1)

    def played(slots: int, batch_size: int):
        made = policy(model=model, spec=MAZE, batch_size=batch_size, max_new_tokens=2)
        starts = list(episode_starts("maze", "test", range(3)))
        return {p.trajectory.index: p.trajectory for p in play("maze", made, starts, slots=slots)}

    assert played(1, 1) == played(3, 2)


def test_wrong_arguments_say_what_is_allowed() -> None:
    for wrong, name in [
        ({"temperature": -1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": math.nan}, "temperature"),
    ]:
        with pytest.raises(ValueError, match=name):
            Sampling(**wrong)
    with pytest.raises(ValueError, match="plays 'maze_po', not 'maze'"):
        policy().act([Context(MAZE, [], "x", random.Random(0), {})])
    with pytest.raises(ValueError, match="positions for 64 tokens"):
        LanguageModelPolicy(new_model("tiny", PLAIN, 64), PLAIN, MAZE, name="x", max_length=65)
    with pytest.raises(ValueError, match="batch_size is 0"):
        policy(batch_size=0)


def test_new_models_are_seeded_and_leave_global_generators_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, two, other = (new_model("tiny", PLAIN, 32, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    first = [next(iter(model.parameters())) for model in (one, two, other)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    with pytest.raises(ValueError, match="did you mean 'tiny'"):
        new_model("tinny", PLAIN)


def test_a_trained_tokenizer_writes_every_text_and_keeps_newlines_apart() -> None:
    tokenizer = train_tokenizer(["left\n\n, right.\n"] * 50, 300)
    for text in ("left\n\n.\n", "Ünïcode → 字", "\n", "  two  spaces "):
        assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text
    newline = tokenizer("\n")["input_ids"]
    assert len(newline) == 1 and tokenizer("left\n\n")["input_ids"][-2:] == newline * 2
    assert [n for n in range(len(tokenizer)) if "\n" in tokenizer.decode([n])] == newline
    with pytest.raises(ValueError, match="at least 258"):
        train_tokenizer(["x"], 100)


def test_an_episode_of_empty_actions_is_a_prompt_too() -> None:
    turns = episode("maze_po", [("a", "", -4.0), ("b", "", -4.0)]).turns
    for rendering in ("plain", "chat"):
        (action,) = policy(rendering=rendering).act([Context(MAZE_PO, turns, "c", random.Random(0), {})])
        assert action.prompt_ids
