"""The mind of `car_dealer`'s scripted buyer: what it hears, what it would pay, when it buys and when it leaves.

The profile is the paper's (LMRL-Gym, arXiv 2311.18232, appendix C.6 and its code): personality, brand, type, one to
four features, budget. To it comes a strategy, one of the paper's three: `discount` wants a discount, `features` wants
every feature, `impatient` wants to be done.

**What it would pay** is its budget times a share, which is the sum of

- 0.10 for any car; 0.05 with the strategy `discount`, 0.20 with `impatient`;
- 0.15 if the brand is the wished one, 0.15 if the type is (0.12 each with `features`);
- 0.30 times the part of the wished features that the seller has said the car has (0.36 with `features`);
- 0.02 for each of the first three topics that the seller asked about (brand, type, features, needs);
- once it has been told a brand or a type, 0.04 for each of the first three different reasons for the price (safety,
  reliability, ...), one per line;
- likewise 0.04 for each of the first three different things given for free (maintenance, tires, ...), one per line;
- with `discount`, the discount since the first price, at most 0.10. The first price, or the list price where that is
  higher, counts as at most 1.5 budgets;

less 0.05 for each pressure, 0.10 for each insult, 0.03 for each of its questions that was ignored, 0.03 for a price
that is said again or a line that is repeated, 0.05 for a price that goes up, 0.05 for an absurd price (above two
budgets), 0.03 for a wrong brand or type after the first, 0.02 for each claimed feature that it does not wish, and
with `impatient` 0.03 for each of the seller's lines after the sixth and for each of more than 40 words. The share is
cut to [0, 1], so that it never pays more than its budget.

Of one line at most two features are heard. Of several brands or three types in one line none is. The two types named
last count. A question was ignored by a line that neither asks the buyer something nor says yes or no nor names a car,
a wished feature or a price; where the buyer asked for the price or a discount, by one without either. A brand or type
is wrong only once the buyer has said what it wants. What costs less than $2,000 is no car.

**It buys** as soon as a price is on the table that is not above what it would pay (or above an offer of its own), it
has been told a brand or a type, it has made an offer of its own (`impatient` need not, and nobody where the price is
at most 60 % of what it would pay), and: `discount` has got 3 % off the first price or something for free; `features`
has been told that the car has all wished features.

**It leaves** at its limit of strikes: 1 for each pressure, ignored question, repetition, raised price, and wrong
brand or type after the first; 2 for each insult and absurd price. The limit is 5 (4 with `impatient`), 2 more if
polite or respectful, 1 less if abusive, angry or toxic. It also leaves when it has heard as many lines as it has
patience for: 18 with `discount`, 20 with `features`, 10 with `impatient`; 3 more if talkative, 2 less if
uncommunicative.

**It speaks** of one thing in a line if uncommunicative, of three if talkative, else of two. It answers questions
about its wishes truthfully: brand and type together, of its features two at a time (one if uncommunicative, all if
talkative). Of its budget it tells a part that is drawn from 55 to 85 % for the episode; if abusive, angry, insulting,
rude or toxic, or after any strike, only when asked again. What it has not been asked it asks: brand and type, each
wished feature, the price. Once a price is named that is too high, and nothing wished is left to ask, it offers 80 %
of what it would pay, and 5 % more for each time the price came down, at most 95 % of it and of the price, never less
than before.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from env_servers.tasks.car_money import discounted_price
from env_servers.tasks.car_talk import Line, car_name, read_line
from env_servers.tasks.car_words import BRANDS, FEATURES, TYPES

PERSONALITIES = (
    "abusive", "angry", "insulting", "polite", "respectful", "rude", "sarcastic", "talkative", "toxic",
    "uncommunicative",
)  # fmt: skip
BUDGETS = (10_000, 30_000, 50_000, 70_000, 90_000)
STRATEGIES = ("discount", "features", "impatient")

COY = frozenset({"abusive", "angry", "insulting", "rude", "toxic"})
TOLD_SHARE = (0.55, 0.85)  # of the budget, where the buyer speaks of it
FIRST_OFFER, OFFER_STEP, LAST_OFFER = 0.80, 0.05, 0.95
BARGAIN = 0.6  # a price below this part of what it would pay is taken without haggling
BELIEVED, ABSURD = 1.5, 2.0  # list price and price, in budgets
FEATURES_HEARD, GOOD_DEEDS = 2, 3
LONG_LINE = 40  # words
PATIENCE = {"discount": 18, "features": 20, "impatient": 10}
WANTED_DISCOUNT = 0.03


class Profile(NamedTuple):
    """Who the buyer is; the fields of an episode's `info`."""

    personality: str
    brand: str
    type: str
    features: tuple[str, ...]
    budget: int
    strategy: str = "discount"

    @property
    def car(self) -> str:
        """Such as `a Tesla truck`."""
        return car_name(self.brand, self.type)


