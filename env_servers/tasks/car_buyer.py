"""The scripted buyer of `car_dealer`: the task's own partner, which puts into words what `car_mind` thinks.

It speaks in its personality's manner, from the texts in `assets/car_buyer_lines.txt`. Its decisions depend on the
seller's lines alone; the query's generators choose among ways to say them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from env_servers.partners import KNOWLEDGE, Answer, AnsweringPartner, Query
from env_servers.tasks.car_mind import (
    ABSURD,
    COY,
    FIRST_OFFER,
    LAST_OFFER,
    OFFER_STEP,
    TOLD_SHARE,
    Profile,
    State,
    Turn,
    hear,
    highest,
    profile_of,
    worth,
    would_buy,
)
from env_servers.tasks.car_money import CHEAPEST
from env_servers.tasks.car_talk import Line, dollars, feature_list, filled, read_line, spoken_lines
from env_servers.tasks.car_words import FEATURES

REVISION = "1.1"  # raised whenever an answer would be another
MANNERS = {
    "polite": "kind", "respectful": "kind", "sarcastic": "sarcastic", "talkative": "talkative",
    "uncommunicative": "terse",
}  # fmt: skip
DECISION = "Output: Decision="
REMEMBERED = 1 << 12  # states; some for each episode that is being played


@functools.lru_cache(REMEMBERED)
def buyer_after(profile: Profile, texts: tuple[str, ...]) -> State:
    """The buyer after these lines of the seller's, with what it is going to say.

    It does not depend on what was said in return, so that no answer has to be read, and each line is heard once.
    """
    if not texts:
        return State()
    state, turn = hear(profile, buyer_after(profile, texts[:-1]), texts[-1])
    if not state.decision:
        _choose_words(profile, state, turn)
    return state


# What it says --------------------------------------------------------------------------------------------------------
def _choose_words(profile: Profile, state: State, turn: Turn) -> None:
    """What the buyer is going to say: complaint, answers, its view of the price, and a question of its own."""
    talkative, terse = (profile.personality == name for name in ("talkative", "uncommunicative"))
    complaints = [(complaint, "") for complaint in turn.complaints[:1]]
    answers = _answers(profile, state, turn.heard)
    too_high = state.price is not None and state.price > highest(profile, state)
    most = max(worth(profile, state), state.offer or 0)
    views = []
    if turn.priced and state.price is not None and state.price > most and "absurd" not in turn.complaints:
        views.append(("far_too_much" if state.price > profile.budget else "too_much", ""))
    elif turn.news and not (complaints or answers):
        views.append((turn.news, ""))
    acts = [*complaints, *answers, *views]
    if terse:  # one thing only: an answer, else a complaint, else what it would have asked
        acts = answers or complaints or [_question(profile, state, too_high)]
    elif len(acts) < 2:
        acts.append(_question(profile, state, too_high))
    state.acts = tuple(acts[: 3 if talkative else 2])
    state.pending = _asked_by(profile, state.acts)
    state.asked |= set(state.pending)


def _answers(profile: Profile, state: State, heard: Line) -> list[tuple[str, str]]:
    """Truthful words on what the seller wants to know."""
    talkative, terse = (profile.personality == name for name in ("talkative", "uncommunicative"))
    found: list[tuple[str, str]] = []
    topics = set(heard.topics)
    if heard.about and (asked := [item for item in heard.about if item in FEATURES]):
        wished = [item for item in asked if item in profile.features]
        found.append(("yes_wish", "|".join(wished)) if wished else ("no_wish", "|".join(asked)))
    elif heard.about and all(item in (profile.brand, profile.type) for item in heard.about):
        found.append(("yes_car", ""))
    elif heard.about:
        found.append(("no_car" if "car" in state.told else "tell_car", ""))
    if ("tell_car", "") not in found and (
        topics & {"brand", "type"} or ("needs" in topics and "car" not in state.told)
    ):
        found.append(("tell_car", ""))
    if "features" in topics or ("needs" in topics and not found):
        untold = [item for item in profile.features if item not in state.told]
        told = untold[: len(untold) if talkative else 1 if terse else 2]
        found.append(("tell_features", "|".join(told)) if told else ("no_more", ""))
    if "budget" in topics:
        coy = profile.personality in COY or state.strikes > 0
        found.append(("keep_budget" if coy and not state.asked_budget else "hint", ""))
    found = found[: 2 if talkative else 1]
    for act, about in found:
        if act == "tell_car":
            state.told |= {"car"}
        elif act in ("yes_wish", "tell_features"):
            state.told |= set(about.split("|"))
        elif act in ("keep_budget", "hint"):
            state.asked_budget = True
    return found


def _question(profile: Profile, state: State, too_high: bool) -> tuple[str, str]:
    """What the buyer says when it is its turn to bring the matter forward."""
    missing = [item for item in profile.features if item not in state.features and item not in state.denied]
    if "car" not in state.told and not (state.brand == profile.brand and profile.type in state.types):
        state.told |= {"car"}
        return "ask_car", ""
    unasked = [item for item in missing if item not in state.asked]
    if unasked and (state.price is None or profile.strategy == "features" or too_high):
        state.told |= {unasked[0]}
        return "ask_feature", unasked[0]
    if state.price is None:
        return "ask_price", ""
    if too_high:
        if profile.strategy == "discount" and state.offer is not None and state.reductions % 2:
            return "ask_discount", ""
        if state.price <= ABSURD * profile.budget:
            share = min(LAST_OFFER, FIRST_OFFER + OFFER_STEP * state.reductions)
            offer = int(worth(profile, state) * share) // 100 * 100
            offer = min(offer, int(LAST_OFFER * state.price) // 100 * 100)
            if state.offer is not None and offer <= state.offer:
                return "stand", ""
            if offer >= CHEAPEST:
                state.offer = offer
                return "counter", ""
        return "listen", ""
    if not (state.brand or state.types):
        return "ask_which", ""
    if profile.strategy == "features" and missing:
        return "ask_feature", missing[0]
    return ("ask_discount", "") if profile.strategy == "discount" else ("listen", "")


def _asked_by(profile: Profile, acts: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """What the buyer's last words ask, empty where they ask nothing."""
    for act, about in reversed(acts):
        if act == "ask_car":
            return (profile.brand, profile.type)
        if act == "ask_feature":
            return (about,)
        if act in ("ask_price", "ask_discount"):
            return (act.removeprefix("ask_"),)
    return ()


