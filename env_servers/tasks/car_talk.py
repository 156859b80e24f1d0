"""What a line about a car says, read from free text: brand, type, features, questions, reasons, extras, tone, price.

`read_line` takes any text and never fails; it reads the first `HEARD` characters, in any mix of capitals, and
remembers what it read of recent texts. It reads for what a buyer in a car shop listens for: is a feature claimed ("it
has heated seats"), denied ("no sunroof"), or asked about ("do you need leather?"); what the seller wants to know;
reasons and free extras; pressure and insults (`car_words`); and money (`car_money`).

`spoken_lines` and the functions after it are the other way round: what is said about cars.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from env_servers.tasks import car_words as words
from env_servers.tasks.car_money import Prices, read_prices

HEARD = 600  # characters of a line that are read
SHORT = 4  # words of a question that is but a name: "A sunroof?"
REMEMBERED = 1 << 15


class Line(NamedTuple):
    """What a line says.

    Attributes:
        prices: The price of the car, and discounts.
        brands: Brands that are offered, in the order in which they are named.
        types: Types that are offered, likewise.
        features: Features that the car is said to have.
        lacking: Brands, types and features that are denied.
        about: Brands, types and features that are only asked about, or repeated as the other's wish.
        topics: What the line wants to know of the other: `brand`, `type`, `features`, `needs`, `budget`.
        reasons: Grounds for the price: `safety`, `reliability`, `economy`, `warranty`, `resale`, `comfort`, `power`.
        extras: What is given for free: `maintenance`, `tires`, ...
        starts_with: `yes` or `no` where the line begins so, else empty.
        agrees: It takes an offer of the other's.
        asks: It asks the other anything.
        has_it: It says that there is what was asked for, without naming it.
        repeats_wishes: It says that the car has all that the other asked for.
        pushes: It presses for a decision.
        insults: It insults.
        words: Number of words.
    """

    prices: Prices = Prices()
    brands: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    starts_with: str = ""
    agrees: bool = False
    asks: bool = False
    has_it: bool = False
    repeats_wishes: bool = False
    pushes: bool = False
    insults: bool = False
    words: int = 0

    @property
    def says_something(self) -> bool:
        """Whether anything but its length could be read."""
        return self._replace(words=0) != Line()


_SENTENCE = re.compile(r"[^.!?]*(?:[.!?]+(?=\s|$)|$|[.!?])")
_CLAUSE = re.compile(r"[,;:()]|\b(?:but|however|although|though)\b")
_PLAIN = str.maketrans(
    {"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-", "‑": "-", "\u00a0": " "}
)


def plain(text: str) -> str:
    """A text in lower case, with plain quotes and dashes and single spaces, cut to what is read."""
    text = unicodedata.normalize("NFKC", text[:HEARD]).translate(_PLAIN).lower()
    return " ".join(text.split())[: 2 * HEARD]  # one character can stand for several


@functools.lru_cache(REMEMBERED)
def read_line(text: str) -> Line:
    """What a line says; see `Line`."""
    said = plain(text)
    items = _Items()
    topics: dict[str, None] = {}
    reasons: dict[str, None] = {}
    extras: dict[str, None] = {}
    agrees = asks = has_it = False
    for match in _SENTENCE.finditer(said):
        sentence = match[0].strip()
        if not sentence:
            continue
        question = sentence.endswith("?") or bool(words.ASKS.match(sentence))
        asks = asks or (question and words.YOU.search(sentence) is not None)
        has_it = has_it or (not question and _says(words.HAS_IT, sentence))
        items.read(sentence, question)
        if question or words.TELL.search(sentence):
            topics |= _found(words.TOPICS, sentence)
        if not question:
            reasons |= {name: None for name, pattern in words.REASONS.items() if _says(pattern, sentence)}
            agrees = agrees or _says(words.AGREES, sentence, words.CONDITION)
        if _says(words.FREE, sentence):
            extras |= _found(words.EXTRAS, sentence)
        if words.FREE_CREDIT.search(sentence):
            extras |= {"financing": None}
    if "needs" in topics and topics.keys() & {"brand", "type", "features", "budget"}:
        del topics["needs"]
    return Line(
        prices=read_prices(said),
        **items.claims(_says(words.HAS_THEM, said)),
        topics=tuple(topics),
        reasons=tuple(reasons),
        extras=tuple(extras),
        starts_with="yes" if words.YES.match(said) else "no" if words.NO.match(said) else "",
        agrees=agrees,
        asks=asks,
        has_it=has_it,
        repeats_wishes=_says(words.ALL_WISHES, said),
        pushes=_says(words.PUSHES, said) or _shouted(text[:HEARD]),
        insults=bool(words.INSULTS.search(said)),
        words=len(said.split()),
    )


def _found(patterns: Mapping[str, re.Pattern[str]], sentence: str) -> dict[str, None]:
    return dict.fromkeys(name for name, pattern in patterns.items() if pattern.search(sentence))


def _says(pattern: re.Pattern[str], text: str, unless: re.Pattern[str] | None = None) -> bool:
    """Whether a text says what the pattern finds, and neither denies it nor has `unless` before it."""
    for match in pattern.finditer(text):
        begin = max(0, *(text.rfind(mark, 0, match.start()) for mark in (". ", "! ", "? ", " but ", " and ")))
        if words.NEGATED.search(text, begin, match.start()):
            continue
        if unless is None or not unless.search(text, 0, match.start()):
            return True
    return False


class _Items:
    """Brands, types and features of a line, collected sentence by sentence."""

    def __init__(self) -> None:
        self.claimed: dict[str, None] = {}
        self.lacking: dict[str, None] = {}
        self.about: dict[str, None] = {}

    def read(self, sentence: str, question: bool) -> None:
        """Sort what a sentence names into claimed, denied and asked about."""
        asks = (
            question
            and "$" not in sentence
            and not words.OFFERING.search(sentence)
            and (len(sentence.split()) <= SHORT or words.WISHING.search(sentence) is not None)
        )
        for match in words.ITEM.finditer(sentence):
            item = words.ITEMS[int(str(match.lastgroup)[1:])]
            start, end = match.span()
            cuts = [cut.end() for cut in _CLAUSE.finditer(sentence, 0, start)]
            clause = sentence[cuts[-1] if cuts else 0 : start]
            names = [item, *(other for pattern, other in words.BOTH if pattern.search(sentence, start, end + 10))]
            if asks:
                found = self.about
            elif words.KINDS[item] == "brand" and words.COMPARED.search(clause):
                continue
            elif words.DENIED_BEFORE.search(clause) or words.DENIED_AFTER.match(sentence[end:]):
                found = self.lacking
            else:
                repeated = words.WISHING.search(clause) and not words.OFFERING.search(clause)
                found = self.about if repeated else self.claimed
            found |= dict.fromkeys(names)

    def claims(self, all_of_them: bool) -> dict[str, tuple[str, ...]]:
        """The fields of `Line`; `all_of_them` says that the line claims what it repeats as the other's wish."""
        claimed = {**self.claimed, **(self.about if all_of_them else {})}
        claimed = {item: None for item in claimed if item not in self.lacking}
        by_kind = {
            kind: tuple(item for item in claimed if words.KINDS[item] == kind) for kind in ("brand", "type", "feature")
        }
        return {
            "brands": by_kind["brand"],
            "types": by_kind["type"],
            "features": by_kind["feature"],
            "lacking": tuple(self.lacking),
            "about": tuple(item for item in self.about if item not in claimed),
        }


