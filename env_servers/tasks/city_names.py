"""Names of cities and countries in a text: which are named, whether a question is a guess, and blanking them out."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import NamedTuple

from env_servers.tasks.city_facts import City, atlas, key
from env_servers.tasks.city_words import fold, last_question, plain, without_articles

# What may stand before the name in a guess. All of it is optional: "Paris?" is one.
BEFORE = re.compile(
    r"^(?:(?:so|ok|okay|well|hmm|hm|then|now|and|alright|all right|aha|ah|oh|great|good|thanks|thank you|finally|wait|"
    r"perhaps|maybe|possibly|probably|is it possible that|i think|i guess|i believe|i would say|i would guess|"
    r"i am guessing|let me guess|my guess is|my final guess is|final guess|guess|i know|got it|what about|how about|"
    r"could|might|would|can|may|must|do you mean|are you thinking of|were you thinking of|are you talking about|"
    r"happen to|do you|did you|have you|are you|were you|you|is|was|it|this|that|be|are|must be|answer|your answer|"
    r"(?:your |this |that )?(?:home ?|native |birth ?)?(?:city|town|place|hometown)"
    r"(?: you (?:are|come|were|live|have)(?: (?:from|in|born in|living in|thinking of|thinking about|talking about|"
    r"in mind))?)?(?: in question)?|"
    r"where you (?:are from|live|come from)|name|of|called|named|nicknamed|dubbed|"
    r"(?:also |often |sometimes |commonly |better )*known as|(?:also|often|sometimes|commonly) (?=called)|"
    r"from|live|lived|living|come|born|raised|grow up|"
    r"grew up|based|located|situated|reside|residing|in|city of|by any chance|actually|either|,) )+"
)
AFTER = re.compile(
    r"(?:(?:city|right|correct|then|maybe|perhaps|by any chance|please|you are from|you come from|you live in|"
    r"you are thinking of|your city|your hometown|your answer|answer|is it|it is|,) )*"
)
LONGEST_GUESS = 24  # words
# "Is Paris your city?", "Is Paris the answer?"
REVERSED = re.compile(
    r"^(?:so |, )*(?:is|was|could|would|might|can) (.+?) (?:be )?(?:it|your|city|answer|place|home)\b"
)


class Guess(NamedTuple):
    """A question that names one city as its guess.

    Attributes:
        city: Its number among the hundred; None for a city of the world that is not among them.
        fits: False where it adds a country that the city is not in, or another name beside it.
    """

    city: int | None
    fits: bool = True


@functools.cache
def _names() -> dict[str, tuple[int, ...]]:
    """All names of the hundred, as they read in a question, to the cities that bear them."""
    found: dict[str, tuple[int, ...]] = {}
    for number, city in enumerate(atlas().cities):
        for name in city.names:
            found[key(name)] = (*found.get(key(name), ()), number)
    return found


@functools.cache
def _longest_name() -> int:
    return max(len(name.split()) for name in _names())


def named(question: str) -> set[int]:
    """The cities that are named anywhere in a text, by whole words; a longer name hides a shorter one in it.

    `LA` and `HK` count in capitals alone here, since they are words of other languages.
    """
    words = without_articles(plain(question).split())
    found: set[int] = set()
    place = 0
    while place < len(words):
        for length in range(min(_longest_name(), len(words) - place), 0, -1):
            name = " ".join(words[place : place + length])
            if name in _names() and (len(name) > 2 or re.search(rf"\b{name.upper()}\b", question)):
                found.update(_names()[name])
                place += length - 1
                break
        place += 1
    return found


@functools.lru_cache(maxsize=50_000)
def guess(question: str) -> Guess | None:
    """The city that a question names as its guess, None where it is no guess of one city.

    "Is it Paris?", "Is the city you are from Paris, France?", "Do you live in Paris?", "Is Paris your city?" and
    "Paris?" are guesses; "Is it near Paris?", "Is it bigger than Paris?", "Is it not Paris?" and "Is it Paris or
    London?" are not.
    """
    words = without_articles(plain(last_question(question)).split())
    if len(words) > LONGEST_GUESS:
        return None
    for start in range(len(words)):
        if start and BEFORE.fullmatch(f"{' '.join(words[:start])} ") is None:
            continue
        for end in range(len(words), start, -1):
            if AFTER.fullmatch(f"{' '.join(words[end:])} " if end < len(words) else "") is None:
                continue
            if (found := _city_and_country(" ".join(words[start:end]))) is not None:
                return found
    if (turned := REVERSED.match(" ".join(words))) is not None:
        return _city_and_country(turned[1])
    return None


def _city_and_country(text: str) -> Guess | None:
    """`paris`, `paris france`, `paris , capital of france`: a name and perhaps its country."""
    words = text.split()
    for length in range(len(words), 0, -1):
        name = " ".join(words[:length])
        city = _names().get(name, (None,))[0] if name in _names() or name in atlas().place_names else -1
        if city == -1:
            continue
        rest = words[length:]
        while rest and rest[0] in (",", "in", "capital", "of", "city", "which", "is", "it"):
            rest = rest[1:]
        if not rest:
            return Guess(city)
        country = " ".join(rest)
        if city is not None and country in _lands_of(city):
            return Guess(city)
        if country in atlas().country_names or country in atlas().phrases:
            return Guess(city, fits=False) if "or" not in rest and "and" not in rest else None
        return None
    return None


@functools.cache
def _lands_of(city: int) -> frozenset[str]:
    """What may be added to a city's name: names of its country, the continent, the state."""
    place = atlas().cities[city]
    places = (*place.values["places"], *(tag for tag in place.values["regions"]), *place.land.names)
    listed_under = ("China",) if place.land.code == "TW" else ()  # so the paper's list has Taipei
    return frozenset(key(name) for name in (*places, *listed_under))


