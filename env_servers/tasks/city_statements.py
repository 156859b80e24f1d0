"""One statement about a city, without `or`, `and` and `not`: the cities that it is true of.

A statement is made of things, phrases of the lexicon, and of the words around them. The words tell which of its
meanings a thing has: "French" is a language beside "speak", the country beside nothing, its rule beside "colony". Every
other word has to be one of those that change nothing (`group("filler")`), else the statement is not understood.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from env_servers.tasks.city_facts import CONTINENTS, Cities, atlas, group, key
from env_servers.tasks.city_numbers import Item, Thing, compared, largest_in, measured, near, near_land, nearer, only

# Names of currencies that are also other words.
ALSO_WORDS = {f"currency:{name}" for name in ("real", "won", "sol", "som", "leu", "dong")}
SIDES = ("north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest")
SIDE_WORDS = {
    **{side: side for side in SIDES},
    **{f"{side}ern": side for side in SIDES},
    **dict.fromkeys(("centre", "center", "central", "middle"), "centre"),
}
SIZES = {"size:million", "!size:million", "era:old", "!era:old", "size:mega"}
# What can be said of a country, and what a word then means that means something else of a city.
LAND_KINDS = {
    "in", "place", "language", "main", "main sport", "religion", "practised", "currency", "group", "drive", "sport",
    "flag", "rule", "script", "borders", "cuisine", "all", "land",
}  # fmt: skip
ORDINALS = {word: rank for rank, word in enumerate(("third", "fourth", "fifth", "sixth"), start=3)}
ORDINALS |= {f"{rank}th": rank for rank in range(4, 21)} | {"2nd": 2, "3rd": 3}
# What "main" makes of a kind: the first of its values alone.
MAIN = {"sport": "main sport", "industry": "main industry"}
OF_THE_LAND = {
    "size:million": "land:big",
    "!size:million": "!land:big",
    "terrain:island": "group:island country",
    "water:sea": "land:coast",
    "!water:sea": "!land:coast",
}


@functools.cache
def _known() -> frozenset[str]:
    groups = ("filler", "near", "border", "ruled", "speaking", "mainly", "paying", "practised")
    return frozenset().union(*(group(name) for name in groups))


@functools.cache
def _longest() -> int:
    here = atlas()
    return max(len(name.split()) for names in (here.phrases, here.country_names, here.place_names) for name in names)


def things_in(words: Sequence[str]) -> list[Item]:
    """The words, with the longest phrases of the lexicon as things."""
    here = atlas()
    found: list[Item] = []
    place = 0
    while place < len(words):
        for length in range(min(_longest(), len(words) - place), 0, -1):
            text = " ".join(words[place : place + length])
            tags, codes = here.phrases.get(text, ()), here.country_names.get(text, ())
            number = here.place_names.get(text, -1)
            if tags or codes or number >= 0:
                found.append(Thing(text, tags, codes, number))
                place += length - 1
                break
        else:
            word = words[place]
            found.append(Thing(word, value=float(word[1:])) if word.startswith("#") else word)
        place += 1
    return found


def statement(items: Sequence[Item], land: bool) -> Cities | None:
    """The cities that a statement is true of, None where it is not understood.

    Args:
        items: Words and things.
        land: Whether it is about the country.
    """
    about = (functools.partial(measured, land=land), functools.partial(compared, land=land))
    for special in (*about, nearer, _sided, _superlative):
        if (found := special(items)) is not None:
            return found
    for place, item in enumerate(items):
        if isinstance(item, Thing) and item.value is not None:
            return None
        if place and item in ("with", "that", "which", "having"):  # "a capital with more than a million people"
            more = measured(items[place + 1 :], land=land)
            if more is not None:
                before = statement(items[:place], land)
                return None if before is None else before & more
    things = [item for item in items if isinstance(item, Thing)]
    words = {item for item in items if isinstance(item, str)}
    if not things or not words <= _known():
        return None
    if any("role:capital" in thing.tags for thing in things):
        if any(tag.startswith("rule:") for thing in things for tag in thing.tags):
            return None  # the capital of an empire: the tables do not know
        things = _capital_of_state(items, things)
    if any(tag.startswith("industry:") for thing in things for tag in thing.tags if thing.text != "industry"):
        things = [thing for thing in things if thing.text != "industry"]  # "Is tourism the main industry?"
    return _all_of(_without_adjectives(items, things), words, land or _of_a_large_country(items))


def _all_of(things: Sequence[Thing], words: set[str], land: bool) -> Cities | None:
    cues = words | {word for thing in things for word in thing.text.split() if thing.tags}
    found = atlas().having("all:yes")
    for thing in things:
        part = _meaning(thing, cues, land)
        if part is None:
            return None
        found = found & part
    return found


def _of_a_large_country(items: Sequence[Item]) -> bool:
    """ "A large country" is about the country, "a large city" is not."""
    pairs = itertools.pairwise(items)
    return any(
        isinstance(size, Thing) and bool(set(size.tags) & SIZES) and following in ("country", "nation")
        for size, following in pairs
    )


def _capital_of_state(items: Sequence[Item], things: Sequence[Thing]) -> list[Thing]:
    """In "the capital of Karnataka" the capital is a state's."""
    found = list(things)
    states = {f"place:{name.lower()}" for city in atlas().cities for name in city.values["places"]}
    states -= {f"place:{name}" for name in CONTINENTS.values()}
    for capital, of, whole in zip(items, items[1:], items[2:], strict=False):
        if not isinstance(capital, Thing) or "role:capital" not in capital.tags or isinstance(whole, str) or of != "of":
            continue
        if not whole.codes and states & set(whole.tags):
            found[found.index(capital)] = capital._replace(tags=("role:provincial", "role:capital"))
    return found


