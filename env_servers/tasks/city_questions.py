"""Understanding yes/no questions about a city: from the words of a question to the set of cities that it is true of.

The grammar is put together from parts. What stands around the predicate is taken off (`city_frames`); phrases of the
lexicon become things; then `or`, `and`, `but` and the negations are taken apart, and what is left are statements
(`city_statements`). Where a word is not known, the question is not understood: a guess at what was meant would not be
consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from env_servers.tasks.city_facts import Cities, group
from env_servers.tasks.city_frames import Truth, framed, simplified, without_tag
from env_servers.tasks.city_numbers import Item, Thing, lettered, measured, words_of
from env_servers.tasks.city_statements import SIDE_WORDS, statement, things_in
from env_servers.tasks.city_words import with_numbers

JOINTS = {"and", "but", "yet", "while"}


def understand(text: str) -> Truth | None:
    """The cities that a yes/no question is true of, None where it is not understood.

    Args:
        text: The question in plain words, articles included.
    """
    text = simplified(text)
    frame = framed(text)
    spelt = with_numbers(text.split())
    if (letters := lettered(without_tag(" ".join(spelt)))) is not None:
        denied = spelt.count("not") % 2 == 1
        return frame.answered(letters ^ denied, denied=denied)
    denied, words = frame.denied, frame.words
    if denied and {"but", "nor", "not"} & set(words):
        denied, words = False, ["not", *words]  # "not in Asia but in Europe"
    elif not denied and (place := _denial(words, anywhere=bool(frame.aux) and not frame.subject)) is not None:
        denied, words = True, [*words[:place], *words[place + 1 :]]
    cities = _either(things_in(words), frame.subject == "itsland")
    if cities is None:
        return None
    cities = cities ^ denied
    if not {"or", "nor"} & set(words):
        return frame.answered(cities, denied=denied)
    if denied or "neither" in words:
        return Truth(cities, "Yes, none of these.", "No, at least one of these.")
    return Truth(cities, "Yes, at least one of these.", "No, none of these.")


def _denial(words: Sequence[str], *, anywhere: bool) -> int | None:
    """Where the only `not`, `no` or `never` of a single statement stands.

    Args:
        words: The predicate.
        anywhere: Also after the first thing, as in "Is Spanish not spoken there?"; "a capital not in Europe" is two
            statements.
    """
    places = [place for place, word in enumerate(words) if word in ("not", "no", "never")]
    if len(places) != 1 or set(words) & (JOINTS | {"or", "nor"}):
        return None
    before = things_in(words[: places[0]])
    return None if not anywhere and any(isinstance(item, Thing) for item in before) else places[0]


def _split(items: Sequence[Item], at: set[str]) -> list[list[Item]]:
    parts: list[list[Item]] = [[]]
    for item in items:
        if isinstance(item, str) and item in at:
            parts.append([])
        else:
            parts[-1].append(item)
    return [part for part in parts if part]


def _either(items: Sequence[Item], land: bool) -> Cities | None:
    """One of several, taken apart at `or`."""
    words = {item for item in items if isinstance(item, str)}
    if not words & {"or", "nor"}:
        return _both([item for item in items if item != ","], land)
    parts = _split([item for item in items if item not in ("either", "neither")], {"or", "nor", ","})
    if not parts:
        return None
    turned = bool(words & {"neither", "nor"})
    if not turned and _negated(parts[0]) and not any(_negated(part) for part in parts[1:]):
        turned, parts[0] = True, _without_negation(parts[0])
    elif turned:
        parts = [_without_negation(part) for part in parts]
    found = _joined(parts, land, _both, np.logical_or)
    return found if found is None or not turned else ~found


def _both(items: Sequence[Item], land: bool) -> Cities | None:
    """All of several, taken apart at `and` and `but`."""
    if (found := measured(items, land=land)) is not None:  # "between one and two million"
        return found
    parts = _split([item for item in items if item != "both"], JOINTS)
    if len(parts) > 1:
        return _joined(parts, land, _perhaps_negated, np.logical_and)
    return _perhaps_negated(parts[0] if parts else [], land)


def _joined(
    parts: Sequence[Sequence[Item]],
    land: bool,
    parse: Callable[[Sequence[Item], bool], Cities | None],
    join: Callable[[Cities, Cities], Cities],
) -> Cities | None:
    """The parts' cities put together; a part may leave out what it has in common with the first or the last one."""
    whole: Cities | None = None
    for number, part in enumerate(parts):
        ways: list[Sequence[Item]] = [part]
        if number < len(parts) - 1 and (end := _shared_end(part, parts[-1])):
            ways.insert(0, [*part, *end])
        if number:
            ways += [[*parts[0][:length], *part] for length in range(1, len(parts[0]))]
            if start := _shared_start(part, parts[0]):
                ways.insert(0, [*start, *part])
        found = next((found for way in ways if (found := parse(way, land)) is not None), None)
        if found is None:
            return None
        whole = found if whole is None else join(whole, found)
    return whole