class _Blanks(NamedTuple):
    """What is blanked out for a city: its names and its country's in small letters, the abbreviations in capitals."""

    small: re.Pattern[str]
    capitals: re.Pattern[str] | None
    city: frozenset[str]


@functools.cache
def _blanks(name: str) -> _Blanks:
    city = next(city for city in atlas().cities if city.name == name)
    listed_under = ("China",) if city.land.code == "TW" else ()
    names = (*city.names, *city.land.names, *listed_under)
    # "North America" does not name the United States; "the Congo" loses its article. Longer names go first.
    spelt = sorted({_spelling(name) for name in names if not _in_capitals(name)}, key=len, reverse=True)
    spelt = [f"(?<!north )(?<!south )(?<!latin )(?<!central ){text}" if text == "america" else text for text in spelt]
    capitals = [r"\.?".join(name) for name in names if _in_capitals(name)]
    edges = r"(?<![^\W_])(?:[Tt]he )?(?:{})(?![^\W_])"
    return _Blanks(
        re.compile(edges.format("|".join(spelt))),
        re.compile(edges.format("|".join(capitals))) if capitals else None,
        frozenset(_squashed(name) for name in city.names),
    )


def _spelling(name: str) -> str:
    """A pattern of a name in small letters, however its words are joined: `Sao-Paulo`, `Xi’an`."""
    return r"[\W_]{0,3}".join(re.findall(r"[a-z0-9]+", fold(name)))


def _squashed(text: str) -> str:
    return re.sub(r"[\W_]", "", fold(text))


def _in_capitals(name: str) -> bool:
    """Whether a name is an abbreviation that would be another word in small letters."""
    return name.isupper() and len(name) <= 3


@functools.lru_cache(maxsize=50_000)
def blank(text: str, name: str) -> str:
    """A text with the names of a city and of its country replaced by "that city" and "that country".

    Args:
        text: What a partner said.
        name: The city's, as the table has it.
    """
    text = unicodedata.normalize("NFC", text)
    blanks = _blanks(name)
    for pattern in filter(None, (blanks.small, blanks.capitals)):
        pieces, end = [], 0
        # Letters lose their accents one by one, so that places stay the same.
        for found in pattern.finditer(fold(text) if pattern is blanks.small else text):
            names_city = _squashed(found[0]).removeprefix("the") in blanks.city or _squashed(found[0]) in blanks.city
            instead = "that city" if names_city else "that country"
            begins = found.start() == 0 and text[0].isupper()
            pieces += [text[end : found.start()], instead.capitalize() if begins else instead]
            end = found.end()
        text = "".join(pieces) + text[end:]
    return text


def tells(text: str, city: City) -> bool:
    """Whether a text names the city or its country."""
    return blank(text, city.name) != text
