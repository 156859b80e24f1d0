"""Car Dealer: sell a car to a buyer who has a mind of its own (LMRL-Gym, arXiv 2311.18232, section 4.2, appendix C.6).

The agent is the seller and speaks first. The buyer is a partner: by default a scripted one (`car_buyer`), which reads
free text; a language model can take its place. It has a personality, a wished brand, type and features, and a budget,
none of which the seller is shown. A buyer's line with a decision in it,

    Output: Decision=Accept MSRP=$50,000 Buy Price=$45,000

ends the episode, and the seller does not see the decision. After 25 lines of each the buyer is asked once more to go on
with its last line, to which the beginning of a decision is added; where it gives none, the episode is cut.

Reward: 0 but for the seller's last action, which gets by `reward`: `revenue` the sale price in thousands of dollars
(default, returns in [0, 90]), `price` in dollars; `fancy` what the paper's code pays by default: price / ((budget +
MSRP) / 2) for a sale and (MSRP - budget) / MSRP without one, which rewards to name a huge MSRP; `fancy_safe` the same
with no gain without a sale.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from env_servers.partners import (
    GUARDED,
    KNOWLEDGE,
    Answer,
    Exchange,
    Query,
    Tally,
    check_partner,
    find_partner,
    is_of,
    recorded_answers,
)
from env_servers.scores import Normalisation
from env_servers.task import Env, EpisodeError, Step, TaskSpec
from env_servers.tasks.car_buyer import DECISION, scripted_buyer
from env_servers.tasks.car_mind import BUDGETS, STRATEGIES, draw_profile
from env_servers.tasks.car_sellers import SELLERS
from env_servers.tasks.car_talk import HEARD, car_name, dollars, feature_list
from env_servers.trajectory import Trajectory

FIRST = "Start"
LINES = 25  # of the seller, and as many of the buyer
SILENCE = "(The buyer waits.)"
REWARDS = ("revenue", "price", "fancy", "fancy_safe")
MOST_PAID = max(BUDGETS)  # dollars; what a model says above that is counted as this, in `revenue` and `price`
LARGEST = 10**12  # no number of a decision is read as more

_BEGINS = re.compile(r"\boutput\s*:|\bdecision\s*[=:]", re.IGNORECASE)
_EXACT = re.compile(
    r"output\s*:\s*decision\s*=\s*(?:accept|reject)\s*msrp\s*=\s*\$\s*[1-9][\d,]*"
    r"(?:\s*buy price\s*=\s*\$\s*[1-9][\d,]*)?\.?",
    re.IGNORECASE | re.ASCII,
)
_VERDICT = re.compile(r"(\bnot\s+|\bno\s+|n't\s+)?(accept|reject)", re.IGNORECASE)
_MSRP = re.compile(r"msrp\s*[=:]?\s*\$?\s*([1-9][0-9,]*)", re.IGNORECASE)
_PRICE = re.compile(r"buy(?:ing)?[\s_-]*price\s*[=:]?\s*\$?\s*([1-9][0-9,]*)", re.IGNORECASE)


class Decision(NamedTuple):
    """How a buyer decided.

    Attributes:
        accept: It buys.
        msrp: List price of the car in dollars, None where the buyer named none.
        price: What it pays in dollars, 0 where it does not buy or named nothing.
    """

    accept: bool
    msrp: int | None
    price: int


def read_decision(text: str) -> tuple[str, Decision | None]:
    """What the seller is shown of a buyer's line, and the decision that it holds, if any.

    A decision begins with `Output:` or `Decision=`, in any mix of capitals. Where it is written as it should be, only
    the decision is cut out; otherwise all from there on is, and it counts if `Accept` or `Reject` can be read in it. A
    price or an MSRP that is missing, begins with 0 or cannot be read is taken as not named.
    """
    line = " ".join(text.split())
    begin = _BEGINS.search(line)
    if begin is None:
        return line, None
    shown, rest = line[: begin.start()].rstrip(), line[begin.start() :]
    if exact := _EXACT.match(rest):
        rest, after = exact[0], rest[exact.end() :]
        again = _BEGINS.search(after)
        shown = f"{shown} {(after if again is None else after[: again.start()]).strip()}"
    verdict = _VERDICT.search(rest)
    if verdict is None:
        return shown.strip(), None
    accept = (verdict[2].lower() == "accept") and not verdict[1]
    price = _amount(_PRICE.search(rest)) or 0
    return shown.strip(), Decision(accept, _amount(_MSRP.search(rest)), price if accept else 0)


def _completed(answer: str) -> str:
    """The decision that was begun for the partner, who is asked for the rest and may repeat the beginning."""
    goes_on = _VERDICT.match(answer.lstrip())
    return answer if goes_on is None and _BEGINS.search(answer) else DECISION + answer


def _amount(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    digits = found[1].replace(",", "")
    return LARGEST if len(digits) > 12 else int(digits)


def reward_of(decision: Decision, budget: int, mode: str) -> float:
    """The reward for the seller's last action.

    A decision that names no MSRP counts in `fancy` as if it were the budget.

    Args:
        decision: The buyer's.
        budget: Its budget in dollars.
        mode: One of `REWARDS`.
    """
    if mode == "price":
        return float(min(decision.price, MOST_PAID))
    if mode == "revenue":
        return min(decision.price, MOST_PAID) / 1000
    msrp = budget if decision.msrp is None else decision.msrp
    if decision.accept:
        return decision.price / (0.5 * (budget + msrp))
    walked = -(budget - msrp) / msrp
    return walked if mode == "fancy" else min(0.0, walked)


class CarDealer(Env):
    """A conversation between the agent, who sells cars, and a buyer.

    Args:
        reward: `revenue`, `price`, `fancy` or `fancy_safe`; see the module.
        partner: Who buys: `knowledge`, the scripted buyer; or as in `env_servers.partners.find_partner`.
        partner_options: Options of the partner.

    Raises:
        ValueError: An option has a value that it does not take.
    """

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="car_dealer",
        version="1.0",
        title="Car Dealer",
        summary="Sell a car to a buyer with a personality, wishes and a budget, for as much as you can.",
        instructions=(
            "You are a car dealer, and a buyer has come in. Sell a car for as high a price as you can. Find out which "
            "brand, type and features the buyer wants, say which car you have for them (you have every car), name a "
            "price in dollars, and agree on it. You talk in turns and begin; each message is what the buyer says, the "
            f"first is just Start. You have at most {LINES} lines. Buyers differ in temper and patience, and none "
            "likes to be pressed or ignored. If the buyer leaves, you earn nothing. Answer with what you say to the "
            "buyer, in one line."
        ),
        memory=None,
        max_turns=LINES,
        max_action_tokens=128,
        min_return=0.0,
        max_return=MOST_PAID / 1000,
        end_reasons=("accepted", "rejected", "line_limit"),
        test_episodes=1000,
        normalisations={
            "paper": Normalisation(
                0.0, 50.0, 100.0, "LMRL-Gym: Table 2 repeats the raw returns; Table 5 has the minimum 0 and no more"
            ),
            "lmrl": Normalisation(1.3, 18.3, 47.2, "`random`, `behavior` and `best`, 5,000 training episodes each"),
        },
        paper={
            "episodes": 19_000, "mean_length": 16.5, "std_length": 3.61,
            "success_rate": 0.53, "mean_return": 0.562, "std_return": 0.422,
        },
    )  # fmt: skip
    policies = SELLERS
    guarded = GUARDED

    def __init__(
        self, *, reward: str = "revenue", partner: str = KNOWLEDGE, partner_options: Mapping[str, Any] | None = None
    ) -> None:
        if reward not in REWARDS:
            raise ValueError(f"{self.spec.id}: reward is {reward!r}; allowed: {', '.join(REWARDS)}")
        check_partner(self.spec.id, partner, {} if partner_options is None else partner_options)
        self._reward, self._partner_name, self._options = reward, partner, dict(partner_options or {})
        self._recorded: Sequence[str] | None = None
        self._secret: dict[str, Any] = {}
        self._seed = 0
        self._begin()

    def _begin(self) -> None:
        self._lines, self._said, self._shown = 0, "", ""
        self._exchanges: list[Exchange] = []
        self._answers: list[str] = []
        self._decision: Decision | None = None
        self._asked_again = False
        self._tally = Tally()

    def _reset(self, rng: random.Random) -> str:
        self._secret = {**draw_profile(rng), "strategy": rng.choice(STRATEGIES)}
        self._seed = rng.getrandbits(62)
        self._begin()
        self.prepare()
        return FIRST

    def _step(self, action: str) -> Step | Query:
        self._lines += 1
        self._said = " ".join(action[:HEARD].split())
        if not any(letter.isalnum() for letter in self._said):
            # The buyer is not asked, so that nothing but the line is lost.
            if self._lines == LINES:
                return Step.end(SILENCE, 0.0, "line_limit", success=False, cut=True, legal=False)
            return Step.ongoing(SILENCE, 0.0, legal=False)
        return self._ask()

    def _ask(self, prefix: str = "") -> Step | Query:
        """The query for the buyer, or what the record has in its place."""
        if self._recorded is None:
            return Query(self.spec.id, self._secret, tuple(self._exchanges), self._said, self._seed, prefix)
        number = len(self._answers)
        if number >= len(self._recorded):
            raise EpisodeError(f"the record has no answer {number}")
        return self._hear(self._recorded[number])

    def _receive(self, answer: Answer) -> Step | Query:
        self._tally.count(answer)
        return self._hear(answer.text)

    def _hear(self, answer: str) -> Step | Query:
        """Go on with what the buyer said, in full."""
        self._answers.append(answer)
        if self._asked_again:
            self._decision = read_decision(_completed(answer))[1]
            if self._decision is None:
                return Step.end(self._shown, 0.0, "line_limit", success=False, cut=True)
            return self._end()
        self._shown, self._decision = read_decision(answer)
        if self._decision is not None:
            return self._end()
        if self._lines == LINES:
            self._asked_again = True
            # As the paper's buyer was trained: its own line, and the decision after a space.
            return self._ask(f"{self._shown} {DECISION}".lstrip())
        self._exchanges.append(Exchange(self._said, answer))
        return Step.ongoing(self._shown, 0.0)

    def _end(self) -> Step:
        assert self._decision is not None, "it ends by a decision"
        reward = reward_of(self._decision, self._secret["budget"], self._reward)
        reason = "accepted" if self._decision.accept else "rejected"
        return Step.end(self._shown, reward, reason, success=self._decision.accept)

    @property
    def info(self) -> dict[str, Any]:
        """The buyer's profile and strategy, its answers in full, the partner, and the decision once there is one."""
        info = {**self._secret, "answers": list(self._answers), **self._tally.info(self.partner)}
        if self._decision is not None:
            info |= {"msrp": self._decision.msrp, "price": self._decision.price}
        return info

    def draw(self) -> str:
        """The number of the line to come; when it is over, who the buyer was and how it went."""
        if not self._finished:
            return f"(line {self._lines + 1} of {LINES})"
        secret = self._secret
        who = (
            f"The buyer was {secret['personality']}, wanted {car_name(secret['brand'], secret['type'])} with "
            f"{feature_list(secret['features'])}, and had {dollars(secret['budget'])}. Strategy: {secret['strategy']}."
        )
        if self._decision is None:
            return f"{who} There was no decision."
        if not self._decision.accept:
            return f"{who} No sale."
        part = self._decision.price / secret["budget"]
        return f"{who} Sold for {dollars(self._decision.price)}, {part:.0%} of the budget."

    def prepare(self) -> None:
        """Find the partner."""
        if self.partner is None and self._recorded is None:
            self.partner = find_partner(self.spec.id, self._partner_name, self._options, scripted_buyer)

    def follow(self, trajectory: Trajectory) -> None:
        """Take the buyer's answers from a record, unless they are the scripted buyer's as it is now."""
        if is_of(trajectory.info, scripted_buyer()):
            return
        answers = trajectory.info.get("answers")
        if not isinstance(answers, list):
            raise EpisodeError(f"the record's answers are {answers!r}; they must be a list of texts")
        self._recorded = recorded_answers(answers)