def _shared_end(part: Sequence[Item], last: Sequence[Item]) -> list[Item]:
    """What a part leaves to the last one.

    `of X` of "north or south of X", `than X` of "bigger or older than X", `colony` of "a British or French colony".
    """
    words = {item if isinstance(item, str) else item.text for item in part}
    if "than" in last and "than" not in part and words & group("comparative"):
        return list(last[last.index("than") :])
    if any(_sorts(item) & {"land", "language"} for item in part):
        things = [place for place, item in enumerate(last) if _sorts(item)]
        end = list(last[things[0] + 1 :]) if things else []
        heads = group("speaking") if words & {"in", "of", "from"} else group("ruled") | group("speaking")
        if heads & set(words_of(end)) and set(words_of(end)) <= heads | group("filler"):
            return end
    sides = words & set(SIDE_WORDS) and words <= set(SIDE_WORDS) | {"in", "it", "is", "far"}
    if "of" in last and "of" not in part and sides:
        return list(last[last.index("of") :])
    return []


def _shared_start(part: Sequence[Item], first: Sequence[Item]) -> list[Item]:
    """What a name leaves to the first part: `speak` of "speak X or Y", `ruled` of "ruled by X or by Y"."""
    name = part[-1] if part else ""
    if not _sorts(name) or len(part) > 2 or not all(isinstance(item, str) and item in first for item in part[:-1]):
        return []
    if len(part) == 2:
        return list(first[: first.index(part[0])])
    place = next((place for place in reversed(range(len(first))) if _sorts(first[place]) & _sorts(name)), 0)
    return list(first[:place])


def _sorts(item: Item) -> set[str]:
    """What kinds of names a thing is: of a country, a language, a city."""
    if isinstance(item, str):
        return set()
    language = any(tag.startswith("language:") for tag in item.tags)
    return {sort for sort, here in (("land", item.codes), ("language", language), ("city", item.place >= 0)) if here}


def _negated(items: Sequence[Item]) -> bool:
    return any(isinstance(item, str) and item in group("negation") for item in items)


def _without_negation(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if not (isinstance(item, str) and item in group("negation"))]


def _perhaps_negated(items: Sequence[Item], land: bool) -> Cities | None:
    """One statement with the negations in it."""
    first_thing = next((place for place, item in enumerate(items) if isinstance(item, Thing)), len(items))
    for place in range(first_thing + 1, len(items)):
        if _negated(items[place : place + 1]) and any(isinstance(item, Thing) for item in items[place:]):
            # "a capital not in Europe"
            before, after = _perhaps_negated(items[:place], land), _perhaps_negated(items[place:], land)
            return None if before is None or after is None else before & after
    kept = _without_negation(items)
    turned = (len(items) - len(kept)) % 2 == 1
    if "far" in kept and "than" not in kept:
        turned = not turned
    found = statement(kept, land)
    return found if found is None or not turned else ~found
