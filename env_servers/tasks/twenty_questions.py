"""Twenty Questions: find one of 158 objects by yes/no questions (LMRL-Gym, arXiv 2311.18232, sections 4.3 and C.4).

The rules are in `questions`. The default partner, `knowledge`, answers from a table of facts: `object_questions`
understands the question, `object_facts` knows the objects. A question wins if it names the object (`object_names`) and
the answer is yes.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from env_servers.partners import KNOWLEDGE, Answer, AnsweringPartner, Partner, Query
from env_servers.policy import Context, scripted
from env_servers.scores import Normalisation
from env_servers.task import Step, TaskSpec
from env_servers.tasks.object_facts import digest, facts, lines, read_asset
from env_servers.tasks.object_names import names_object, names_object_by_tags, nltk_tagger
from env_servers.tasks.object_questions import understand
from env_servers.tasks.questions import MAX_QUESTIONS, QuestionGame, Splitter

YES, NO = "Yes.", "No."
WINS = ("name", "paper")
BANK_FILE = "object_question_bank.txt"
# Of the partner's answers. Raised when the code below `object_questions` answers another way; the data counts itself.
VERSION = "2"


# The partner --------------------------------------------------------------------------------------------------------
@functools.cache
def _place() -> Mapping[str, int]:
    return {name: number for number, name in enumerate(facts().names)}


def _answer(query: Query) -> Answer:
    vector = understand(query.text)
    if vector is None:
        return Answer(NO, understood=False)
    return Answer(YES if vector[_place()[query.secret["word"][0]]] else NO)


@functools.cache
def knowledge_partner() -> Partner:
    """Who answers from the table of facts. What it does not understand gets the paper's "No."."""
    return AnsweringPartner(KNOWLEDGE, f"{VERSION}-{digest()}", _answer)