def _without_adjectives(items: Sequence[Item], things: Sequence[Thing]) -> list[Thing]:
    """Size and age say something of the city in "a big city", not in "a big lake" or "an old castle"."""
    if any(item in ("city", "town", "place", "metropolis") for item in items):
        return list(things)
    after = dict(itertools.pairwise(items))
    kept = []
    for thing in things:
        following = after.get(thing)
        of_it = (
            set(thing.tags) & SIZES
            and isinstance(following, Thing)
            and not following.codes
            and not any(tag.startswith(("role:", "place:")) for tag in following.tags)
        )
        if not of_it:
            kept.append(thing)
    return kept


def _meaning(thing: Thing, cues: set[str], land: bool) -> Cities | None:
    """The cities that a thing is true of, by what stands beside it."""
    here = atlas()
    spoken = [tag for tag in thing.tags if tag.startswith("language:")]
    if spoken and (cues & group("speaking") or not thing.codes):
        main = land or cues & (group("mainly") | group("land"))  # New York is in no Spanish-speaking country
        return here.meant(tag.replace("language:", "main:") if main else tag for tag in spoken)
    if thing.codes:
        return _meaning_of_country(thing, cues, land)
    ours = thing.place < len(here.cities) and "river" not in cues
    if thing.place >= 0 and (ours or not thing.tags):
        if cues & group("near"):
            return near(here.world[thing.place])
        return None if cues & (group("ruled") | group("border")) else only(thing.place)
    tags = [tag for tag in thing.tags if tag not in ALSO_WORDS or cues & group("paying")]
    if cues & group("founded"):
        tags = [tag.replace("rule:", "founder:") for tag in tags]
    tags = _narrowed(tags, cues)
    if land:
        tags = [OF_THE_LAND.get(tag, tag) for tag in tags]
        if any(tag.lstrip("!").partition(":")[0] not in LAND_KINDS for tag in tags):
            return None
    if "water:sea" in tags and cues & group("near"):
        tags.append("water:near")
    if "weather:hot" in tags and cues & {"summer", "summers"}:
        tags.append("weather:hot summers")
    if thing.text in group("everywhere") and not cues & group("fame"):
        return here.having("all:yes")
    return here.meant(tags) if tags else None


def _narrowed(tags: Sequence[str], cues: set[str]) -> list[str]:
    """What tags mean of "the main sport", and of a religion that is only practised."""
    if not cues & group("mainly"):
        practised = cues & group("practised")
        return [tag.replace("religion:", "practised:") if practised else tag for tag in tags]
    main = [f"{MAIN[kind]}:{value}" for kind, _, value in (tag.partition(":") for tag in tags) if kind in MAIN]
    return main or list(tags)


