"""Small tasks with a partner, under the ids of real ones: a game of questions, and a talk where the past matters.

`install` puts them into the registry, so that everything that finds a task by its id plays these.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from env_servers import tasks
from env_servers.partners import KNOWLEDGE, Answer, AnsweringPartner, Exchange, Partner, Query, Tally, find_partner
from env_servers.policy import Context, scripted
from env_servers.scores import Normalisation
from env_servers.task import Env, EpisodeError, Step, TaskSpec
from env_servers.tasks.questions import QuestionGame

OBJECTS = {"Cat": ["Cat"], "Dog": ["Dog"], "Plane": ["Airplane", "Plane"], "Cup": ["Cup"]}
TRUE_OF = {
    "Is it alive?": {"Cat", "Dog"},
    "Can it fly?": {"Plane"},
    "Does it bark?": {"Dog"},
    **{f"Is it a {name.lower()}?": {name} for name in OBJECTS},
}
SCALES = {"paper": Normalisation(-20, -17, -12, "made up"), "lmrl": Normalisation(-20, -10, 0, "made up")}


def answer_truly(query: Query) -> Answer:
    """Yes or No; what it does not know it does not understand."""
    known = TRUE_OF.get(query.text)
    if known is None:
        return Answer("No.", understood=False)
    return Answer("Yes." if query.secret["word"][-1] in known else "No.")


def answer_by_dice(query: Query) -> Answer:
    """An answer that is another one in each moment of each episode."""
    return Answer(f"{query.rng().choice(['Yes', 'No'])}, {query.rng().randrange(1000)} times.")


OWN = AnsweringPartner(KNOWLEDGE, "7", answer_truly)
DICE = AnsweringPartner("dice", "1", answer_by_dice)


def ask(context: Context) -> str:
    return context.rng.choice([*TRUE_OF, "Is it nice?"])


class SmallGame(QuestionGame):
    """Four things; the question that names one wins."""

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="twenty_questions",
        version="t1",
        title="Small questions",
        summary="Find the thing.",
        instructions="Ask.",
        memory=None,
        max_turns=20,
        max_action_tokens=16,
        min_return=-20,
        max_return=0,
        end_reasons=("guessed", "out_of_questions"),
        test_episodes=8,
        normalisations=SCALES,
    )
    policies = scripted(behavior=ask, random=lambda context: context.rng.choice(["Is it alive?", "?", "Is it odd?"]))
    no_question = "Ask a question."

    def _draw_secret(self, rng: random.Random) -> dict[str, Any]:
        return {"word": OBJECTS[rng.choice(sorted(OBJECTS))]}

    def _wins(self, question: str, answer: str) -> bool:
        return question == f"Is it a {self._secret['word'][-1].lower()}?"

    def _own_partner(self) -> Partner:
        return OWN

    @property
    def info(self) -> dict[str, Any]:
        return {**super().info, "answers": "free"}  # an option of the game, no list of what was said


def buy(query: Query) -> Answer:
    """Counts what it has heard, and decides when it is told to."""
    if query.prefix:
        return Answer("Accept")
    heard = [exchange.text for exchange in query.exchanges]
    return Answer(f"I have heard {len(heard)} lines ({query.rng().randrange(100)}).", understood="car" in query.text)


BUYER = AnsweringPartner(KNOWLEDGE, "3", buy)


class SmallTalk(Env):
    """Three lines, then the partner must decide: `Accept` or anything else."""

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="car_dealer",
        version="t1",
        title="Small talk",
        summary="Sell the car.",
        instructions="Talk.",
        memory=None,
        max_turns=3,
        max_action_tokens=16,
        min_return=0,
        max_return=1,
        end_reasons=("decided",),
        test_episodes=8,
        normalisations=SCALES,
    )
    policies = scripted(behavior=lambda context: context.rng.choice(["Buy this car!", "Nice car.", "Well?"]))

    def __init__(self, *, partner: str = KNOWLEDGE, partner_options: Mapping[str, Any] | None = None) -> None:
        self._choice = partner, dict(partner_options or {})

    def _reset(self, rng: random.Random) -> str:
        self._secret = {
            "personality": rng.choice(["rude", "polite"]), "brand": "a Tesla", "type": "truck",
            "features": ["sunroof", "leather seats"], "budget": rng.choice([10000, 90000]),
        }  # fmt: skip
        self._seed, self._exchanges, self._answers = rng.getrandbits(62), list[Exchange](), list[str]()
        self._tally = Tally()
        self.prepare()
        return "Start"

    def prepare(self) -> None:
        if self.partner is None:
            self.partner = find_partner(self.spec.id, *self._choice, lambda: BUYER)

    def _query(self, prefix: str = "") -> Query:
        return Query(self.spec.id, self._secret, tuple(self._exchanges), self._said, self._seed, prefix)

    def _step(self, action: str) -> Query:
        self._said, self._asked_again = action, False
        return self._query()

    def _receive(self, answer: Answer) -> Step | Query:
        self._answers.append(answer.text)
        self._tally.count(answer)
        if self._asked_again:
            sold = answer.text == "Accept"
            return Step.end(self._shown, float(sold), "decided", success=sold)
        self._shown = answer.text.upper()  # what the agent reads is not what the partner said
        if len(self._exchanges) == 2:
            self._asked_again = True
            return self._query("Output: Decision=")
        self._exchanges.append(Exchange(self._said, answer.text))
        return Step.ongoing(self._shown, 0.0)

    @property
    def info(self) -> dict[str, Any]:
        return {**self._secret, "answers": list(self._answers), **self._tally.info(self.partner)}


class Failing:
    """A partner that fails on one question."""

    name, revision = "failing", "1"

    def __init__(self, question: str) -> None:
        self.question = question

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        return [
            EpisodeError("no connection") if query.text == self.question else answer_truly(query) for query in queries
        ]


def install() -> None:
    """Take the small tasks in place of the real ones, in this process."""
    tasks.TASKS = {
        **tasks.TASKS,
        "twenty_questions": "small_game:SmallGame",
        "car_dealer": "small_game:SmallTalk",
    }