class TwentyQuestions(QuestionGame):
    """The game.

    Args:
        win: When a question names the object: `name`, by `names_object`, or `paper`, by the paper's rule, which needs
            NLTK and gives what its tagger gives.
        partner: Who answers: `knowledge`, or as in `env_servers.partners.find_partner`.
        partner_options: Options of the partner.

    Raises:
        ValueError: An option has a value that it does not take.
    """

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="twenty_questions",
        version="1.0",
        title="Twenty Questions",
        summary="Find out which of 158 things is meant, by at most twenty questions with Yes or No for an answer.",
        instructions=(
            "You play Twenty Questions. I think of one everyday thing: an animal, a fruit or vegetable, a vehicle, "
            "something to wear, a musical instrument, furniture, a tool, something from the kitchen or the office, a "
            "toy, or something in nature. Ask one question at a time that can be answered with Yes or No, about "
            "anything: what it is, what it is made of, how big it is, where it is found, what it is used for. You win "
            "as soon as you name the thing in a question and the answer is yes. You have 20 questions; each costs one "
            "point, but the one that names the thing is free. Answer with exactly one question and nothing else, for "
            "example: Is it bigger than a car?"
        ),
        memory=None,
        max_turns=MAX_QUESTIONS,
        max_action_tokens=32,
        min_return=-float(MAX_QUESTIONS),
        max_return=0.0,
        end_reasons=("guessed", "out_of_questions"),
        # Each object comes up about six times, and the mean return of a middling policy is known to about 0.15.
        test_episodes=1000,
        normalisations={
            "paper": Normalisation(-20.0, -17.3, -12.6, "LMRL-Gym, Table 5"),
            "lmrl": Normalisation(
                -19.44,
                -17.35,
                -6.97,
                "`random` and `behavior` over 20,000 episodes; `optimal` over every object",
            ),
        },
        paper={
            "episodes": 100_000, "mean_length": 14.9, "std_length": 4.38,
            "success_rate": 0.31, "mean_return": -17.3, "std_return": 2.56,
        },
    )  # fmt: skip

    no_question = NO

    def __init__(
        self, *, win: str = "name", partner: str = KNOWLEDGE, partner_options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(partner=partner, partner_options=partner_options)
        if win not in WINS:
            raise ValueError(f"twenty_questions: win is {win!r}; allowed: {', '.join(WINS)}")
        self._win = win
        self._understood = True

    def _draw_secret(self, rng: random.Random) -> dict[str, Any]:
        return {"word": list(rng.choice(facts().variants))}

    def _wins(self, question: str, answer: str) -> bool:
        if answer != YES:
            return False
        variants = tuple(self._secret["word"])
        if self._win == "paper":
            return names_object_by_tags(question, variants, nltk_tagger())
        return names_object(question, variants)

    def _own_partner(self) -> Partner:
        return knowledge_partner()

    def _reset(self, rng: random.Random) -> str:
        self._understood = True
        return super()._reset(rng)

    def _step(self, action: str) -> Step | Query:
        self._understood = True
        return super()._step(action)

    def _receive(self, answer: Answer) -> Step | Query:
        self._understood = answer.understood
        return super()._receive(answer)

    def prepare(self) -> None:
        """Find the partner, and the tagger where the rule needs one."""
        if self._win == "paper":
            nltk_tagger()
        super().prepare()

    def draw(self) -> str:
        """How many questions are left and whether the last was understood; at the end, what it was."""
        if self._finished:
            return f"(it was: {self._secret['word'][0]})"
        left = super().draw()
        return left if self._understood else left.replace("(", "(that was not understood, so No is no answer; ")


# Scripted policies --------------------------------------------------------------------------------------------------
MASS_NOUNS = frozenset(("Paper", "Broccoli", "Spinach", "Corn", "Celery", "Peas", "Toothpaste", "Glue"))
UNIQUE = frozenset(("Ocean", "Sea"))
CHOICE = 60  # among how many of the best questions a questioner with noise chooses
NOISE = 0.25  # how often `noisy` asks anything or names anything
ASIDE = 0.2  # how often `naive` asks anything
NAIVE_SHARE = 0.15  # of the episodes of `behavior`
REMEMBERED = 10_000  # sets of candidates whose best questions are kept


def guess_of(variants: Sequence[str]) -> str:
    """The question that names an object: "Is it a cat?", "Is it a pair of shoes?"."""
    pair = next((variant for variant in variants if variant.startswith(("Pair of", "Piece of"))), None)
    name = (pair or variants[0]).lower()
    if variants[0] == "Television":
        name = "TV"
    if variants[0] in UNIQUE:
        return f"Is it the {name}?"
    if variants[0] in MASS_NOUNS and pair is None:
        return f"Is it {name}?"
    return f"Is it {'an' if name[0] in 'aeiou' else 'a'} {name}?"


class YesNoSplitter(Splitter):
    """The splitter for questions with two answers, which is faster: hundreds of times a noisy questioner splits."""

    def __init__(self, questions: Sequence[str], guesses: Sequence[str], yes: npt.NDArray[np.bool_]) -> None:
        super().__init__(questions, guesses, yes.astype(np.int32), (NO, YES))
        self._yes = yes.astype(np.float32)

    def ranked(self, left: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows of the questions that split the candidates at all, those first that do it most evenly."""
        key = left.tobytes()
        if key not in self._best:
            if len(self._best) >= REMEMBERED:
                self._best.clear()
            members = np.zeros(len(self.guesses), np.float32)
            members[left] = 1
            uneven = np.abs(2 * (self._yes @ members) - len(left))
            order = np.argsort(uneven, kind="stable")
            self._best[key] = order[uneven[order] < len(left)]
        return self._best[key]

    def ask(self, context: Context, *, choose_among: int = 1) -> str:
        """As in `Splitter`: the best question, or one of the best; a guess where one or two candidates are left."""
        left = self.left(context)
        if len(left) > 2 and len(context.history) < MAX_QUESTIONS - 1:
            ranked = self.ranked(left)[:choose_among]
            if len(ranked):
                return self.questions[int(context.rng.choice(ranked))]
        return self.guesses[int(context.rng.choice(left))]


@functools.cache
def question_bank() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The questions that scripted policies ask: on the kinds of things, and all."""
    kinds, _, others = read_asset(BANK_FILE).partition("\n---\n")
    of_kinds = tuple(lines(kinds))
    return of_kinds, (*of_kinds, *lines(others))


@functools.cache
def splitter() -> YesNoSplitter:
    """The questioner that knows how the knowledge partner answers; made once per process."""
    _, questions = question_bank()
    rows = [understand(question) for question in questions]
    unclear = [question for question, row in zip(questions, rows, strict=True) if row is None]
    if unclear:
        raise ValueError(f"{BANK_FILE}: the partner does not understand {unclear}")
    guesses = [guess_of(variants) for variants in facts().variants]
    return YesNoSplitter(questions, guesses, np.array([row for row in rows if row is not None]))


def _asked(context: Context) -> dict[str, str]:
    """The questions of the episode so far, with their answers."""
    answers = [*(turn.observation for turn in context.history), context.observation][1:]
    return {turn.action: answer for turn, answer in zip(context.history, answers, strict=True)}


def _random_question(context: Context) -> str:
    """Any question or guess, each as likely, whatever is known."""
    knows = splitter()
    number = context.rng.randrange(len(knows.questions) + len(knows.guesses))
    return knows.questions[number] if number < len(knows.questions) else knows.guesses[number - len(knows.questions)]


def _optimal_question(context: Context) -> str:
    """The question that splits what is left best."""
    return splitter().ask(context)


def _mixed_question(context: Context, noise: float) -> str:
    """With the probability `noise` any question or guess, else one of the better questions."""
    if context.rng.random() < noise:
        return _random_question(context)
    return splitter().ask(context, choose_among=CHOICE)


def _noisy_question(context: Context) -> str:
    return _mixed_question(context, NOISE)


def _naive_question(context: Context) -> str:
    """Asks for one kind of things after the other, in an order of the episode, then names things of that kind.

    It draws no conclusion from anything else. Sometimes it asks any question all the same.
    """
    knows, asked = splitter(), _asked(context)
    kinds = list(question_bank()[0])
    context.once().shuffle(kinds)
    if context.rng.random() < ASIDE:
        return context.rng.choice(knows.questions)
    kind = next((kind for kind in kinds if asked.get(kind) == YES), None)
    if kind is None:
        left = [kind for kind in kinds if kind not in asked]
        return left[0] if left else context.rng.choice(knows.guesses)
    fitting = understand(kind)
    assert fitting is not None, "the splitter has been made, so that all questions are understood"
    guesses = [knows.guesses[place] for place in np.flatnonzero(fitting).tolist() if knows.guesses[place] not in asked]
    return context.rng.choice(guesses or knows.guesses)


def _behavior_question(context: Context) -> str:
    """What collects the data: for an episode the naive questioner, or one with a noise drawn for the episode.

    The noise is the largest of three numbers drawn uniformly from 0 to 1. So most episodes are poor, some are good, and
    the mean return is near the paper's.
    """
    once = context.once()
    if once.random() < NAIVE_SHARE:
        return _naive_question(context)
    return _mixed_question(context, max(once.random() for _ in range(3)))


TwentyQuestions.policies = scripted(
    random=_random_question,
    behavior=_behavior_question,
    optimal=_optimal_question,
    naive=_naive_question,
    noisy=_noisy_question,
)