def _shouted(text: str) -> bool:
    letters = [letter for letter in text if letter.isalpha()]
    capitals = sum(letter.isupper() for letter in letters)
    return "!!!" in text or (len(letters) >= 20 and capitals > 0.8 * len(letters))


# Lines to say ---------------------------------------------------------------------------------------------------------
@functools.cache
def spoken_lines(file: str) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """The texts of a file in `assets`, by what they do and by how they say it, made once per process.

    A line `[act]` opens what follows; `manner: text` is one way to say it; `#` is a remark.
    """
    found: dict[str, dict[str, list[str]]] = {}
    act = ""
    for line in (resources.files("env_servers.tasks") / "assets" / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            act = line.strip("[]")
            found[act] = {}
        elif line and not line.startswith("#"):
            manner, _, text = line.partition(": ")
            found[act].setdefault(manner, []).append(text)
    return {act: {manner: tuple(texts) for manner, texts in by.items()} for act, by in found.items()}


def filled(text: str, **slots: str) -> str:
    """A text with its slots filled: `{car}`, and `{Car}` where it begins a sentence."""
    for name, slot in slots.items():
        if f"{{{name}}}" in text or f"{{{name.capitalize()}}}" in text:
            capital = slot[:1].upper() + slot[1:]
            text = text.replace(f"{{{name}}}", slot).replace(f"{{{name.capitalize()}}}", capital)
    return text


def car_name(brand: str, kind: str) -> str:
    """Such as `a Tesla truck`, `an Audi luxury car`."""
    return f"{brand} {kind} car" if kind in ("luxury", "electric") else f"{brand} {kind}"


_ARTICLES = {"backup camera": "a ", "navigation system": "a ", "sunroof": "a "}


def feature_list(features: Sequence[str]) -> str:
    """Such as `heated seats, a sunroof and Apple CarPlay`."""
    named = [_ARTICLES.get(feature, "") + feature for feature in features]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def dollars(amount: int) -> str:
    """Such as `$45,000`."""
    return f"${amount:,}"
