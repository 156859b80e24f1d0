"""Wordle of the original release (`wordle/train_data.jsonl`, `eval_data.jsonl`).

A record has `sequence`, pairs of a text and whether it is an action, `reward`, without one for the first text, and
`done`.

The release has no hidden word: its environment draws one anew at each guess from those that agree with all feedback so
far, which comes to the same distribution of games. So a game was played against any word that agrees with all of its
feedback, the last guess of a won one. A seed here draws the word, and a seed stands for a number in the split, so that
an imported game gets the first free number that draws a fitting word; then it replays.

That needs the list of words that it was played with, which is not ours: the release's has 431 words, and lies where
LMRL-Gym lies (option `vocab`, the path of a file). With another list, games that no word of it fits do not replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from env_servers.tasks.wordle import CODES, MARKS, SOLVED, SPACED_MARKS, TRIES, lexicon
from env_servers.trajectory import Turn
from hub_datasets.importers import CUT, RECORD_END, Draft, Layout, MalformedRecord, Steps
from hub_datasets.importers.values import fields, flag, items, number, shown, text, turns_of

FIRST = "Wordle:"
OTHER_LIST = "no word of the list fits: it was played with another list (option vocab)"
INVALID_REWARD = -1.0  # where neither the record nor the options say otherwise


def _read(record: Any) -> Steps:
    record = fields(record, "sequence", "reward", "done")
    texts = []
    for place, pair in enumerate(items(record["sequence"], "sequence")):
        if not isinstance(pair, list) or len(pair) != 2:
            raise MalformedRecord(f"item {place} of sequence is {shown(pair)}; it must be a text and 0 or 1")
        texts.append(text(pair[0], f"text {place}"))
        if flag(pair[1], f"mark of text {place}") != bool(place % 2):
            raise MalformedRecord(
                f"text {place} is {'no' if place % 2 else 'an'} action; observations and actions alternate"
            )
    if len(texts) < 3 or len(texts) % 2 == 0:
        raise MalformedRecord(f"there are {len(texts)} texts; after the first they are guesses, each with its feedback")
    rewards = [number(value, f"reward {place}") for place, value in enumerate(items(record["reward"], "reward"))]
    if len(rewards) == len(texts) - 1:
        rewards.insert(0, 0.0)  # of the first text
    elif len(rewards) != len(texts):
        raise MalformedRecord(
            f"there are {len(rewards)} rewards for {len(texts)} texts; all but the first must have one"
        )
    if any(rewards[::2]):
        raise MalformedRecord(f"the rewards {rewards} have one for an observation")
    return Steps(texts[:-1:2], texts[1::2], rewards[1::2], texts[-1], flag(record["done"], "done"))


def _draft(steps: Steps, options: Mapping[str, Any]) -> Draft:
    turns, feedbacks = turns_of(steps), [*steps.observations[1:], steps.final or ""]
    if steps.observations[0] != FIRST:
        raise MalformedRecord(f"the first text is {shown(steps.observations[0])}; it must be {FIRST!r}")
    if len(turns) > TRIES:
        raise MalformedRecord(f"there are {len(turns)} guesses; at most {TRIES} are allowed")
    codes = [_code(place, marks, turns) for place, marks in enumerate(feedbacks)]
    if SOLVED in codes[:-1]:
        raise MalformedRecord(f"guess {codes.index(SOLVED)} is the word, and more follow")
    solved = codes[-1] == SOLVED
    over = solved or len(codes) == TRIES
    if steps.done and not over:
        raise MalformedRecord(f"it is done after {len(turns)} of {TRIES} guesses, none of which is the word")
    invalid_reward = _check_rewards(turns, codes, options)
    vocab = options.get("vocab", "common")
    starts = _fitting_words(turns, codes, vocab)
    return Draft(
        turns=turns,
        final_observation=steps.final,
        terminated=over,
        end_reason="solved" if solved else "out_of_tries" if over else RECORD_END,
        success=solved,
        num_invalid=codes.count(None),
        env_kwargs={**options, **({} if invalid_reward == INVALID_REWARD else {"invalid_reward": invalid_reward})},
        info={"word": turns[-1].action.replace(" ", "") if solved else None, "vocab": vocab},
        no_replay="" if starts else OTHER_LIST,
        starts=starts or None,
    )


def _code(place: int, marks: str, turns: tuple[Turn, ...]) -> int | None:
    """The feedback's number, None for that on an invalid guess."""
    if marks == "":
        return None
    if marks not in CODES or marks in MARKS:
        given = f"the feedback on guess {place}, {turns[place].action!r:.40}, is {shown(marks)}"
        raise MalformedRecord(f"{given}; it must be empty or five of b, y and g, such as {SPACED_MARKS[0]!r}")
    return CODES[marks]


def _check_rewards(turns: tuple[Turn, ...], codes: list[int | None], options: Mapping[str, Any]) -> float:
    """The reward that invalid guesses have in this record."""
    invalid = options.get("invalid_reward")
    for place, (turn, code) in enumerate(zip(turns, codes, strict=True)):
        if code is None:
            invalid = turn.reward if invalid is None else invalid
            expected = invalid
        else:
            expected = 0.0 if code == SOLVED else -1.0
        if turn.reward != expected:
            raise MalformedRecord(f"the reward of guess {place} is {turn.reward:g}; by the rules it is {expected:g}")
    return INVALID_REWARD if invalid is None else float(invalid)


def _fitting_words(turns: tuple[Turn, ...], codes: list[int | None], vocab: str) -> list[str]:
    """The words of the list against which the game may have been played."""
    book, known = lexicon(vocab, "paper"), []
    for turn, code in zip(turns, codes, strict=True):
        guess = book.number(turn.action)
        if (guess is None) != (code is None):
            return []
        if guess is not None and code is not None:
            known.append((guess, code))
    return [book.words[word] for word in book.consistent(known)]


LAYOUTS = {
    "wordle": Layout(
        read=_read,
        draft=_draft,
        options=("vocab", "invalid_reward"),
        reasons=CUT,
        no_replay=(OTHER_LIST,),
        start_of=lambda info: str(info["word"]),
    )
}
