"""Scripted sellers for `car_dealer`. They read the buyer's words, never its profile.

The paper's sellers follow one of three strategies, which are here `discounter` (gives discounts), `feature_talker`
(talks features) and `concise`. `behavior` draws one of them for the episode, its prices and how careless it is, and
so gives data with a wide spread; `best` asks before it offers, and finds from what the buyer says how far it would
go; `random` says random lines.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from env_servers.policy import Context, scripted
from env_servers.tasks.car_mind import BUDGETS, FEATURES_HEARD, FIRST_OFFER, LAST_OFFER, OFFER_STEP, TOLD_SHARE
from env_servers.tasks.car_talk import car_name, dollars, feature_list, filled, read_line, spoken_lines
from env_servers.tasks.car_words import BRANDS, FEATURES, TYPES

REASONS = ("safety", "reliability", "economy", "warranty", "resale", "comfort", "power")
HINTED = sum(TOLD_SHARE) / 2  # of the budget, in the mean
EXTRAS = ("maintenance", "tires", "mats", "delivery")


class Style(NamedTuple):
    """How a seller sells.

    Attributes:
        manner: `warm`, `plain` or `short`.
        asks: What it asks the buyer before it offers, in order: `car`, `features`, `budget`.
        opening: First price in dollars.
        step: Part of the price that it gives up in a line.
        reasons: How many reasons it gives.
        extras: How many things it gives for free.
        takes: It takes an offer of at least this part of its price.
        talks_first: Lines of reasons before it names a price, unless it is asked for one.
        percents: It says a lower price as a discount in per cent.
        careless: Probability of a line that does not go into what the buyer said.
        pushy: Probability that a line presses the buyer.
    """

    manner: str
    asks: tuple[str, ...]
    opening: int
    step: float
    reasons: int
    extras: int
    takes: float
    talks_first: int = 0
    percents: bool = False
    careless: float = 0.0
    pushy: float = 0.0


DISCOUNTER = Style("warm", (), 40_000, 0.15, 0, 3, 0.4, percents=True)
FEATURE_TALKER = Style("plain", ("car", "features"), 40_000, 0.05, 3, 0, 0.9, talks_first=3)
CONCISE = Style("short", ("car", "features", "budget"), 48_000, 0.07, 0, 0, 0.85)


class _Known(NamedTuple):
    """What a seller knows from what was said: by the buyer, and by itself.

    Attributes:
        brand: The wished one.
        type: The wished one.
        features: The wished ones.
        hint: What the buyer says that it would like to spend, in dollars.
        offer: The buyer's last offer in dollars.
        all_told: The buyer has no more wishes.
        price: The seller's last price in dollars.
        claimed: Brands, types and features that the seller has offered.
        reasons: Reasons that it gave.
        extras: What it gave for free.
        asked: Topics that it asked about, once for each time.
        prices: How many prices it named.
    """

    brand: str | None
    type: str | None
    features: tuple[str, ...]
    hint: int | None
    offer: int | None
    all_told: bool
    price: int | None
    claimed: frozenset[str]
    reasons: frozenset[str]
    extras: frozenset[str]
    asked: tuple[str, ...]
    prices: int

    @property
    def car(self) -> str | None:
        return car_name(self.brand, self.type) if self.brand and self.type else None

    @property
    def open_features(self) -> list[str]:
        return [feature for feature in self.features if feature not in self.claimed]


def _known(context: Context) -> _Known:
    brand = kind = hint = offer = None
    features: dict[str, None] = {}
    all_told = False
    for text in [*(turn.observation for turn in context.history[1:]), context.observation]:
        buyer = read_line(text)
        named = [*buyer.brands, *buyer.types, *buyer.features, *buyer.about]
        brand = next((item for item in named if item in BRANDS), brand)
        kind = next((item for item in named if item in TYPES), kind)
        features |= dict.fromkeys(item for item in named if item in FEATURES)
        all_told = all_told or "othing else" in text or "That is all" in text
        if buyer.prices.price is not None:
            if "spen" in text:
                hint = buyer.prices.price
            else:
                offer = buyer.prices.price
    mine = [read_line(turn.action) for turn in context.history]
    prices = [line.prices.price for line in mine if line.prices.price is not None]
    return _Known(
        brand, kind, tuple(features), hint, offer, all_told,
        price=prices[-1] if prices else None,
        claimed=frozenset(
            item for line in mine for item in (*line.brands, *line.types, *line.features[:FEATURES_HEARD])
        ),
        reasons=frozenset(reason for line in mine for reason in line.reasons[:1]),
        extras=frozenset(extra for line in mine for extra in line.extras[:1]),
        asked=tuple(topic for line in mine for topic in line.topics),
        prices=len(prices),
    )  # fmt: skip


class _Speaker:
    """Puts sentences together in one manner."""

    def __init__(self, manner: str, rng: random.Random) -> None:
        self.manner, self.rng, self.parts = manner, rng, list[str]()

    def say(self, act: str, **slots: str) -> _Speaker:
        texts = spoken_lines("car_seller_lines.txt")[act]
        text = self.rng.choice(texts.get(self.manner) or texts["plain"])
        self.parts.append(filled(text, **slots))
        return self

    @property
    def text(self) -> str:
        return " ".join(self.parts)


def _rounded(price: float) -> int:
    """A price as sellers say it, in hundreds, that no buyer takes for a mistake."""
    return max(2_500, int(price) // 100 * 100)


# The strategies -------------------------------------------------------------------------------------------------------
def _sell(context: Context, style: Style) -> str:
    """The next line in a style."""
    rng, known = context.rng, _known(context)
    speak = _Speaker(style.manner, rng)
    if not context.history and style.manner != "short":
        speak.say("greet")
    if style.pushy and rng.random() < style.pushy:
        speak.say("push")
    if style.careless and rng.random() < style.careless:
        return _careless_line(context, style, known, speak)
    if known.price is not None and known.offer is not None and known.offer >= style.takes * known.price:
        return speak.say("agree", price=dollars(known.offer)).text
    question = _next_question(style, known)
    if question is not None and not known.open_features:
        return speak.say(f"ask_{question}").text
    _pitch(known, style, speak)
    if question is not None:
        return speak.say(f"ask_{question}").text
    reasons = [reason for reason in REASONS if reason not in known.reasons]
    if len(known.reasons) < style.reasons and reasons:
        speak.say(rng.choice(reasons))
        wants_price = "price" in context.observation.lower() or "how much" in context.observation.lower()
        if known.price is None and len(known.reasons) + 1 < style.talks_first and not wants_price:
            return speak.text
    extras = [extra for extra in EXTRAS if extra not in known.extras]
    if known.price is not None and len(known.extras) < style.extras and extras:
        speak.say(rng.choice(extras))
    _say_price(known, style, speak)
    return speak.text


def _next_question(style: Style, known: _Known) -> str | None:
    """What the style still wants to know, each asked at most twice."""
    if known.price is not None:
        return None
    for topic in style.asks:
        if topic == "car" and known.car is None and known.asked.count("brand") < 2:
            return "car"
        if topic == "features" and not known.all_told and known.asked.count("features") < 2:
            return "features"
        if topic == "budget" and known.hint is None and known.asked.count("budget") < 2:
            return "budget"
    return None


def _pitch(known: _Known, style: Style, speak: _Speaker) -> None:
    """Say which car it is and what it has, as far as the buyer has told its wishes."""
    features = known.open_features[:FEATURES_HEARD]
    brand, kind = known.brand, known.type
    if brand is None or kind is None:
        if not known.claimed & {*BRANDS, *TYPES}:
            brand, kind = brand or speak.rng.choice(BRANDS), kind or speak.rng.choice(TYPES)
        else:
            brand = kind = None
    if brand and kind and not {brand, kind} <= known.claimed:
        if features:
            speak.say("pitch_all", car=car_name(brand, kind), features=feature_list(features))
        else:
            speak.say("pitch_car", car=car_name(brand, kind))
    elif features:
        speak.say("pitch_features", features=feature_list(features))


def _say_price(known: _Known, style: Style, speak: _Speaker) -> None:
    """The first price, or a lower one: a step down, and where the buyer has made an offer not below that."""
    if known.price is None:
        price = known.hint / HINTED if known.hint is not None else style.opening
        speak.say("price", price=dollars(_rounded(price)))
        return
    percent = max(1, round(100 * style.step))
    price = known.price * (1 - percent / 100)
    if known.offer is not None:
        price = max(price, known.offer)
    price = _rounded(price)
    if price >= known.price:
        speak.say("firm")
    elif style.percents and price == _rounded(known.price * (1 - percent / 100)):
        speak.say("percent", percent=str(percent), price=dollars(price))
    else:
        speak.say("lower", price=dollars(price))


def _careless_line(context: Context, style: Style, known: _Known, speak: _Speaker) -> str:
    """Something that passes by what the buyer said."""
    rng = context.rng
    kind = rng.choice(("chat", "chat", "feature", "car", "price", "firm"))
    if kind == "feature":
        speak.say("pitch_features", features=feature_list(rng.sample(FEATURES, k=rng.randint(1, 2))))
    elif kind == "car":
        speak.say("pitch_car", car=car_name(rng.choice(BRANDS), rng.choice(TYPES)))
    elif kind == "price":
        speak.say("price", price=dollars(known.price or _rounded(style.opening)))
    else:
        speak.say(kind)
    return speak.text


def _behavior_style(once: random.Random) -> Style:
    """A style for one episode: a strategy, its prices, and how well it is played."""
    base = once.choice((DISCOUNTER, FEATURE_TALKER, CONCISE))
    asks = tuple(
        topic for topic in ("car", "features", "budget") if once.random() < (0.75 if topic in base.asks else 0.25)
    )
    return base._replace(
        asks=asks,
        opening=_rounded(base.opening * once.lognormvariate(0.15, 0.5)),
        step=base.step * once.uniform(0.3, 1.3),
        reasons=max(0, base.reasons + once.choice((-1, 0, 1))),
        extras=max(0, base.extras + once.choice((-1, 0, 1))),
        takes=once.uniform(0.5, 1.0),
        careless=once.choice((0.0, 0.2, 0.35, 0.5)),
        pushy=once.choice((0.0, 0.1, 0.2, 0.3)),
    )


def _behavior_line(context: Context) -> str:
    return _sell(context, _behavior_style(context.once()))


# The best -------------------------------------------------------------------------------------------------------------
ASKS_ALL = CONCISE._replace(manner="plain")


def _best_line(context: Context) -> str:
    """Ask for the wishes and the budget, offer what was wished with reasons and extras, then come down to the buyer."""
    rng, known = context.rng, _known(context)
    speak = _Speaker("plain", rng)
    question = _next_question(ASKS_ALL, known)
    if question in ("car", "features"):
        return speak.say(f"ask_{question}").text
    _pitch(known, ASKS_ALL, speak)
    if len(known.reasons) < 3:
        speak.say(rng.choice([reason for reason in REASONS if reason not in known.reasons]))
    extras = [extra for extra in EXTRAS if extra not in known.extras]
    if len(known.extras) < 3:
        speak.say(rng.choice(extras))
    if question is not None:
        return speak.say(f"ask_{question}").text
    if len(known.open_features) > FEATURES_HEARD:
        return speak.text
    price = _best_price(known)
    if known.price is None:
        return speak.say("price_listed", list=dollars(_rounded(price * 1.12)), price=dollars(price)).text
    return speak.say("lower", price=dollars(price)).text


def _best_price(known: _Known) -> int:
    """The highest price that the buyer may take, by its hint, and once it has made an offer by that."""
    if known.price is None:
        return 60_000 if known.hint is None else _highest_budget(known.hint)
    lower = 0.93 * known.price
    if known.offer is not None:
        share = min(LAST_OFFER, FIRST_OFFER + OFFER_STEP * max(0, known.prices - 1))
        lower = min(lower, max(known.offer, 0.995 * known.offer / share))
    return _rounded(lower)


def _highest_budget(hint: int) -> int:
    """The highest of the budgets that there are which the hint can be a part of."""
    return max((budget for budget in BUDGETS if hint >= TOLD_SHARE[0] * budget - 500), default=BUDGETS[0])


# The worst ------------------------------------------------------------------------------------------------------------
def _random_line(context: Context) -> str:
    """One or two random sentences with random cars, features and prices."""
    rng = context.rng
    speak = _Speaker(rng.choice(("warm", "plain", "short")), rng)
    for act in rng.sample(sorted(spoken_lines("car_seller_lines.txt")), k=rng.randint(1, 2)):
        low, high = sorted(_rounded(rng.uniform(5_000, 120_000)) for _ in range(2))
        speak.say(
            act, car=car_name(rng.choice(BRANDS), rng.choice(TYPES)),
            features=feature_list(rng.sample(FEATURES, k=rng.randint(1, 3))),
            price=dollars(low), list=dollars(high), percent=str(rng.choice((5, 10, 15))),
        )  # fmt: skip
    return speak.text


def _discounter_line(context: Context) -> str:
    return _sell(context, DISCOUNTER)


def _feature_talker_line(context: Context) -> str:
    return _sell(context, FEATURE_TALKER)


def _concise_line(context: Context) -> str:
    return _sell(context, CONCISE)


SELLERS = scripted(
    random=_random_line,
    behavior=_behavior_line,
    best=_best_line,
    discounter=_discounter_line,
    feature_talker=_feature_talker_line,
    concise=_concise_line,
)
