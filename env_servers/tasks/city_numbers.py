"""Questions about a city that are settled by comparing numbers: people, age, height, place on the globe, letters.

Each function takes the *items* of a question, words and things that were found in it (`Thing`), and gives the cities
for which the answer is yes, or None where the question is of another sort.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from env_servers.tasks.city_facts import CONTINENTS, THIS_YEAR, Cities, Place, atlas, group, languages
from env_servers.tasks.city_words import fold

NEAR_KM = 150.0
FEET = 0.3048

BESIDE_NUMBERS = ("more", "less", "people", "age", "height", "beside number")
SIDES = {"north": 1, "south": -1, "east": 1, "west": -1}
ORDINAL = re.compile(r"(\d{1,2})(?:st|nd|rd|th)")


class Thing(NamedTuple):
    """A phrase of a question with everything that it may stand for.

    Attributes:
        text: As it reads.
        tags: Of `Atlas.phrases`.
        codes: Country codes.
        place: Number in `Atlas.world`, -1 for none.
        value: The number that it is, None for none.
    """

    text: str
    tags: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    place: int = -1
    value: float | None = None


Item = str | Thing


def words_of(items: Iterable[Item]) -> list[str]:
    """All words, those of the things too, numbers left out."""
    found: list[str] = []
    for item in items:
        if isinstance(item, str):
            found.append(item)
        elif item.value is None:
            found += item.text.split()
    return found


def measured(items: Sequence[Item], *, land: bool) -> Cities | None:
    """More, less or about so many people, years or metres.

    Args:
        items: The question without what comes before its predicate.
        land: Whether it is about the country.
    """
    values = [item.value for item in items if isinstance(item, Thing) and item.value is not None]
    words = words_of(items)
    known = set(words)
    century = next((found for word in words if (found := ORDINAL.fullmatch(word))), None)
    if not values and century is None:
        return None
    allowed = frozenset().union(*(group(name) for name in BESIDE_NUMBERS), [century[0] if century else ""])
    if "level" not in known:
        allowed -= {"sea"}
    if not known <= allowed or any(isinstance(item, Thing) and (item.place >= 0 or item.codes) for item in items):
        return None
    if century is not None:
        return None if values or "century" not in known else _in_century(int(century[1]), known)
    if known & group("height"):
        height = [value * FEET if known & {"feet", "ft"} else value for value in values]
        return None if land else _held(atlas().elevation, height, known, close=0.1)
    if known & group("age") and not known & group("people"):
        return None if land else _aged(values, known)
    if known & group("people") or (max(values) >= 10_000 and known & (group("more") | group("less"))):
        about_land = land or bool(known & {"country", "itsland", "nation"})
        return _held(atlas().land_population if about_land else atlas().population, values, known, close=0.1)
    return None


def _aged(values: Sequence[float], known: set[str]) -> Cities | None:
    if "years" in known or (known & {"old", "older", "younger", "newer", "age"} and not known & {"founded", "built"}):
        return _held(THIS_YEAR - atlas().founded, values, known, close=0.1)
    years = [-value if known & {"bc", "bce"} else value for value in values]
    if any(abs(year) > 4000 for year in years):
        return None
    return _held(atlas().founded, years, known, close=0.0)


def _in_century(number: int, known: set[str]) -> Cities | None:
    founded = atlas().founded
    first, last = 100 * (number - 1) + 1, 100 * number
    if known & {"bc", "bce"}:
        first, last = -100 * number, -100 * (number - 1) - 1
    if not known & group("age") - {"century"}:
        return None
    if known & {"before", "earlier", "older"}:
        return founded < first
    if known & {"after", "later", "younger"}:
        return founded > last
    return (founded >= first) & (founded <= last)


def _held(numbers: npt.NDArray[np.float64], values: Sequence[float], known: set[str], *, close: float) -> Cities | None:
    """The cities whose number is more, less, between or about the values."""
    if len(values) == 2 and known & {"between", "to", "from", "and"}:
        low, high = sorted(values)
        if low < 1000 <= high:  # "between one and three million"
            low *= 1000.0 ** int(np.log10(high) / 3)
        return (numbers >= low) & (numbers <= high)
    if len(values) != 1:
        return None
    value = values[0]
    more, less = known & group("more") - {"above"}, known & group("less") - {"most"}
    if "above" in known and not more and not less:
        more = {"above"}
    if "most" in known and not more and not less:
        return numbers <= value
    if more and less:
        return None
    if more:
        return numbers >= value if "least" in more else numbers > value
    if less:
        return numbers < value
    return np.abs(numbers - value) <= close * abs(value)


def compared(items: Sequence[Item]) -> Cities | None:
    """Bigger, older or higher than another city, near it, or in the same country; or on one side of it."""
    things = [item for item in items if isinstance(item, Thing) and item.place >= 0]
    if len(things) != 1:
        return None
    place, words = atlas().world[things[0].place], [item if isinstance(item, str) else item.text for item in items]
    known = set(words_of([item for item in items if item is not things[0]]))
    if "same" in known:
        return _same(things[0].place, known)
    for side in SIDES:
        if _side_of(side, words, known):
            return _beyond(place, side)
    if "than" not in known or not known <= group("compared") | group("beside number") | {"much", "far"}:
        return None
    after = words[words.index("than") + 1 :]
    other_way = things[0].text not in after
    if other_way and not set(after) <= {"it", "there", "this", "that", "its", "city"}:
        return None
    return _compare(things[0].place, known - {"than"}, other_way=other_way)


def _compare(number: int, known: set[str], *, other_way: bool) -> Cities | None:
    """Which cities are more than the place in what is asked, or the place more than they (`other_way`)."""
    found = _measure(known)
    if found is None:
        return None
    what, sign = found
    ours: npt.NDArray[np.float64] = getattr(atlas(), what)
    if what == "population":
        theirs = float(atlas().world[number].population)
    elif number < len(ours):
        theirs = float(ours[number])
    else:
        return None  # only the number of people is known of other cities
    difference = ours - theirs
    if what == "population":  # a country's largest city is that, whichever area the numbers count
        here, largest = atlas().having(f"in:{atlas().world[number].country}"), atlas().having("role:largest")
        if number < len(ours) and largest[number]:
            difference[here] = -1.0
            difference[number] = 0.0
        else:
            difference[here & largest] = 1.0
    return sign * (-difference if other_way else difference) > 0


def _measure(known: set[str]) -> tuple[str, int] | None:
    """What a comparison is about, and whether more (1) or less (-1) of it is asked for."""
    if known & {"older", "earlier", "ancient"}:
        return "founded", 1 if "less" in known else -1
    if known & {"younger", "newer", "modern"}:
        return "founded", -1 if "less" in known else 1
    size = known & {"bigger", "larger", "greater", "smaller"}
    if size or known & group("people"):
        less, more = known & {"smaller", "fewer", "less", "lower"}, known & (size - {"smaller"} | {"more", "higher"})
        return None if bool(less) == bool(more) else ("population", -1 if less else 1)
    if known & {"higher", "lower"}:
        return "elevation", 1 if "higher" in known else -1
    return None


def _side_of(side: str, words: Sequence[str], known: set[str]) -> bool:
    """Whether `north of X`, `further north than X` or `more northern than X` is asked."""
    forms = {side, f"{side}ern"}
    if not known & forms or "in" in words[: next((i for i, w in enumerate(words) if w in forms), 0)]:
        return False
    return bool(known & {"of", "than", "from"}) and known <= forms | group("beside number") | {
        "further", "farther", "more", "far", "lie", "lies",
    }  # fmt: skip


def _beyond(place: Place, side: str) -> Cities:
    ours, theirs = (
        (atlas().latitude, place.latitude) if side in ("north", "south") else (atlas().longitude, place.longitude)
    )
    return ours > theirs if SIDES[side] > 0 else ours < theirs


def near(place: Place) -> Cities:
    """The cities within `NEAR_KM` of a place, it itself included."""
    here, there = np.radians(atlas().latitude), np.radians(place.latitude)
    apart = np.radians(atlas().longitude - place.longitude)
    angle = np.sin(here) * np.sin(there) + np.cos(here) * np.cos(there) * np.cos(apart)
    close: Cities = 6371.0 * np.arccos(np.clip(angle, -1.0, 1.0)) <= NEAR_KM
    return close


def _same(number: int, known: set[str]) -> Cities | None:
    place, here = atlas().world[number], atlas()
    if known & {"country", "nation"}:
        return here.having(f"in:{place.country}")
    if "continent" in known:
        return here.having(f"place:{CONTINENTS[here.countries[place.country].continent]}")
    if "hemisphere" in known:
        return here.having("lat:north" if place.latitude > 0 else "lat:south")
    if number >= len(here.cities):
        return None
    city = here.cities[number]
    if "zone" in known or "timezone" in known:
        return np.array([other.hours == city.hours for other in here.cities])
    if "language" in known:
        return here.meant(f"main:{name.lower()}" for name in languages(city.values["languages"][0])[0])
    for word in ("currency", "religion", "climate"):
        if word in known:
            return here.meant((f"{word}:{city.values[word][0]}",))
    return None


def largest_in(things: Sequence[Thing], known: set[str]) -> Cities | None:
    """The largest city of the world or of a continent, None where something else is asked."""
    here = atlas()
    if known & {"world", "earth", "planet", "globe"}:
        inside = list(range(len(here.world)))
    else:
        continents = [
            tag for thing in things for tag in thing.tags if tag.removeprefix("place:") in CONTINENTS.values()
        ]
        if len(continents) != 1:
            return None
        inside = [
            number
            for number, place in enumerate(here.world)
            if CONTINENTS[here.countries[place.country].continent] == continents[0].removeprefix("place:")
        ]
    best = max(inside, key=lambda number: here.world[number].population)
    return only(best)


def only(number: int) -> Cities:
    """The city with that number in `Atlas.world`; none of the hundred where it is another one."""
    found = np.zeros(len(atlas().cities), np.bool_)
    found[number : number + 1] = True
    return found


LETTER = re.compile(
    r"\b(?:(start|begin|end|finish|contain|have|has|include)\w*) (?:with |in |by )?(?:the |a |an )?(?:letter |vowel )?"
    r"([a-z])(?: (?:in (?:it|its name|the name)|as (?:its )?first letter))?$"
)
VOWEL = re.compile(r"\b(start|begin|end|finish)\w* (?:with|in) a (vowel|consonant)$")
FIRST_LETTER = re.compile(
    r"\b(first|last|initial) letter (?:of (?:it|its name|the name) )?(?:is )?(?:an? |the )?([a-z])$"
)
LENGTH = re.compile(r"(?:^| )(?:(more|less|fewer|longer|shorter) than )?#(\d+) (letter|word|character)s?\b")


def lettered(text: str) -> Cities | None:
    """About how the name of the city or of its country is written.

    Args:
        text: The question in plain words, articles included, numbers as `#5`.
    """
    of_the_land = re.search(r"\b(itsland|country|nation)\b", text) is not None
    names = [city.land.name if of_the_land else city.name for city in atlas().cities]
    letters = [re.sub(r"[^a-z]", "", fold(name)) for name in names]
    if found := FIRST_LETTER.search(text):
        place = -1 if found[1] == "last" else 0
        return np.array([name[place] == found[2] for name in letters])
    if found := VOWEL.search(text):
        place = 0 if found[1] in ("start", "begin") else -1
        return np.array([(name[place] in "aeiou") == (found[2] == "vowel") for name in letters])
    if found := LETTER.search(text):
        verb, letter = found[1], found[2]
        if verb in ("start", "begin"):
            return np.array([name.startswith(letter) for name in letters])
        if verb in ("end", "finish"):
            return np.array([name.endswith(letter) for name in letters])
        return np.array([letter in name for name in letters]) if "letter" in text or "name" in text else None
    if found := LENGTH.search(text):
        counted = [len(name.split()) for name in names] if found[3] == "word" else [len(name) for name in letters]
        number = int(found[2])
        if found[1] in ("more", "longer"):
            return np.array([count > number for count in counted])
        return np.array([count < number if found[1] else count == number for count in counted])
    return None
