"""Episodes as transitions: by hand, by the reference's recorded token data, and what a batch points at."""

from __future__ import annotations

import pytest
import torch
from tiny_models import episode, maze_episodes, plain_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from env_servers.tasks import load_task
from env_servers.trajectory import Trajectory
from trainers.tokens import Renderer, encode
from trainers.transitions import (
    Discounting,
    build_transitions,
    merge_transitions,
    to_transition_rows,
    transition_collator,
)

MAZE, MAZE_PO = load_task("maze").spec, load_task("maze_po").spec
PAD = 0


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, numbered as the byte: the tokenizer of the recorded data."""
    alphabet = {character: number for number, character in byte_characters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=byte_characters()[0])


def byte_characters() -> dict[int, str]:
    """The character that byte-level BPE writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def rows(trajectory: Trajectory, memory: int | None, discounting: Discounting) -> list[dict]:  # type: ignore[type-arg]
    spec = MAZE if trajectory.task == "maze" else MAZE_PO
    return to_transition_rows(encode(trajectory, Renderer(byte_tokenizer(), spec, memory=memory)), discounting)


def test_recorded_token_data_of_one_row() -> None:
    """Reference data `single_trajectory`: Q, action `ab` (-1), answer n, action `c` (0), answer y, over."""
    trajectory = episode(
        "maze_po", [("Q", "ab", -1.0), ("n", "c", 0.0)], terminated=True, truncated=False, final_observation="y"
    )
    (row,) = rows(trajectory, None, Discounting(0.9))
    # The recorded row also holds the last answer, which no action follows.
    assert row["input_ids"] == [81, 10, 97, 98, 10, 110, 10, 99, 10]
    assert row["places"] == [2, 3, 4, 7, 8]
    assert row["rewards"] == [0, 0, -1, 0, 0]
    assert row["returns"] == pytest.approx([-0.8099999, -0.9, -1.0, 0.0, 0.0])
    assert (row["bootstrap"], row["next_prompt"]) == (False, [])


def test_recorded_token_data_of_a_chain() -> None:
    """Reference data `markov_chain_two_steps`, with the correct chain: returns run on, the terminal counts once."""
    trajectory = episode("maze", [("s0", "a0", -1.0), ("s1", "a1", 1.0)], terminated=True, truncated=False)
    first, second = rows(trajectory, 0, Discounting(0.9))
    assert first["input_ids"] == [115, 48, 10, 97, 48, 10]
    assert first["places"] == [3, 4, 5]
    assert first["rewards"] == [0, 0, -1]
    assert first["returns"] == pytest.approx([-0.21951, -0.2439, -0.271])
    assert (first["bootstrap"], first["next_prompt"]) == (True, [115, 49, 10])
    assert second["returns"] == pytest.approx([0.81, 0.9, 1.0])
    assert (second["bootstrap"], second["next_prompt"]) == (False, [])


def test_discount_by_turn_counts_actions_and_not_tokens() -> None:
    trajectory = episode("maze", [("s0", "abc", -1.0), ("s1", "d", 1.0)], terminated=True, truncated=False)
    first, second = rows(trajectory, 0, Discounting(0.5, "turn"))
    assert first["discounts"] == [1, 1, 1, 0.5]
    assert first["returns"] == [-0.5, -0.5, -0.5, -0.5]
    assert second["returns"] == [1, 1]
    (row,) = rows(episode("maze_po", [("s0", "abc", -1.0), ("s1", "d", 1.0)]), None, Discounting(0.5, "turn"))
    assert row["discounts"] == [1, 1, 1, 0.5, 1, 0.5]


def test_the_scale_multiplies_rewards_and_returns() -> None:
    turns = [("s0", "a", -1.0), ("s1", "b", 2.0)]
    ended = {"terminated": True, "truncated": False}
    (row,) = rows(episode("maze_po", turns, **ended), None, Discounting(0.5, "turn", 10.0))
    assert row["rewards"] == [0, -10, 0, 20] and row["returns"] == [0, 0, 20, 20]
    with pytest.raises(ValueError, match="reward scale is 0"):
        build_transitions([], Renderer(byte_tokenizer(), MAZE), Discounting(scale=0))


def test_a_truncated_episode_is_followed_by_the_prompt_that_would_have_come() -> None:
    (row,) = rows(episode("maze", [("s0", "a", -1.0)], final_observation="s1"), 0, Discounting())
    assert (row["bootstrap"], row["next_prompt"]) == (True, [115, 49, 10])
    (row,) = rows(episode("maze_po", [("s0", "a", -1.0)], final_observation="s1"), None, Discounting())
    assert row["next_prompt"] == [115, 48, 10, 97, 10, 115, 49, 10], "with the whole history"


@pytest.mark.parametrize("final", [None, "Failure"])
def test_where_the_successor_is_not_known_the_last_action_is_left_out(final: str | None) -> None:
    """But its reward is part of the returns before it."""
    turns = [("s0", "ab", -1.0), ("s1", "cd", -2.0)]
    (row,) = rows(episode("maze", turns, final_observation=final), 0, Discounting(0.5))
    assert row["input_ids"] == [115, 48, 10, 97, 98, 10]
    assert (row["bootstrap"], row["next_prompt"]) == (True, [115, 49, 10])
    assert row["returns"] == [-0.3125, -0.625, -1.25], "-1 + 0.5 * (0.25 * -2)"
    (row,) = rows(episode("maze_po", turns, final_observation=final), None, Discounting(0.5))
    assert row["input_ids"] == [115, 48, 10, 97, 98, 10, 115, 49, 10]
    assert (row["places"], row["bootstrap"], row["next_prompt"]) == ([3, 4, 5], True, [])
    assert row["returns"] == [-0.3125, -0.625, -1.25]
    batch = transition_collator(PAD)([row])
    assert batch["next_states"].tolist() == [3, 4, 8], "the last one is the end of the prompt that is left"
    assert rows(episode("maze", turns[:1], final_observation=final), 0, Discounting()) == []
    # A cut by the collector has a next observation, and so has every other task at its limit.
    (row,) = rows(episode("maze", turns[:1], final_observation="s1"), 0, Discounting())
    assert row["next_prompt"] == [115, 49, 10]