# Its words -----------------------------------------------------------------------------------------------------------
def _speak(profile: Profile, state: State, query: Query) -> str:
    once = query.once()
    hint = round(profile.budget * once.uniform(*TOLD_SHARE), -3)
    # Ways to say a thing are gone through in turn, so that the buyer does not repeat itself.
    number = once.randrange(1 << 16) + len(query.exchanges)
    lines = spoken_lines("car_buyer_lines.txt")
    manner = MANNERS.get(profile.personality, "rude")
    prices = {"hint": hint, "counter": state.offer, "stand": state.offer, "accept": state.price}
    parts = []
    for act, about in [(state.decision, "")] if state.decision else state.acts:
        texts = lines[act][manner]
        slots = {"car": profile.car, "price": dollars(int(prices.get(act) or 0))}
        if about:
            slots["features"] = feature_list(about.split("|"))
        parts.append(filled(texts[number % len(texts)], **slots))
    if query.rng().random() < (0.25 if manner == "terse" else 0.4):
        openings = lines["open"][profile.personality]
        opening = openings[number % len(openings)]
        if not ("hank" in opening and any("hank" in part for part in parts)):  # thanks once is enough
            parts.insert(0, opening)
    return " ".join(parts)


def _decision_line(state: State, accept: bool) -> str:
    """`Accept MSRP=$50,000 Buy Price=$45,000`, as much of it as there is to say."""
    listed = max(state.list_price or 0, state.first or 0, (state.price or 0) if accept else 0)
    words = ["Accept" if accept else "Reject"]
    if listed:
        words.append(f"MSRP={dollars(listed)}")
    if accept:
        words.append(f"Buy Price={dollars(state.price or 0)}")
    return " ".join(words)


def _reply(query: Query) -> Answer:
    profile = profile_of(query.secret)
    state = buyer_after(profile, (*(exchange.text for exchange in query.exchanges), query.text))
    if query.prefix:
        return Answer(_decision_line(state, would_buy(profile, state)))
    text = _speak(profile, state, query)
    if state.decision:
        text = f"{text} {DECISION}{_decision_line(state, state.decision == 'accept')}"
    return Answer(text, understood=read_line(query.text).says_something)


@functools.cache
def scripted_buyer() -> AnsweringPartner:
    """The task's own partner, one for all episodes."""
    return AnsweringPartner(KNOWLEDGE, REVISION, _reply)
