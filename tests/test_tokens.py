"""Token sequences against the texts they stand for, worked out here without `trainers.tokens`."""

from __future__ import annotations

import dataclasses
import itertools
from importlib.resources import files

import pytest
import torch
from tiny_models import CHATML, chat_tokenizer, episode, maze_episodes, plain_tokenizer, spaced_tokenizer

from env_servers.tasks import load_task
from env_servers.trajectory import Trajectory
from trainers.tokens import Renderer, TokenSequence, collate, encode, labels

MAZE, MAZE_PO = load_task("maze").spec, load_task("maze_po").spec
PLAIN, CHAT = plain_tokenizer(), chat_tokenizer()


def renderer(rendering: str = "plain", spec=MAZE, **options) -> Renderer:
    return Renderer(CHAT if rendering == "chat" else PLAIN, spec, rendering, **options)


def text(rendering: str, ids) -> str:
    return (CHAT if rendering == "chat" else PLAIN).decode(ids)


def same_ids(rendering: str, got: list[int], expected: list[int]) -> None:
    """Fail with the first diverging token in words."""
    for place, (a, b) in enumerate(itertools.zip_longest(got, expected)):
        if a != b:
            before = text(rendering, expected[:place])
            pytest.fail(
                f"token {place}, after {before!r}: got {text(rendering, got[place : place + 3])!r}, "
                f"expected {text(rendering, expected[place : place + 3])!r}"
            )


