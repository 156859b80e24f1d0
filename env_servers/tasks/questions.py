"""What Twenty Questions and Guess My City share: the rules of asking, and questioners that split the candidates.

Both are LMRL-Gym's (arXiv 2311.18232, sections 4 and C): a hidden thing, up to 20 questions, each costs 1, the question
that names the thing costs nothing and ends the game. The answers are a partner's.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from env_servers.partners import (
    GUARDED,
    KNOWLEDGE,
    Answer,
    Exchange,
    Partner,
    Query,
    Tally,
    check_partner,
    find_partner,
    is_of,
    recorded_answers,
)
from env_servers.policy import Context
from env_servers.task import Env, EpisodeError, Step
from env_servers.trajectory import Trajectory

FIRST = "Questions:"
MAX_QUESTIONS = 20
LONGEST_QUESTION = 400  # characters; a longer text is not asked


class QuestionGame(Env):
    """A hidden thing that is found by asking. A subclass says what is hidden, who knows it and what wins.

    Args:
        partner: Who answers: `knowledge`, or as in `env_servers.partners.find_partner`.
        partner_options: Options of the partner.

    Raises:
        ValueError: An option has a value that it does not take.
    """

    guarded = GUARDED

    # What a text that is no question gets, in place of an answer.
    no_question: str

    def __init__(self, *, partner: str = KNOWLEDGE, partner_options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(partner_options or {})
        check_partner(self.spec.id, partner, self._options)
        self._partner_name = partner
        self._recorded: Sequence[str] | None = None
        self._asked = ""
        self._exchanges: list[Exchange] = []
        self._secret: dict[str, Any] = {}
        self._seed = 0
        self._tally = Tally()

    @abstractmethod
    def _draw_secret(self, rng: random.Random) -> dict[str, Any]: ...

    @abstractmethod
    def _wins(self, question: str, answer: str) -> bool: ...

    @abstractmethod
    def _own_partner(self) -> Partner: ...

    def _say(self, answer: str) -> str:
        """The answer as the agent reads it."""
        return answer

    def _reset(self, rng: random.Random) -> str:
        self._secret = self._draw_secret(rng)
        self._seed = rng.getrandbits(62)
        self._exchanges, self._tally = [], Tally()
        self.prepare()
        return FIRST

    def _step(self, action: str) -> Step | Query:
        self._asked = " ".join(action.split())
        if len(action) > LONGEST_QUESTION or not any(letter.isalpha() for letter in self._asked):
            return self._go_on(self.no_question, legal=False)
        if self._recorded is not None:
            number = len(self._exchanges)
            if number >= len(self._recorded):
                raise EpisodeError(f"the record has no answer {number}")
            return self._go_on(self._recorded[number])
        return Query(self.spec.id, self._secret, tuple(self._exchanges), self._asked, self._seed)

    def _receive(self, answer: Answer) -> Step | Query:
        self._tally.count(answer)
        return self._go_on(self._say(answer.text))

    def _go_on(self, answer: str, *, legal: bool = True) -> Step:
        self._exchanges.append(Exchange(self._asked, answer))
        if legal and self._wins(self._asked, answer):
            return Step.end(answer, 0.0, "guessed", success=True)
        if len(self._exchanges) == MAX_QUESTIONS:
            # Twenty questions are the rule of the game, so that it is lost, not cut short: terminated.
            return Step.end(answer, -1.0, "out_of_questions", success=False, legal=legal)
        return Step.ongoing(answer, -1.0, legal=legal)

    @property
    def info(self) -> dict[str, Any]:
        """What is hidden, the partner with its revision, and how many questions it did not understand."""
        return {**self._secret, **self._tally.info(self.partner)}

    def draw(self) -> str:
        """How many questions are left."""
        left = MAX_QUESTIONS - len(self._exchanges)
        return f"({left} question{'' if left == 1 else 's'} left)"

    def prepare(self) -> None:
        """Find the partner."""
        if self.partner is None and self._recorded is None:
            self.partner = find_partner(self.spec.id, self._partner_name, self._options, self._own_partner)

    def follow(self, trajectory: Trajectory) -> None:
        """Take the answers from a record, unless they are those of the task's own partner as it is now."""
        if is_of(trajectory.info, self._own_partner()):
            return
        texts = [turn.observation for turn in trajectory.turns[1:]]
        self._recorded = recorded_answers([*texts, trajectory.final_observation or ""])


class Splitter:
    """A questioner that knows how the task's own partner answers, and asks what splits the candidates best.

    Args:
        questions: What it can ask, besides guesses.
        guesses: The question that names each candidate.
        answers: Answer of the partner to each question about each candidate: numbers, (questions, candidates).
        texts: What those numbers stand for.
    """

    def __init__(
        self, questions: Sequence[str], guesses: Sequence[str], answers: npt.NDArray[np.int32], texts: Sequence[str]
    ) -> None:
        self.questions = list(questions)
        self.guesses = list(guesses)
        self._answers = answers
        self._number = {text: number for number, text in enumerate(texts)}
        self._row = {question: row for row, question in enumerate(self.questions)}
        self._guess = {guess: candidate for candidate, guess in enumerate(self.guesses)}
        self._best: dict[bytes, npt.NDArray[np.int64]] = {}

    def left(self, context: Context) -> npt.NDArray[np.int64]:
        """The candidates that agree with the answers so far; answers that leave none are not believed."""
        left = np.arange(len(self.guesses))
        observations = [turn.observation for turn in context.history]
        observations.append(context.observation)
        for turn, answer in zip(context.history, observations[1:], strict=True):
            if (guess := self._guess.get(turn.action)) is not None:
                rest = left[left != guess]  # the game goes on, so that it was not this one
            elif (row := self._row.get(turn.action)) is not None:
                rest = left[self._answers[row, left] == self._number.get(answer, -1)]
            else:
                continue
            if len(rest):
                left = rest
        return left

    def ranked(self, left: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows of the questions, those first that leave the fewest bits open."""
        key = left.tobytes()
        if key not in self._best:
            counts = np.zeros((len(self.questions), len(self._number)))
            np.add.at(counts, (np.arange(len(self.questions))[:, None], self._answers[:, left]), 1)
            bits = (counts * np.log2(np.maximum(counts, 1))).sum(axis=1)
            if len(self._best) > 100_000:
                self._best.clear()
            self._best[key] = np.argsort(bits, kind="stable")
        return self._best[key]

    def ask(self, context: Context, *, choose_among: int = 1) -> str:
        """The best question, or a random one of the best; a guess where one or two candidates are left.

        Args:
            context: The episode.
            choose_among: How many of the best questions to choose among.
        """
        left = self.left(context)
        last = len(context.history) == MAX_QUESTIONS - 1
        if len(left) <= 2 or last:
            return self.guesses[int(context.rng.choice(left.tolist()))]
        ranked = self.ranked(left)
        useful = [row for row in ranked[:choose_among].tolist() if len(set(self._answers[row, left].tolist())) > 1]
        if not useful:
            return self.guesses[int(context.rng.choice(left.tolist()))]
        row: int = context.rng.choice(useful)
        return self.questions[row]