def test_a_batch_by_hand() -> None:
    """Two turns of one episode, and one of another whose next prompt no row begins with."""
    one = rows(
        episode("maze", [("s0", "a", -1.0), ("s1", "b", 2.0)], terminated=True, truncated=False), 0, Discounting()
    )
    other = rows(episode("maze", [("s9", "ab", -3.0)], final_observation="s7"), 0, Discounting())
    batch = transition_collator(PAD)([*one, *other])
    assert batch["input_ids"].tolist() == [
        [115, 48, 10, 97, 10, 0],
        [115, 49, 10, 98, 10, 0],
        [115, 57, 10, 97, 98, 10],
        [115, 55, 10, 0, 0, 0],  # added: the prompt after the last row
    ]
    assert batch["attention_mask"].sum(1).tolist() == [5, 5, 6, 3]
    assert batch["tokens"].tolist() == [97, 10, 98, 10, 97, 98, 10]
    assert batch["states"].tolist() == [2, 3, 8, 9, 14, 15, 16]
    # Within an action the next token; from the first row to the end of the second row's prompt (row 1, place 2); the
    # end of the second has no successor; from the third to the end of the added row's prompt (row 3, place 2).
    assert batch["next_states"].tolist()[:3] == [3, 8, 9]
    assert batch["next_states"].tolist()[4:] == [15, 16, 20]
    assert batch["bootstrap"].tolist() == [1, 1, 1, 0, 1, 1, 1]
    assert batch["rewards"].tolist() == [0, -1, 0, 2, 0, 0, -3]


@pytest.mark.parametrize(
    ("task", "memory", "max_length"), [("maze", 0, 200), ("maze_po", None, 160), ("maze_po", 2, 200)]
)
def test_successors_hold_the_text_before_the_next_action(task: str, memory: int | None, max_length: int) -> None:
    """Whole episodes in one batch: the state of each successor is the prompt plus what was said of the action."""
    renderer = Renderer(plain_tokenizer(), load_task(task).spec, memory=memory, max_length=max_length)
    trajectories = maze_episodes(task, 3)
    batch = transition_collator(PAD)(
        [row for t in trajectories for row in to_transition_rows(encode(t, renderer), Discounting())]
    )
    longest = batch["input_ids"].shape[1]

    def before(place: int) -> list[int]:
        return batch["input_ids"][place // longest, : place % longest + 1].tolist()

    expected_states, expected_next, expected_bootstrap = [], [], []
    for trajectory in trajectories:
        texts = []
        for number, turn in enumerate(trajectory.turns):
            prompt = renderer.prompt_ids(trajectory.turns[:number], turn.observation)
            action = renderer.action_ids(turn.action)
            texts += [[*prompt, *action[:k]] for k in range(len(action))]
        expected_states += texts
        final = None
        if trajectory.truncated:
            final = renderer.prompt_ids(trajectory.turns, trajectory.final_observation or "")
        expected_next += [*texts[1:], final]
        expected_bootstrap += [1.0] * (len(texts) - 1) + [float(trajectory.truncated)]
    assert [before(place) for place in batch["states"].tolist()] == expected_states
    assert batch["bootstrap"].tolist() == expected_bootstrap
    for place, expected in zip(batch["next_states"].tolist(), expected_next, strict=True):
        assert expected is None or before(place) == expected


def test_rows_stay_the_same_as_arrow_and_what_repeats_is_merged() -> None:
    renderer = Renderer(plain_tokenizer(), MAZE)
    trajectories = maze_episodes("maze", 40)
    dataset = build_transitions(trajectories, renderer, Discounting())
    plain = [row for t in trajectories for row in to_transition_rows(encode(t, renderer), Discounting())]
    assert dataset[:]["input_ids"] == [row["input_ids"] for row in plain]
    assert dataset[:]["returns"] == [pytest.approx(row["returns"], abs=1e-5) for row in plain]
    merged = merge_transitions(dataset, 1000, multiple_of=8)
    assert len(merged) < 150 and len(merged) % 8 == 0
    assert sum(merged["weight"]) == len(dataset)
    key = merged[0]["input_ids"]
    same = [row["returns"] for row in plain if row["input_ids"] == key]
    found = [row for row in merged if row["input_ids"] == key and row["weight"]]
    total = sum(torch.tensor(row["returns"]) * row["weight"] for row in found)
    assert total.tolist() == pytest.approx(torch.tensor(same).sum(0).tolist(), abs=1e-3)
    assert merge_transitions(dataset, 20) is dataset


@pytest.mark.parametrize(
    ("discounting", "message"),
    [
        (Discounting(0.9, "word"), "discount is 'word'; allowed: token, turn"),
        (Discounting(1.1), "gamma is 1.1; allowed are numbers from 0 to 1"),
    ],
)
def test_impossible_discounting_is_refused(discounting: Discounting, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_transitions(maze_episodes("maze", 1), Renderer(plain_tokenizer(), MAZE), discounting)


def test_no_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no trajectories to train on"):
        build_transitions([], Renderer(plain_tokenizer(), MAZE), Discounting())