def expected_prompt(rendering: str, trajectory: Trajectory, number: int, memory: int | None) -> str:
    """The prompt of a turn as one text."""
    start = 0 if memory is None else max(0, number - memory)
    window = trajectory.turns[start:number]
    if rendering == "plain":
        said = "".join(f"{turn.observation}\n{turn.action}\n" for turn in window)
        return f"{said}{trajectory.turns[number].observation}\n"
    spec = load_task(trajectory.task).spec
    messages = [{"role": "system", "content": spec.instructions}]
    for turn in window:
        messages += [{"role": "user", "content": turn.observation}, {"role": "assistant", "content": turn.action}]
    messages.append({"role": "user", "content": trajectory.turns[number].observation})
    return str(CHAT.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def check_sequences(made: Renderer, trajectory: Trajectory, sequences: list[TokenSequence]) -> None:
    """All that `encode` promises, but for the texts of the prompts."""
    end = "<|im_end|>" if made.rendering == "chat" else "\n"
    assert sorted(itertools.chain(*(s.turns for s in sequences))) == list(range(trajectory.num_turns))
    assert sum(sum(s.rewards) for s in sequences) == pytest.approx(trajectory.episode_return)
    for sequence in sequences:
        assert len(sequence.input_ids) == len(sequence.action_mask) == len(sequence.rewards) <= made.max_length
        groups = [
            [place for place, _ in group]
            for acts, group in itertools.groupby(enumerate(sequence.action_mask), key=lambda pair: pair[1])
            if acts
        ]
        assert len(groups) == len(sequence.turns)
        for number, places in zip(sequence.turns, groups, strict=True):
            turn = trajectory.turns[number]
            assert text(made.rendering, [sequence.input_ids[p] for p in places]) == turn.action + end
            assert [sequence.rewards[p] for p in places] == [0.0] * (len(places) - 1) + [turn.reward]
            prompt = made.prompt_ids(trajectory.turns[:number], turn.observation)
            same_ids(made.rendering, sequence.input_ids[: places[0]], prompt)
    assert [(s.terminated, s.truncated) for s in sequences[:-1]] == [(False, False)] * (len(sequences) - 1)
    assert (sequences[-1].terminated, sequences[-1].truncated) == (trajectory.terminated, trajectory.truncated)


@pytest.mark.parametrize("rendering", ["plain", "chat"])
@pytest.mark.parametrize("task", ["maze", "maze_po"])
@pytest.mark.parametrize("memory", [None, 0, 20])
def test_encode_follows_the_prompts(rendering, task, memory) -> None:
    made = renderer(rendering, load_task(task).spec, memory=memory, max_length=20_000)
    trajectories = [t for t in maze_episodes(task, 30) if t.num_turns > 25][:2]
    assert trajectories
    for trajectory in trajectories:
        sequences = encode(trajectory, made)
        check_sequences(made, trajectory, sequences)
        expected = {None: 1, 0: trajectory.num_turns, 20: trajectory.num_turns - 20}[memory]
        assert len(sequences) == expected
        for number, turn in enumerate(trajectory.turns):
            prompt = made.prompt_ids(trajectory.turns[:number], turn.observation)
            assert text(rendering, prompt) == expected_prompt(rendering, trajectory, number, memory)


@pytest.mark.parametrize("rendering", ["plain", "chat"])
def test_a_context_shorter_than_the_episode_drops_the_oldest_turns(rendering) -> None:
    trajectory = next(t for t in maze_episodes("maze_po", 30) if t.num_turns > 25)
    whole = renderer(rendering, MAZE_PO, memory=None, max_length=20_000)
    short = renderer(rendering, MAZE_PO, memory=None, max_length=300)
    sequences = encode(trajectory, short)
    assert 1 < len(sequences) < trajectory.num_turns
    check_sequences(short, trajectory, sequences)
    kept = []
    for number, turn in enumerate(trajectory.turns):
        prompt = short.prompt_ids(trajectory.turns[:number], turn.observation)
        # Exactly one number of last turns explains the prompt, and one turn more would not have fitted.
        memory = next(
            k for k in range(number + 1) if text(rendering, prompt) == expected_prompt(rendering, trajectory, number, k)
        )
        room = short.max_length - short.action_room
        assert len(prompt) <= room
        if memory < number:
            longer = Renderer(whole.tokenizer, MAZE_PO, rendering, memory=memory + 1, max_length=20_000)
            assert len(longer.prompt_ids(trajectory.turns[:number], turn.observation)) > room
        kept.append(memory)
    assert kept[0] == 0 and max(kept) < trajectory.num_turns - 1


def test_a_small_episode_by_hand() -> None:
    trajectory = episode("maze", [("a wall", "move up", -1.0), ("no wall", "", -4.0)])
    (sequence,) = encode(trajectory, renderer(memory=None))
    pieces = [PLAIN(piece)["input_ids"] for piece in ("a wall\n", "move up\n", "no wall\n", "\n")]
    assert sequence.input_ids == list(itertools.chain(*pieces))
    assert sequence.action_mask == [0] * len(pieces[0]) + [1] * len(pieces[1]) + [0] * len(pieces[2]) + [1]
    assert [r for r in sequence.rewards if r] == [-1.0, -4.0] and sequence.rewards[-1] == -4.0
    assert sequence.turns == [0, 1]
    assert sequence.final_observation_ids == sequence.input_ids + PLAIN("the end\n")["input_ids"]
    assert text("plain", [token for token in labels(sequence) if token != -100]) == "move up\n\n"
    assert [token == -100 for token in labels(sequence)] == [acts == 0 for acts in sequence.action_mask]


def test_final_observation_only_where_one_must_bootstrap() -> None:
    turns = [("a wall", "move up", -1.0)]
    ended = episode("maze", turns, terminated=True, truncated=False)
    assert encode(ended, renderer())[-1].final_observation_ids is None
    silent = episode("maze", turns, final_observation=None)
    assert encode(silent, renderer())[-1].final_observation_ids is None
    failed = episode("maze", turns, final_observation="Failure")
    assert encode(failed, renderer())[-1].final_observation_ids is None
    assert encode(episode("maze", turns), renderer())[-1].final_observation_ids == PLAIN("the end\n")["input_ids"]


def test_collate_masks_by_length_and_not_by_pad_id() -> None:
    pad = 7
    batch = collate(
        [TokenSequence([7, 7, 5], [0, 0, 1], [0.0, 0.0, -1.0], [0]), TokenSequence([7], [0], [0.0], [])], pad
    )
    assert batch["input_ids"].tolist() == [[7, 7, 5], [7, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["action_mask"].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert batch["rewards"].tolist() == [[0.0, 0.0, -1.0], [0.0, 0.0, 0.0]]
    assert batch["rewards"].dtype == torch.float32
    with pytest.raises(ValueError, match="no sequences"):
        collate([], pad)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="newest observation alone is"):
        encode(episode("maze", [("wall " * 40, "move up", -1.0)]), renderer(max_length=30))
    with pytest.raises(ValueError, match=r"the action of turn 0 is .* max_length"):
        encode(episode("maze", [("a wall", "up " * 40, -4.0)]), renderer(max_length=30))
    with pytest.raises(ValueError, match="a prompt needs at least one"):
        renderer(max_length=8)
    long = episode("maze", [("a wall", "q" * 15, -4.0)])  # longer than action_room, shorter than max_length
    check = encode(long, renderer(max_length=40))[0]
    assert text("plain", [t for t in labels(check) if t != -100]) == "q" * 15 + "\n"


def test_an_action_of_two_lines_is_refused_in_the_plain_rendering_only() -> None:
    trajectory = episode("maze", [("a wall", "move up\nmove down", -4.0), ("a wall", "move up", -1.0)])
    with pytest.raises(ValueError, match="holds a newline"):
        encode(trajectory, renderer())
    check_sequences(renderer("chat"), trajectory, encode(trajectory, renderer("chat")))


def test_an_episode_of_another_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'maze_po'.*'maze'"):
        encode(episode("maze_po", [("a wall", "move up", -1.0)]), renderer())


def test_special_tokens_spelled_in_plain_text_stay_text() -> None:
    ids = renderer().prompt_ids([], "say <|endoftext|> now")
    assert PLAIN.eos_token_id not in ids
    assert text("plain", ids) == "say <|endoftext|> now\n"


def test_unknown_rendering_and_bad_memory() -> None:
    with pytest.raises(ValueError, match="did you mean 'plain'"):
        Renderer(PLAIN, MAZE, "plane")
    with pytest.raises(ValueError, match="memory is -1"):
        renderer(memory=-1)


def test_a_tokenizer_that_adds_spaces_is_refused() -> None:
    with pytest.raises(ValueError, match="space before every piece") as caught:
        Renderer(spaced_tokenizer(), MAZE)
    assert "came back as" in str(caught.value)


def test_stop_ids_are_all_that_hold_a_newline() -> None:
    tokenizer = plain_tokenizer()
    tokenizer.add_tokens(["\n\n", "left\n"])
    made = Renderer(tokenizer, MAZE)
    assert sorted(tokenizer.decode([number]) for number in made.stop_ids) == ["\n", "\n\n", "left\n"]
    assert made.action_text(tokenizer("move left\n")["input_ids"]) == "move left"


def test_chat_end_of_turn_is_read_off_the_template() -> None:
    made = renderer("chat")
    assert text("chat", made.action_ids("move up")) == "move up<|im_end|>"
    assert text("chat", made.action_ids("")) == "<|im_end|>"
    assert {text("chat", [number]) for number in made.stop_ids} == {"<|im_end|>"}
    assert made.action_text(made.action_ids("move up")) == "move up"


def test_a_template_without_system_role_gets_the_instructions_in_the_first_message() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    silent = CHATML.replace(
        "{% for message in messages %}", "{% for message in messages if message.role != 'system' %}"
    )
    for template in (refusing, silent):
        tokenizer = chat_tokenizer(template)
        made = Renderer(tokenizer, dataclasses.replace(MAZE, instructions="Walk."), "chat", memory=None)
        said = tokenizer.decode(made.prompt_ids(episode("maze", [("a wall", "move up", -1.0)]).turns, "no wall"))
        assert said == (
            "<|im_start|>user\nWalk.\n\na wall<|im_end|>\n<|im_start|>assistant\nmove up<|im_end|>\n"
            "<|im_start|>user\nno wall<|im_end|>\n<|im_start|>assistant\n"
        )


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (CHATML.replace("{{ message.role }}", "{{ message.role }} {{ messages|length }}"), "rewrites what was said"),
        (CHATML.replace("<|im_end|>", ""), "no end-of-turn token"),
        ("{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}", "does not repeat"),
        (None, "no chat template"),
    ],
)
def test_templates_that_cannot_be_used_are_refused_with_the_reason(template, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        Renderer(chat_tokenizer(template), MAZE, "chat")


def test_a_template_that_pads_the_answer_with_spaces() -> None:
    template = (
        "{% for message in messages %}{% if message.role == 'assistant' %} {{ message.content | trim }} <|im_end|>"
        "{% else %}<|im_start|>{{ message.content | trim }}[/]{% endif %}{% endfor %}"
    )
    tokenizer = chat_tokenizer(template)
    made = Renderer(tokenizer, MAZE, "chat")
    assert tokenizer.decode(made.action_ids("move up")) == " move up <|im_end|>"
    assert made.action_text(made.action_ids("move up")) == "move up"


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("qwen2_5", "<|im_end|>"),
        ("qwen3", "<|im_end|>"),
        ("llama3", "<|eot_id|>"),
        ("phi3", "<|end|>"),
        ("gemma", "<end_of_turn>"),
        ("lfm2", "<|im_end|>"),
        ("cohere", "<|END_OF_TURN_TOKEN|>"),
    ],
)
def test_templates_of_known_models_read_as_the_template_renders_them(name: str, end: str) -> None:
    """The templates that TRL ships, with a tokenizer that has their special tokens."""
    tokenizer = plain_tokenizer()
    special = [
        end,
        "<|im_start|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
    ]
    tokenizer.add_special_tokens({"additional_special_tokens": [*special, "<start_of_turn>", "<think>", "</think>"]})
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = files("trl").joinpath(f"chat_templates/{name}.jinja").read_text()
    made = Renderer(tokenizer, MAZE_PO, "chat", memory=None, max_length=20_000)
    trajectory = maze_episodes("maze_po", 1)[0]
    (sequence,) = encode(trajectory, made)
    pairs = zip(sequence.input_ids, sequence.action_mask, strict=True)
    runs = [[token for token, _ in run] for acts, run in itertools.groupby(pairs, key=lambda pair: pair[1]) if acts]
    assert [tokenizer.decode(run) for run in runs] == [turn.action + end for turn in trajectory.turns]
    last = trajectory.turns[-1]
    messages = [{"role": "system", "content": MAZE_PO.instructions}]
    for turn in trajectory.turns[:-1]:
        messages += [{"role": "user", "content": turn.observation}, {"role": "assistant", "content": turn.action}]
    messages.append({"role": "user", "content": last.observation})
    if name == "gemma":  # takes no system role
        head = messages.pop(0)["content"]
        messages[0] = {"role": "user", "content": f"{head}\n\n{messages[0]['content']}"}
    prompt = tokenizer.decode(made.prompt_ids(trajectory.turns[:-1], last.observation))
    assert prompt == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
