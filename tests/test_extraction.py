"""The action in free text: answers as chat models write them, for every task, and what is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import plain_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from env_servers.extraction import find_action, without_reasoning
from env_servers.policy import ScriptedPolicy
from env_servers.tasks import load_task, task_ids
from eval_harness.extracting import ROOM, Extracting
from eval_harness.log import read_episodes
from eval_harness.models import Decoding, load, parse_model
from eval_harness.run import evaluate_policy

HOUSE = "You are in an office.\n\nAdmissible commands: go east, go north, open chest, take red key, take key"
MAZE = [
    ("move up", "move up"), ("Move up.", "move up"), ("MOVE LEFT", "move left"), ("  move  down \n", "move down"),
    ("I should go towards the goal.\n\nAction: move right", "move right"),
    ("**move down**", "move down"), ("My answer is: `move up`", "move up"),
    ("There is a wall if I move left, so I will move up.", "move up"),
    ("Since moving left is blocked, the best is \"move right\" because move up leads away.", "move right"),
    ("Action: move left\nWait, that is a wall.\nAction: move up", "move up"),
    ("Let's think step by step.\nThe goal is below.\nmove down", "move down"),
    ("I would go north.", None), ("up", None), ("I am moving uphill", None), ("", None), ("remove left", None),
]  # fmt: skip
TEXT_NAV = [
    ("go east", "go east"), ("Go North!", "go north"), ("> open chest", "open chest"),
    ("I will take red key now", "take red key"), ("Command: take key", "take key"),
    ("You could go east, but I prefer to open chest.", "open chest"), ("go west", None), ("look around", None),
]  # fmt: skip
WORDLE = [
    ("c r a n e", "c r a n e"), ("crane", "c r a n e"), ("CRANE", "c r a n e"), ("Guess: crane", "c r a n e"),
    ("My first guess is: **slate**", "s l a t e"), ("I'll guess \"house\".", "h o u s e"),
    ("Let me think about which letters there are. My guess: S T A R E", "s t a r e"),
    ("C-R-A-N-E", "c r a n e"), ("The best word here would be PLANT since it has an A.", "p l a n t"),
    ("I think there might be other words which could still fit here", None), ("cranes", None), ("c r a n", None),
]  # fmt: skip
CHESS = [
    ("N f 3", "N f 3"), ("Nf3", "N f 3"), ("e4", "e 4"), ("1. e4", "e 4"), ("O-O", "O - O"), ("0-0-0", "O - O - O"),
    ("I play Qxh7#", "Q x h 7 #"), ("Move: e8=Q+", "e 8 = Q +"), ("The best move is **Rae1**.", "R a e 1"),
    ("White should develop with Nf3, which controls e5.\n\nMove: Nf3", "N f 3"), ("exd5", "e x d 5"),
    ("I resign", None), ("i9", None),
]  # fmt: skip
QUESTIONS = [
    ("Is it an animal?", "Is it an animal?"), ("1. Is it bigger than a car?", "Is it bigger than a car?"),
    ("Question: Is it alive?", "Is it alive?"), ("\"Can you eat it?\"", "Can you eat it?"),
    ("Great! Let me narrow that down.\nIs it made of metal?", "Is it made of metal?"),
    ("Okay. Does it have legs? I would like to know.", "Does it have legs?"),
    ("**Is it found indoors?**", "Is it found indoors?"), ("I think it is a dog.", None), ("", None),
]  # fmt: skip
SELLER = [
    ("Hello, what are you looking for?", "Hello, what are you looking for?"),
    ("Seller: We have a red Tesla. It costs $40,000.", "We have a red Tesla. It costs $40,000."),
    ("Seller: Hi!\nBuyer: Hello, I want a car.\nSeller: Sure.", "Hi!"), ("\"Good day, sir.\"", "Good day, sir."),
    ("Dealer: Hello.\nHow can I help?", "Hello. How can I help?"), ("  \n", None),
]  # fmt: skip
CASES = {
    "maze": MAZE, "maze_po": MAZE, "text_nav": TEXT_NAV, "text_nav_po": TEXT_NAV, "wordle": WORDLE, "chess": CHESS,
    "chess_endgames": CHESS, "twenty_questions": QUESTIONS, "guess_my_city": QUESTIONS, "car_dealer": SELLER,
}  # fmt: skip


@pytest.mark.parametrize(("task", "text", "action"), [(task, *case) for task in CASES for case in CASES[task]])
def test_the_action_that_a_text_means(task: str, text: str, action: str | None) -> None:
    assert find_action(task, text, HOUSE) == action


def test_every_task_has_cases_and_its_own_actions_are_found_as_they_are() -> None:
    assert sorted(CASES) == sorted(task_ids())
    for task in task_ids():
        for action in load_task(task).spec.actions:
            assert find_action(task, action) == action


@pytest.mark.parametrize(
    ("text", "left"),
    [("<think>\nup or down?\n</think>\nmove up", "move up"), ("move up", "move up"), ("<think>I wonder", None),
     ("<THINKING>a</THINKING> b <think>c</think> d", "b  d"), ("<think>a</think> b <think>c", None)],
)  # fmt: skip
def test_reasoning_is_taken_out_and_an_unfinished_one_has_no_answer(text: str, left: str | None) -> None:
    assert without_reasoning(text) == left


def test_a_chatty_policy_plays_and_the_log_keeps_what_it_said(tmp_path: Path) -> None:
    """Up for ever, said in three ways; the third has no answer, and so is no move."""
    said = iter(["Action: move up", "<think>down?</think>\nmove up", "<think>down", *["move up"] * 200])
    chatty = ScriptedPolicy("chatty", lambda _: next(said))
    result = evaluate_policy("maze", Extracting(chatty), episodes=1, output=tmp_path, progress=False)
    [episode] = read_episodes(result.folder)
    turns, infos = episode.trajectory.turns, episode.trajectory.info["policy"]
    assert [turn.action for turn in turns[:4]] == ["move up", "move up", "<think>down", "move up"]
    assert infos[:4] == [{"raw": "Action: move up"}, {"raw": "<think>down?</think>\nmove up"}, None, None]
    assert [action.legal for action in episode.actions[:4]] == [True, True, False, True]


@pytest.mark.parametrize(("strict", "told"), [(None, False), (False, False), (True, None)])
def test_a_model_that_was_not_trained_on_a_task_is_chatty(
    tmp_path: Path, strict: bool | None, told: bool | None
) -> None:
    tokenizer = plain_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=256)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    loaded = load(parse_model(str(tmp_path)), "maze", Decoding(strict=strict), device="cpu")
    assert loaded.identity.get("strict") is told and isinstance(loaded.policy, Extracting) is (told is False)
    budget = loaded.identity["sampling"]["max_new_tokens"]
    assert budget == (ROOM if told is False else load_task("maze").spec.max_action_tokens)
    with pytest.raises(ValueError, match="rerank draws among"):
        load(parse_model(str(tmp_path)), "maze", Decoding(strict=False, rerank=True), device="cpu")
