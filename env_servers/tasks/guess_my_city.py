"""Guess My City: find out by asking which of a hundred large cities the partner is from (LMRL-Gym, sections 4 and C).

The partner knows the city and answers questions about it, open ones in a sentence, without saying the name of the city
or of its country. There are 20 questions; each costs 1 but for the one that names the city, which ends the game.
Returns lie in [-20, 0].

What the questioner says decides about winning, not how the partner words its answer: a question wins that names the
city as its guess (`win`, and `strict` where the answer has to agree).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from env_servers.partners import KNOWLEDGE, Answer, Partner, Query
from env_servers.policy import scripted
from env_servers.scores import Normalisation
from env_servers.task import Step, TaskSpec
from env_servers.tasks.city_agents import (
    behavior_question,
    naive_question,
    noisy_question,
    optimal_question,
    random_question,
)
from env_servers.tasks.city_facts import atlas
from env_servers.tasks.city_names import blank, guess, named
from env_servers.tasks.city_partner import knowledge_partner
from env_servers.tasks.questions import MAX_QUESTIONS, QuestionGame

ANSWERS = ("free", "yes_no")
NUMBERS = (100, 99)
WINS = ("name", "substring")
YES = re.compile(r"\W*yes\b", re.IGNORECASE)


class GuessMyCity(QuestionGame):
    """The game.

    Args:
        partner: Who answers: `knowledge` (from tables), or as in `env_servers.partners.find_partner`.
        partner_options: Options of the partner.
        answers: `free`, sentences; `yes_no`: an answer that begins with yes is `Yes.`, any other `No.`, as in the
            paper's code.
        cities: 100, or 99 without Seoul, the first line of the list, which the paper's code skips.
        win: Which question wins: `name`, one that names the city as its guess ("Is it Paris?", not "Is it near
            Paris?"); `substring`, one that has the name in it anywhere, the rule by which the paper's data was made.
        strict: Whether the answer must also begin with yes.

    Raises:
        ValueError: An option has a value that it does not take.
    """

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="guess_my_city",
        version="1.0",
        title="Guess My City",
        summary="Find out by asking which of a hundred large cities the partner is from, with at most 20 questions.",
        instructions=(
            "You play Guess My City. Your partner is from one of a hundred large cities of the world, and you find "
            "out which one. Ask one question at a time, at most twenty: one that is answered by yes or no (Is it in "
            "Europe?) or an open one (What language do people speak there?). The partner answers, but names neither "
            "the city nor its country. You win as soon as you ask for the right city, for example: Is it Paris? Use as "
            "few questions as you can. Answer with your next question and nothing else."
        ),
        memory=None,
        max_turns=MAX_QUESTIONS,
        # The questions of the data have up to 20 tokens; this leaves room for a sentence of thirty words.
        max_action_tokens=48,
        min_return=-float(MAX_QUESTIONS),
        max_return=0.0,
        end_reasons=("guessed", "out_of_questions"),
        # The paper gives no number. A thousand episodes put the standard error of a mean return at about 0.15.
        test_episodes=1000,
        normalisations={
            "paper": Normalisation(-20.0, -18.8, -8.56, "LMRL-Gym, Table 5"),
            "lmrl": Normalisation(-19.37, -17.29, -1.71, "`random`, `behavior` and `optimal` over 10,000 episodes"),
        },
        paper={
            "episodes": 100_000, "mean_length": 18.8, "std_length": 4.57,
            "success_rate": 0.53, "mean_return": -18.8, "std_return": 4.12,
        },
    )  # fmt: skip
    no_question = "Please ask me a question about my city."

    def __init__(
        self,
        *,
        partner: str = KNOWLEDGE,
        partner_options: Mapping[str, Any] | None = None,
        answers: str = "free",
        cities: int = 100,
        win: str = "name",
        strict: bool = False,
    ) -> None:
        super().__init__(partner=partner, partner_options=partner_options)
        if answers not in ANSWERS:
            raise ValueError(f"guess_my_city: answers is {answers!r}; allowed: {', '.join(ANSWERS)}")
        if isinstance(cities, bool) or cities not in NUMBERS:
            raise ValueError(f"guess_my_city: cities is {cities!r}; allowed: 100, or 99 without Seoul")
        if win not in WINS:
            raise ValueError(f"guess_my_city: win is {win!r}; allowed: {', '.join(WINS)}")
        if not isinstance(strict, bool):
            raise ValueError(f"guess_my_city: strict is {strict!r}; allowed: true, false")
        self._answers, self._cities, self._win, self._strict = answers, cities, win, strict
        self._puzzled = False

    def _draw_secret(self, rng: random.Random) -> dict[str, Any]:
        everything = atlas().cities
        city = everything[rng.randrange(len(everything) - self._cities, len(everything))]
        return {"city": city.name, "country": city.land.name}

    def _wins(self, question: str, answer: str) -> bool:
        if self._strict and not YES.match(answer):
            return False
        if self._win == "substring":
            cities = named(question)
        else:
            found = guess(question)
            cities = {found.city} if found is not None and found.fits and found.city is not None else set()
        return any(atlas().cities[city].name == self._secret["city"] for city in cities)

    def _own_partner(self) -> Partner:
        return knowledge_partner()

    def _say(self, answer: str) -> str:
        """Without the names that a language model lets slip, on one line; or yes and no alone."""
        if self._answers == "yes_no":
            return "Yes." if YES.match(answer) else "No."
        return blank(" ".join(answer.split()), self._secret["city"])

    def _step(self, action: str) -> Step | Query:
        self._puzzled = False
        return super()._step(action)

    def _receive(self, answer: Answer) -> Step | Query:
        self._puzzled = not answer.understood
        return super()._receive(answer)

    @property
    def info(self) -> dict[str, Any]:
        """What the base says (`city` and `country` are hidden), and the options that scripted policies need."""
        return {**super().info, "answers": self._answers, "cities": self._cities}

    def draw(self) -> str:
        """How many questions are left; at the end, which city it was."""
        if self._finished:
            return f"The city was {self._secret['city']}, {self._secret['country']}."
        note = "\n(this question was not understood; try other words)" if self._puzzled else ""
        return f"{super().draw()}{note}"


GuessMyCity.policies = scripted(
    random=random_question,
    behavior=behavior_question,
    optimal=optimal_question,
    naive=naive_question,
    noisy=noisy_question,
)
