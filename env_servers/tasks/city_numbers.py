"""Questions about a city that are settled by comparing numbers: people, age, height, place on the globe, letters.

Each function takes the *items* of a question, words and things that were found in it (`Thing`), and gives the cities
for which the answer is yes, or None where the question is of another sort.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from env_servers.tasks.city_facts import CONTINENTS, THIS_YEAR, Cities, Place, atlas, group, languages
from env_servers.tasks.city_words import fold

NEAR_KM = 150.0
# How far the next large city of a country is, if a city is near that country: a neighbour's can be farther off.
NEAR_LAND_KM, NEAR_NEIGHBOUR_KM = 500.0, 800.0
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
        low, high = min(values), max(values)
        if low < 1000 <= high:  # "between one and three million"
            values = [low * 1000.0 ** int(np.log10(high) / 3), high]
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


def compared(items: Sequence[Item], *, land: bool) -> Cities | None:
    """Bigger, older or higher than another city, near it, or in the same country; or on one side of it.

    Args:
        items: The question without what comes before its predicate.
        land: Whether it is about the country, which is compared with another one.
    """
    named = [item for item in items if isinstance(item, Thing) and (item.place >= 0 or item.codes)]
    if len(named) != 1:
        return None
    thing, texts = named[0], [item if isinstance(item, str) else item.text for item in items]
    # "in a country bigger than France"
    land = land or "itsland" in texts or (thing.place < 0 and bool(set(texts[: items.index(thing)]) & group("land")))
    known = set(words_of([item for item in items if item is not thing]))
    if thing.place >= 0 and not land:
        if "same" in known:
            return _same(thing.place, known)
        for side in SIDES:
            if _side_of(side, texts, known):
                return _beyond(atlas().world[thing.place], side)
    if not known <= group("compared") | group("beside number") | group("height") | {"much", "far"}:
        return None
    # "Does Paris have fewer people?" leaves out the city that is hidden.
    after = texts[texts.index("than") + 1 :] if "than" in known else ["it"] if items[0] is thing else []
    other_way = thing.text not in after
    if not after or (other_way and not set(after) <= {"it", "there", "this", "that", "its", "itsland", "city"}):
        return None
    if land:
        return _compare_lands(thing, known, other_way=other_way)
    return None if thing.place < 0 else _compare(thing.place, known - {"than"}, other_way=other_way)


def nearer(items: Sequence[Item]) -> Cities | None:
    """Closer to one city than to another, or to the equator than another."""
    known, texts = set(words_of(items)), [item if isinstance(item, str) else item.text for item in items]
    places = [atlas().world[item.place] for item in items if isinstance(item, Thing) and item.place >= 0]
    sign = len(known & {"closer", "nearer"}) - len(known & {"further", "farther"})
    if not sign or "than" not in texts or len(places) + ("equator" in known) != 2:
        return None
    if "equator" in known:
        away = np.abs(atlas().latitude) - abs(places[0].latitude)
        return None if texts.index("than") < texts.index("equator") else sign * away < 0
    return sign * (_kilometres(places[0]) - _kilometres(places[1])) < 0


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


def _compare_lands(thing: Thing, known: set[str], *, other_way: bool) -> Cities | None:
    """Which cities' countries are larger or have more people than another country, or that than they (`other_way`)."""
    found = _measure(known)
    if found is None or found[0] != "population" or len(thing.codes) != 1:
        return None
    here, theirs = atlas(), atlas().countries[thing.codes[0]]
    if known & group("people"):
        difference = here.land_population - theirs.population
    else:
        difference = np.array([here.country(city).area for city in here.cities]) - theirs.area
    return found[1] * (-difference if other_way else difference) > 0


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
    close: Cities = _kilometres(place) <= NEAR_KM
    return close


@functools.cache
def near_land(code: str) -> Cities:
    """The cities near a country, those in it left out."""
    here = atlas()
    away = [_kilometres(place) for place in here.world if place.country == code]
    nearest = np.min(away, axis=0) if away else np.full(len(here.cities), np.inf)
    neighbours = here.having(f"borders:{code}")
    close: Cities = (nearest <= np.where(neighbours, NEAR_NEIGHBOUR_KM, NEAR_LAND_KM)) & ~here.having(f"in:{code}")
    return close


def _kilometres(place: Place) -> npt.NDArray[np.float64]:
    """How far the cities are from a place."""
    here, there = np.radians(atlas().latitude), np.radians(place.latitude)
    apart = np.radians(atlas().longitude - place.longitude)
    angle = np.sin(here) * np.sin(there) + np.cos(here) * np.cos(there) * np.cos(apart)
    far: npt.NDArray[np.float64] = 6371.0 * np.arccos(np.clip(angle, -1.0, 1.0))
    return far


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


def largest_in(things: Sequence[Thing], known: set[str], ranks: range) -> Cities | None:
    """The cities that rank so by people in the world, a continent, their country or one that is named.

    Args:
        things: What else the question names.
        known: Its words.
        ranks: 1 is the largest. The first and the second city of a country are not given here but in the lexicon.
    """
    here = atlas()
    places = range(len(here.world))
    continents = [tag for thing in things for tag in thing.tags if tag.removeprefix("place:") in CONTINENTS.values()]
    codes = {code for thing in things for code in thing.codes}
    of_a_land = codes or known & group("land")
    if known & {"world", "earth", "planet", "globe"} or (len(ranks) > 1 and not of_a_land and not continents):
        inside = [sorted(places, key=_by_people)]
    elif len(continents) == 1:
        wanted = continents[0].removeprefix("place:")
        inside = [sorted((number for number in places if _continent(number) == wanted), key=_by_people)]
    elif of_a_land and not continents and ranks not in (range(1, 2), range(2, 3)):
        first = here.having("role:largest")
        ordered = sorted(places, key=lambda number: (not first[number : number + 1].any(), _by_people(number)))
        lands = codes or {city.land.code for city in here.cities}
        inside = [[number for number in ordered if here.world[number].country == land] for land in lands]
    else:
        return None
    found = np.zeros(len(here.cities), np.bool_)
    for numbers in inside:
        for number in numbers[ranks.start - 1 : ranks.stop - 1]:
            found |= only(number)
    return found


def _by_people(number: int) -> int:
    return -atlas().world[number].population


def _continent(number: int) -> str:
    return CONTINENTS[atlas().countries[atlas().world[number].country].continent]


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