def draw_profile(rng: random.Random) -> dict[str, Any]:
    """A buyer as the paper's code draws it, in its order, without the strategy."""
    return {
        "personality": rng.choice(PERSONALITIES),
        "brand": rng.choice(BRANDS),
        "type": rng.choice(TYPES),
        "features": rng.sample(FEATURES, k=rng.randint(1, 4)),
        "budget": rng.choice(BUDGETS),
    }


def profile_of(secret: Mapping[str, Any]) -> Profile:
    """The profile that an episode's secret describes."""
    return Profile(**{name: secret[name] for name in Profile._fields} | {"features": tuple(secret["features"])})


@dataclass(slots=True)
class State:
    """What the buyer knows and thinks after a line of the seller's. A new one is made for each line."""

    lines: int = 0
    said: frozenset[str] = frozenset()
    brand: str = ""
    types: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    price: int | None = None
    first: int | None = None
    list_price: int | None = None
    reductions: int = 0
    offer: int | None = None
    topics: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    extras: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    asked_budget: bool = False
    pending: tuple[str, ...] = ()
    faults: float = 0.0
    strikes: int = 0
    wrong_cars: int = 0
    long_lines: int = 0
    acts: tuple[tuple[str, str], ...] = ()
    decision: str = ""


@dataclass(slots=True)
class Turn:
    """What one line led to, on the way to the buyer's words."""

    heard: Line
    complaints: list[str] = field(default_factory=list)
    priced: bool = False
    news: str = ""


def worth(profile: Profile, state: State) -> int:
    """What the buyer would pay, in dollars."""
    thorough = profile.strategy == "features"
    fit = 0.12 if thorough else 0.15
    wished = sum(feature in state.features for feature in profile.features) / len(profile.features)
    share = {"discount": 0.05, "features": 0.10, "impatient": 0.20}[profile.strategy]
    share += fit * (state.brand == profile.brand) + fit * (profile.type in state.types)
    share += (0.36 if thorough else 0.30) * wished
    share += 0.02 * min(GOOD_DEEDS, len(state.topics))
    share += 0.04 * (min(GOOD_DEEDS, len(state.reasons)) + min(GOOD_DEEDS, len(state.extras)))
    if profile.strategy == "discount":
        share += min(0.10, discount(profile, state))
    if profile.strategy == "impatient":
        share -= 0.03 * (max(0, state.lines - 6) + state.long_lines)
    share -= state.faults + 0.02 * len(state.features - set(profile.features))
    # Rounded before it is cut to whole dollars: 0.3 + 0.15 + 0.15 + 0.4 is less than 1 in binary.
    return int(round(profile.budget * min(1.0, max(0.0, share)), 3))


def discount(profile: Profile, state: State) -> float:
    """The discount on the first price, or the list price, as a part of it."""
    if state.price is None or state.first is None:
        return 0.0
    first = min(max(state.first, state.list_price or 0), BELIEVED * profile.budget)
    return max(0.0, 1 - state.price / first)


def hear(profile: Profile, before: State, text: str) -> tuple[State, Turn]:
    """The buyer after one more line of the seller's, and what that line led to."""
    heard = read_line(text)
    state = replace(before, lines=before.lines + 1, acts=(), decision="", pending=())
    turn = Turn(heard)
    _mind_tone(profile, state, turn, text)
    _mind_car(profile, state, turn, before.pending)
    _mind_price(profile, state, turn)
    _mind_answer(profile, state, turn, before.pending)
    _decide(profile, state)
    return state, turn


# What it takes in -----------------------------------------------------------------------------------------------------
def _mind_tone(profile: Profile, state: State, turn: Turn, text: str) -> None:
    heard = turn.heard
    words = " ".join(text.lower().split())
    if words in state.said:
        state.faults, state.strikes = state.faults + 0.03, state.strikes + 1
        turn.complaints.append("repeated")
    state.said |= {words}
    if heard.pushes:
        state.faults, state.strikes = state.faults + 0.05, state.strikes + 1
        turn.complaints.append("pushed")
    if heard.insults:
        state.faults, state.strikes = state.faults + 0.10, state.strikes + 2
        turn.complaints.append("insulted")
    if profile.strategy == "impatient":
        state.long_lines += heard.words > LONG_LINE
        if heard.words > LONG_LINE or state.lines in (5, 7):
            turn.complaints.append("hurry")
    state.topics |= set(heard.topics) - {"budget"}


