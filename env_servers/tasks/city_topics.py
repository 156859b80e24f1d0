"""Open questions about a city: what they are about, and the sentence that answers them.

The sentence is the same for all cities that share the fact, and never names the city or its country; the name of a
language may tell the country all the same ("People there speak Turkish"). Where a river or a neighbouring country bears
the name of the city or of its country, the sentence does without it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from env_servers.tasks.city_facts import THIS_YEAR, City, atlas, languages, table
from env_servers.tasks.city_names import tells

NAME = "name"
ABOUT_FIRST = re.compile(
    r"^(?:please )?(?:tell me|describe|say|give me|can you describe|talk)(?: something| more| anything| a bit)? ?"
    r"(?:about )?(?:it|there)$|^about it$|^what is (?:it|life) like(?: there)?$|^describe it\b|\b(?:hint|clue)s?\b"
)
OPEN = re.compile(
    r"^(?:(?:in|on|from|at|by|to|through|for|of|near) (?:what|which)|what|which|where|when|how|who|whose|whom|why|name|"
    r"tell|describe|give|explain|list|say|talk|anything|any|share|under|reveal)\b"
)
WITH_ARTICLE = ("United", "Democratic Republic", "Republic of", "Netherlands", "Philippines", "Central African")
SIZES = (1e6, 3e6, 5e6, 10e6, 15e6)
LAND_SIZES = (10e6, 50e6, 100e6, 200e6, 500e6)
AGES = (200, 500, 1000, 2000)
HEIGHTS = (50, 300, 1000, 2000)
COLOURS = ("red", "blue", "green", "yellow", "orange", "white", "black")
# Sports whose usual names would tell the country, or that are called differently.
SPORTS = {"american football": "gridiron football", "muay thai": "kickboxing", "football": "soccer"}
# Those who had colonies, as a sentence calls them.
POWERS = {
    "spanish": "Spanish", "portuguese": "Portuguese", "dutch": "Dutch", "british": "British", "french": "French",
    "belgian": "Belgians", "german": "Germans", "american": "Americans", "japanese": "Japanese", "italian": "Italians",
}  # fmt: skip
DECLINED = "I will not say that, since it would give the name away."


def topic_of(text: str) -> str | None:
    """What an open question is about, None where it is not understood.

    Args:
        text: Plain words, with `it` and `itsland` for the city and its country.
    """
    if ABOUT_FIRST.search(text):
        return "about"
    found = next((topic for topic, pattern in _patterns() if pattern.search(text)), "none")
    return None if found == "none" else found


def is_open(text: str) -> bool:
    """Whether a question begins as one that yes or no does not answer."""
    return OPEN.match(text) is not None


@functools.cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """What tells a topic; the first that fits counts. `none` is what there are no facts of."""
    return tuple((row["topic"], re.compile(row["pattern"])) for row in table("topics"))


@functools.cache
def topics() -> tuple[str, ...]:
    """All topics that there is an answer for."""
    return tuple(dict.fromkeys(topic for topic, _ in _patterns() if topic != "none"))


@functools.cache
def _sentences() -> Mapping[tuple[str, str], str]:
    return {(row["topic"], row["value"]): row["sentence"] for row in table("sentences")}


@functools.cache
def answers(topic: str) -> tuple[str, ...]:
    """The sentence for each city."""
    if topic == NAME:
        return (DECLINED,) * len(atlas().cities)
    return tuple(_said(topic, city) for city in atlas().cities)


def _said(topic: str, city: City) -> str:
    if topic in TOLD:
        return TOLD[topic](city)
    column = {"region": "regions", "food": "cuisine"}.get(topic, topic)
    return _sentences()[topic if topic != "food" else "cuisine", city.values[column][0]]


def _band(topic: str, limits: Sequence[float], number: float) -> str:
    return _sentences()[topic, str(int(np.searchsorted(limits, number, side="right")))]


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _continent(city: City) -> str:
    name = {
        "AF": "Africa",
        "AS": "Asia",
        "EU": "Europe",
        "NA": "North America",
        "SA": "South America",
        "OC": "Oceania",
    }[atlas().country(city).continent]
    both = name == "Asia" and "europe" in city.values["places"]
    return "It lies on two continents, Europe and Asia." if both else f"It is in {name}."


def _languages(city: City) -> str:
    main, _ = languages(city.values["languages"][0])
    return f"People there speak {listed(main)}."


def _currency(city: City) -> str:
    return f"The currency there is called the {city.values['currency'][0]}."


def _river(city: City) -> str:
    rivers = city.values["rivers"]
    if not rivers:
        return "No large river runs through it."
    if tells(rivers[0], city):
        return "A river runs through it, but the name of the river would tell too much."
    return f"The {rivers[0]} runs through it."


def _sea(city: City) -> str:
    for name in city.values["seas"]:
        if not tells(name, city):
            return f"It lies on the {name}."
    if "great lakes" in city.values["places"]:
        return "It lies on a large lake and far from the sea."
    if "near sea" in city.values["terrain"]:
        return "It does not lie on the sea but close to it."
    return "It lies neither on the sea nor close to it."


def _neighbours(city: City) -> str:
    codes = atlas().country(city).neighbours
    names = [atlas().countries[code].name for code in codes]
    if not names:
        return "Its country has no neighbours on land."
    if len(names) > 8 or any(tells(name, city) for name in names):
        return "Its country has many neighbours." if len(names) > 4 else "Its country has few neighbours."
    return f"Its country borders {listed([with_article(name) for name in sorted(names)])}."


def with_article(name: str) -> str:
    """The name of a country as a sentence has it: `the United States`."""
    return f"the {name}" if name.startswith(WITH_ARTICLE) or name.endswith("Republic") else name


def _rule(city: City) -> str:
    powers = [POWERS[name] for name in city.values["rule"] if name in POWERS] if "colony" in city.values["rule"] else []
    if not powers:
        return "It was never a colony of another country."
    return f"It was once ruled by the {listed(powers)}."


def _time(city: City) -> str:
    hours = abs(city.hours)
    text = "an hour" if hours == 1 else f"{int(hours)} and a half hours" if hours % 1 else f"{int(hours)} hours"
    if not hours:
        return "The clocks there show Greenwich time."
    return f"The clocks there are {text} {'ahead of' if city.hours > 0 else 'behind'} Greenwich."


def _flag(city: City) -> str:
    colours = [colour for colour in COLOURS if colour in city.values["flag"]]
    return f"The colours of its flag are {listed(colours)}."


def _sport(city: City) -> str:
    name = city.values["sports"][0]
    return f"The favourite sport there is {SPORTS.get(name, name)}."


def _government(city: City) -> str:
    kinds = ("monarchy", "communist", "republic", "other")
    return _sentences()["government", next(kind for kind in kinds if kind in (*city.values["groups"], "other"))]


def _hemisphere(city: City) -> str:
    side = "north" if city.latitude > 0 else "south"
    return _sentences()["hemisphere", f"{side} tropics" if abs(city.latitude) < 23.44 else side]


def _about(city: City) -> str:
    size = "big" if city.population >= 5_000_000 else "small"
    kind = "capital" if "capital" in city.values["roles"] else size
    return _sentences()["about", f"{kind} {'sea' if city.values['seas'] else 'inland'}"]


TOLD: Mapping[str, Callable[[City], str]] = {
    "continent": _continent,
    "language": _languages,
    "currency": _currency,
    "river": _river,
    "sea": _sea,
    "neighbours": _neighbours,
    "rule": _rule,
    "time": _time,
    "flag": _flag,
    "sport": _sport,
    "government": _government,
    "hemisphere": _hemisphere,
    "transport": lambda city: _sentences()["transport", "metro" if "metro" in city.values["extra"] else "bus"],
    "size": lambda city: _band("size", SIZES, city.population),
    "land size": lambda city: _band("land size", LAND_SIZES, atlas().country(city).population),
    "age": lambda city: _band("age", AGES, THIS_YEAR - city.founded),
    "height": lambda city: _band("height", HEIGHTS, city.elevation),
    "about": _about,
}