def _meaning_of_country(thing: Thing, cues: set[str], land: bool) -> Cities | None:
    """In a country, beside it, or once ruled by it."""
    here = atlas()
    if cues & group("ruled"):
        kind = "founder" if cues & group("founded") else "rule"
        names = {name for name, codes in here.country_names.items() if set(codes) & set(thing.codes)}
        tags = [tag for tag in here.tags if tag.startswith(f"{kind}:") and tag.partition(":")[2] in names]
        return here.meant(tags) if tags else None
    if cues & group("near") or (cues & group("border") and "on" in cues):  # "on the border with Mexico"
        close: Cities = np.any([near_land(code) for code in thing.codes], axis=0)
        if not land and not cues & group("land"):
            return close
        lands = {city.land.code for city, found in zip(here.cities, close, strict=True) if found}
        return here.meant([f"in:{code}" for code in lands] + [f"borders:{code}" for code in thing.codes])
    kind = "borders" if cues & group("border") else "in"
    return here.meant(f"{kind}:{code}" for code in thing.codes)


def _sided(items: Sequence[Item]) -> Cities | None:
    """In the north of its country or of one that is named; "north of the equator" is in the lexicon."""
    here = atlas()
    texts = [item if isinstance(item, str) else item.text for item in items]
    sides = [word for word in texts if word in SIDE_WORDS]
    things = [item for item in items if isinstance(item, Thing) and item.text not in SIDE_WORDS]
    words = {item for item in items if isinstance(item, str)} - set(sides)
    if len(sides) != 1 or not words <= _known() or words & {"continent", "world", "hemisphere"}:
        return None
    place = texts.index(sides[0])
    followed = texts[place + 1 : place + 2] == ["of"]
    part = here.having(f"part:{SIDE_WORDS[sides[0]]}")
    if any(tag.removeprefix("place:") in CONTINENTS.values() for thing in things for tag in thing.tags):
        region = here.phrases.get(key(f"{sides[0]} {things[0].text}")) if len(things) == 1 else None
        return None if region is None else here.meant(region)
    lands = [thing for thing in things if thing.codes]
    waters = [thing for thing in things if thing not in lands]  # "on the east coast"
    if not things:
        return part if not followed or words & group("land") else None
    other = words & (group("ruled") | group("border") | group("near")) or (followed and "in" not in texts[:place])
    if any(not tag.startswith("water:") for thing in waters for tag in thing.tags or ("",)) or len(lands) > 1:
        return None
    if lands and (other and not waters):
        return None
    inside = _all_of(waters, words, land=False)
    if inside is None:
        return None
    return part & inside & (here.meant(f"in:{code}" for code in lands[0].codes) if lands else part)


def _superlative(items: Sequence[Item]) -> Cities | None:
    """The largest city of the world or of a continent, the third largest, one of the largest, one of the ten largest.

    The largest and the second largest of a country are in the lexicon.
    """
    things = [item for item in items if isinstance(item, Thing)]
    words = {item for item in items if isinstance(item, str)}
    second = any("role:second" in thing.tags for thing in things)
    largest = second or any("role:largest" in thing.tags for thing in things)
    if not largest or not words <= _known() | group("world") | set(ORDINALS):
        return None
    ranked = {"role:largest", "role:second"}
    others = [thing for thing in things if thing.value is None and not ranked & set(thing.tags)]
    counts = [int(min(thing.value, 10_000)) for thing in things if thing.value is not None and thing.value > 1]
    ranks = [2] * second + [ORDINALS[word] for word in words if word in ORDINALS]
    if len(counts) + len(ranks) > 1:
        return None
    if counts:
        return largest_in(others, words, range(1, counts[0] + 1))
    if ranks:
        return largest_in(others, words, range(ranks[0], ranks[0] + 1))
    if "among" not in words and not any(thing.value == 1.0 for thing in things):
        return largest_in(others, words, range(1, 2))
    if any(thing.place >= 0 and not thing.codes for thing in others):
        return None
    of_a_country = any(thing.codes for thing in others) or words & group("land")
    best = atlas().meant(("role:largest", "role:second") if of_a_country else ("size:mega",))
    inside = _all_of(others, words, land=False)
    return None if inside is None else best & inside