def _mind_car(profile: Profile, state: State, turn: Turn, pending: Sequence[str]) -> None:
    """Brand, type and features that the seller offers, also by a yes to what the buyer asked."""
    heard = turn.heard
    brands, types, features = heard.brands, heard.types, list(heard.features)
    lacking = set(heard.lacking)
    if heard.starts_with == "yes" and not (heard.about or lacking):
        brands = brands or tuple(item for item in pending if item in BRANDS)
        types = types or tuple(item for item in pending if item in TYPES)
        features += [item for item in pending if item in FEATURES and item not in features]
    if heard.has_it and "car" in state.told and not (brands or types or heard.lacking):
        brands, types = (profile.brand,), (profile.type,)
    if heard.starts_with == "no":
        lacking |= {item for item in pending if item not in (*brands, *types, *features)}
    if heard.repeats_wishes:
        features += [item for item in profile.features if item in state.told and item not in features]
    if len(brands) == 1:
        state.brand = brands[0]
    if types and len(types) <= 2:
        state.types = tuple(dict.fromkeys([*(kind for kind in state.types if kind not in types), *types]))[-2:]
    features = [item for item in features if item not in lacking][:FEATURES_HEARD]
    if set(features) & set(profile.features) - state.features:
        turn.news = "pleased"
    state.features = (state.features | set(features)) - lacking
    state.denied = (state.denied | lacking) - set(features)
    if state.brand in lacking:
        state.brand = ""
    state.types = tuple(kind for kind in state.types if kind not in lacking)
    if state.brand or state.types:
        for seen, given in (("reasons", heard.reasons), ("extras", heard.extras)):
            known: frozenset[str] = getattr(state, seen)
            if new := [name for name in given if name not in known]:
                setattr(state, seen, known | {new[0]})
                turn.news = turn.news or ("reason" if seen == "reasons" else "pleased")
    if len(brands) > 1 and state.brand not in brands:
        turn.complaints.append("ask_which")
    wrong = (bool(brands) and state.brand not in ("", profile.brand)) or (
        bool(types) and profile.type not in state.types
    )
    if wrong and "car" in state.told:
        state.wrong_cars += 1
        if state.wrong_cars > 1:
            state.faults, state.strikes = state.faults + 0.03, state.strikes + 1
        turn.complaints.append("wrong_car")


def _mind_price(profile: Profile, state: State, turn: Turn) -> None:
    prices, before = turn.heard.prices, state.price
    price = prices.price
    if price is None and before is not None and (prices.percent_off or prices.amount_off):
        price = discounted_price(before, prices.percent_off, prices.amount_off) or before
    if price is None and turn.heard.agrees and state.offer is not None:
        price = state.offer
    if prices.list_price is not None:
        state.list_price = prices.list_price
    if price is None:
        return
    turn.priced = True
    state.price = price
    if state.first is None:
        state.first = price
    if before is not None and price < before:
        state.reductions += 1
    elif before is not None and price == before and "repeated" not in turn.complaints:
        state.faults, state.strikes = state.faults + 0.03, state.strikes + 1
        turn.complaints.append("repeated")
    elif before is not None and price > before:
        state.faults, state.strikes = state.faults + 0.05, state.strikes + 1
        turn.complaints.append("raised")
    if price > ABSURD * profile.budget:
        state.faults, state.strikes = state.faults + 0.05, state.strikes + 2
        turn.complaints.append("absurd")


def _mind_answer(profile: Profile, state: State, turn: Turn, pending: Sequence[str]) -> None:
    """Whether the seller went into what the buyer asked last, or at least named a car or a feature that it wishes."""
    heard = turn.heard
    if not pending or heard.asks or heard.topics or heard.about or heard.starts_with or heard.agrees:
        return
    if heard.repeats_wishes or heard.has_it:
        return
    if pending == ("price",):
        answered = turn.priced
    elif pending == ("discount",):
        answered = turn.priced or heard.prices.discounted or bool(heard.extras)
    else:
        wished = set(profile.features) & {*heard.features, *heard.lacking}
        answered = turn.priced or bool(heard.brands or heard.types or wished)
    if not answered and "repeated" not in turn.complaints:
        state.faults, state.strikes = state.faults + 0.03, state.strikes + 1
        turn.complaints.append("ignored")


# What it does ---------------------------------------------------------------------------------------------------------
def strike_limit(profile: Profile) -> int:
    """The number of strikes at which the buyer leaves."""
    limit = 4 if profile.strategy == "impatient" else 5
    return (
        limit
        + 2 * (profile.personality in ("polite", "respectful"))
        - (profile.personality in ("abusive", "angry", "toxic"))
    )


def patience(profile: Profile) -> int:
    """The number of the seller's lines after which the buyer leaves."""
    more = {"talkative": 3, "uncommunicative": -2}.get(profile.personality, 0)
    return PATIENCE[profile.strategy] + more


def highest(profile: Profile, state: State) -> float:
    """The highest price that the buyer takes now: who has not haggled yet takes a bargain only, unless impatient."""
    most = max(worth(profile, state), state.offer or 0)
    return most if profile.strategy == "impatient" or state.offer is not None else BARGAIN * most


def would_buy(profile: Profile, state: State) -> bool:
    """Whether the buyer takes the price on the table."""
    if state.price is None or not (state.brand or state.types):
        return False
    if profile.strategy == "features" and not set(profile.features) <= state.features:
        return False
    if profile.strategy == "discount" and discount(profile, state) < WANTED_DISCOUNT and not state.extras:
        return False
    return state.price <= highest(profile, state)


def _decide(profile: Profile, state: State) -> None:
    if state.strikes >= strike_limit(profile):
        state.decision = "leave_tone"
    elif would_buy(profile, state):
        state.decision = "accept"
    elif state.lines >= patience(profile):
        state.decision = "leave_price" if state.price is not None and profile.strategy != "impatient" else "leave_time"
