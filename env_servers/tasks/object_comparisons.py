"""Questions in numbers: bigger than a car, more than 10 dollars, four wheels, starts with a B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from env_servers.tasks.object_facts import Facts, Vector
from env_servers.tasks.object_language import ADVERBS, DETERMINERS, Lexicon, Words, key, noun, word_set

# What a comparative compares, and whether more of it is meant.
_MORE = {
    "size": "bigger larger longer wider greater", "height": "taller higher", "weight": "heavier",
    "price": "pricier costlier", "speed": "faster quicker",
}  # fmt: skip
_LESS = {
    "size": "smaller shorter tinier littler narrower", "height": "lower", "weight": "lighter", "price": "cheaper",
    "speed": "slower",
}  # fmt: skip
_PAIRED = {
    "price": "expensive costly valuable pricey", "weight": "heavy", "size": "big large long", "height": "tall",
    "speed": "fast",
}  # fmt: skip
COMPARATIVES: Mapping[Words, tuple[str, bool]] = {
    **{(word,): (column, True) for column, words in _MORE.items() for word in words.split()},
    **{(word,): (column, False) for column, words in _LESS.items() for word in words.split()},
    **{("more", word): (column, True) for column, words in _PAIRED.items() for word in words.split()},
    **{("less", word): (column, False) for column, words in _PAIRED.items() for word in words.split()},
    ("more", "affordable"): ("price", False),
}
ADJECTIVES: Mapping[str, str] = {
    "big": "size", "large": "size", "small": "size", "long": "size", "short": "size", "wide": "size", "tall": "height",
    "high": "height", "heavy": "weight", "light": "weight", "expensive": "price", "cheap": "price", "fast": "speed",
}  # fmt: skip
DOWNWARD = frozenset(("small", "short", "light", "cheap"))
DIMENSIONS: Mapping[str, str] = {
    "size": "size", "length": "size", "width": "size", "diameter": "size", "height": "height", "weight": "weight",
    "mass": "weight", "price": "price", "cost": "price", "value": "price", "speed": "speed", "volume": "size",
}  # fmt: skip
# Length in cm, weight in kg, price in USD, speed in km/h.
UNITS: Mapping[str, tuple[str, float]] = {
    unit: (column, scale)
    for column, scale, units in (
        ("size", 0.1, "mm millimeter"), ("size", 1, "cm centimeter"), ("size", 100, "m meter"),
        ("size", 1e5, "km kilometer"), ("size", 2.54, "inch"), ("size", 30.48, "foot ft"), ("size", 91.44, "yard"),
        ("size", 160934, "mile"), ("weight", 0.001, "g gram"), ("weight", 1, "kg kilo kilogram"),
        ("weight", 0.4536, "pound lb lbs"), ("weight", 0.02835, "ounce oz"), ("weight", 1000, "ton tonne"),
        ("price", 1, "dollar usd buck"), ("price", 0.01, "cent"), ("price", 1.1, "euro"),
        ("speed", 1.609, "mph"), ("speed", 1, "kmh"),
    )
    for unit in units.split()
}  # fmt: skip
_TEENS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
CARDINALS: Mapping[str, float] = {
    **{word: float(number) for number, word in enumerate(_TEENS.split(), start=1)},
    **{"zero": 0, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "eighty": 80, "ninety": 90},
    **{"hundred": 100, "thousand": 1000, "million": 1e6, "half": 0.5, "dozen": 12, "couple": 2, "a": 1, "an": 1},
    "single": 1,
}
SCALES = frozenset(("hundred", "thousand", "million"))
MORE = (("more", "than"), ("greater", "than"), ("over",), ("above",), ("upwards", "of"), ("higher", "than"))
LESS = (("less", "than"), ("fewer", "than"), ("under",), ("below",), ("lower", "than"))
AT_LEAST, AT_MOST = (("at", "least"),), (("at", "most"), ("up", "to"), ("no", "more", "than"), ("not", "more", "than"))
EXACTLY = (("exactly",),)
INTENSIFIERS = word_set(
    "much far lot significantly slightly considerably bit little any even way substantially noticeably")  # fmt: skip
COUNTED: Mapping[str, str] = {
    **dict.fromkeys(("wheel", "tire"), "count_wheels"),
    **dict.fromkeys(("leg", "limb"), "count_legs"),
    "string": "count_strings",
}
# Parts of which all that have them have two.
TWICE = frozenset(("eye", "ear", "arm"))
ABOUT = 0.4  # of the same size is what differs by up to this share
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
VOWELS = frozenset("aeiou")
# Which letter of a name is meant.
ENDS: Mapping[str, int] = {"start": 0, "starts": 0, "begin": 0, "begins": 0, "end": -1, "ends": -1}


class Comparer:
    """Reads phrases that compare.

    Args:
        table: The objects.
        lexicon: Has the things to compare with.
    """

    def __init__(self, table: Facts, lexicon: Lexicon) -> None:
        self._table = table
        self._lexicon = lexicon
        self._nothing = np.zeros(len(table.names), bool)

    def read(self, words: Words) -> Vector | None:
        """What a phrase after "is it" fits, such as `bigger than a car`, `the size of a fist`, `under $10`."""
        while words and (words[0] in INTENSIFIERS or words[0] in ADVERBS or words[:2] == ("a", "lot")):
            words = words[2:] if words[:2] == ("a", "lot") else words[1:]
        if not words:
            return None
        if words[0] in ("worth", "priced", "valued"):
            return self.amount(words[2:] if words[1:2] == ("at",) else words[1:], "price")
        for readers in (self._comparative, self._equal, self.sized):
            if (vector := readers(words)) is not None:
                return vector
        return self.amount(words, None)

    def _comparative(self, words: Words) -> Vector | None:
        head = words[:2] if words[:2] in COMPARATIVES else words[:1]
        if head not in COMPARATIVES:
            return None
        column, more = COMPARATIVES[head]
        rest = words[len(head) :]
        if len(rest) > 2 and rest[0] == "in" and rest[1] in DIMENSIONS:
            column, rest = DIMENSIONS[rest[1]], rest[2:]
        if rest[:1] != ("than",) or len(rest) < 2:
            return None
        return self._against(rest[1:], column, more)

    def _against(self, words: Words, column: str, more: bool) -> Vector | None:
        """More or less than an amount or a thing."""
        value = self._quantity(words, column)
        if value is None:
            value = self._thing(words, column)
        if value is None:
            return None
        numbers = self._table.numbers[column]
        return numbers > value if more else numbers < value

    def _equal(self, words: Words) -> Vector | None:
        """As big as a thing, the size of a thing."""
        at_least = words[:2] == ("at", "least")
        words = words[2:] if at_least else words
        if words[:1] == ("as",) and len(words) > 3 and words[2] == "as" and words[1] in ADJECTIVES:
            column, things = ADJECTIVES[words[1]], words[3:]
            value = self._thing(things, column)
            if value is None:
                return None
            numbers = self._table.numbers[column]
            return numbers <= value * 1.2 if words[1] in DOWNWARD else numbers >= value * 0.8
        words = tuple(word for word in words if word not in ("the", "a", "around"))
        for start in (
            ("same", "size", "as"),
            ("similar", "in", "size", "to"),
            ("similar", "size", "as"),
            ("size", "of"),
        ):
            if words[: len(start)] == start:
                return self._alike(words[len(start) :])
        return None

    def sized(self, words: Words) -> Vector | None:
        """Hand sized, pocket size."""
        return self._alike(words[:-1]) if len(words) > 1 and words[-1] in ("sized", "size") else None

    def inside(self, words: Words) -> Vector | None:
        """What fits in a thing."""
        value = self._thing(words, "size")
        return None if value is None else self._table.numbers["size"] < value

    def _alike(self, words: Words) -> Vector | None:
        value = self._thing(words, "size")
        if value is None:
            return None
        numbers = self._table.numbers["size"]
        return (numbers >= value * (1 - ABOUT)) & (numbers <= value / (1 - ABOUT))

    def amount(self, words: Words, column: str | None) -> Vector | None:
        """More than, less than, between, about an amount; with a column, also than a thing, or a lot.

        Args:
            words: Such as `more than 10 pounds` or `over a meter tall`.
            column: What is measured; None takes it from the unit.
        """
        words = tuple(word for word in words if word not in ADVERBS)
        for starts, low, high in (
            (MORE, 1.0, None),
            (LESS, None, 1.0),
            (AT_LEAST, 0.999, None),
            (AT_MOST, None, 1.001),
        ):
            for start in starts:
                if words[: len(start)] == start:
                    return self._within(words[len(start) :], column, low, high)
        if words[:1] == ("between",) and "and" in words:
            middle = words.index("and")
            return self._between(words[1:middle], words[middle + 1 :], column)
        if column is not None and key(words) in ("lot", "much", "lot of money", "fortune", "ton", "lot of pound"):
            limit = {"price": 300.0, "weight": 15.0}.get(column)
            return None if limit is None else self._table.numbers[column] >= limit
        return self._within(words, column, 1 - ABOUT, 1 / (1 - ABOUT)) if len(words) > 1 else None

    def _within(self, words: Words, column: str | None, low: float | None, high: float | None) -> Vector | None:
        measure = self._measure(words)
        if measure is not None:
            found, value = measure
            if column is not None and not (column == found or {column, found} <= {"size", "height"}):
                return None
            column = found
        elif column is not None and (thing := self._thing(words, column)) is not None:
            value = thing
        else:
            return None
        numbers, vector = self._table.numbers[column], ~self._nothing
        if low is not None:
            vector = vector & (numbers > value * low)
        if high is not None:
            vector = vector & (numbers < value * high)
        return vector

    def _between(self, left: Words, right: Words, column: str | None) -> Vector | None:
        high = self._measure(right)
        if high is None:
            return None
        low = self._measure(left) or self._measure((*left, *right[-1:]))
        if low is None or low[0] != high[0] or (column is not None and column != high[0]):
            return None
        numbers = self._table.numbers[high[0]]
        return (numbers >= low[1]) & (numbers <= high[1])

    def _quantity(self, words: Words, column: str) -> float | None:
        measure = self._measure(words)
        if measure is None or not (measure[0] == column or {measure[0], column} <= {"size", "height"}):
            return None
        return measure[1]

    def _measure(self, words: Words) -> tuple[str, float] | None:
        """An amount with its unit: `10 pounds`, `a foot long`, `two hundred dollars`."""
        number, rest = cardinal(words)
        if number is None or not rest:
            return None
        unit = noun(rest[0])
        if unit not in UNITS and rest[0] not in UNITS:
            return None
        column, scale = UNITS.get(rest[0]) or UNITS[unit]
        rest = tuple(word for word in rest[1:] if word not in DETERMINERS)
        if rest[:1] == ("in",) and len(rest) == 2 and rest[1] in DIMENSIONS:
            rest = rest[1:]
        if len(rest) == 1:
            said = ADJECTIVES.get(rest[0]) or DIMENSIONS.get(rest[0])
            if said is None or not (said == column or {said, column} <= {"size", "height"}):
                return None
            return said, number * scale
        return None if rest else (column, number * scale)

    def _thing(self, words: Words, column: str) -> float | None:
        """The number of a thing to compare with: an object, or one of the lexicon's."""
        if words and words[-1] in ("is", "does", "are"):
            words = words[:-1]
        name = key(tuple(word for word in words if (word,) not in self._lexicon.fillers))
        if not name:
            return None
        if name in self._lexicon.references and column != "speed":
            length, weight, price, height = self._lexicon.references[name]
            value = {"size": length, "weight": weight, "price": price, "height": height}[column]
            return value if value > 0 else None
        vector = self._lexicon.names.get(name)
        if vector is None:
            vector = self._lexicon.phrases["noun"].get(name)
        if vector is None or vector.sum() != 1:
            if column == "speed":
                return {"person": 25.0, "human": 25.0, "bike": 25.0, "bicycle": 25.0}.get(name)
            return None
        value = float(self._table.numbers[column][vector][0])
        return None if np.isnan(value) else value

    def count(self, words: Words) -> Vector | None:
        """So and so many of a part: `four wheels`, `more than two legs`, `six or more strings`."""
        flag, rest = _flagged(words)
        if words[1:3] == ("or", "more"):
            flag, rest = "least", (words[0], *words[3:])
        return self._count(rest, flag)

    def _count(self, words: Words, flag: str) -> Vector | None:
        number, rest = cardinal(words)
        if number is None or not rest or (words[0] in ("a", "an") and not flag):
            return None
        part = key(rest)
        if part in TWICE:
            held = self._lexicon.phrases["have"][part]
            return held if _compare(np.array([2.0]), number, flag)[0] else self._nothing
        column = COUNTED.get(part)
        if part in ("foot", "paw", "hoof"):
            held = self._lexicon.phrases["have"][part]
            return held & _compare(self._table.numbers["count_legs"], number, flag)
        if column is None:
            return None
        return _compare(np.nan_to_num(self._table.numbers[column]), number, flag)

    def spelled(self, words: Words) -> Vector | None:
        """What the object's name is like, as said after "does it": `start with the letter b`, `have five letters`."""
        first, names = words[0], [name.lower() for name in self._table.names]
        if first in ENDS and words[1:2] in (("with",), ("in",)):
            letters = tuple(word for word in words[2:] if word not in ("the", "an", "letter"))
            letters = letters[1:] if len(letters) == 2 and letters[0] == "a" else letters
            sought = VOWELS if letters == ("vowel",) else LETTERS & set(letters)
            known = len(letters) == 1 and bool(sought) and words[-1] != "letter"
            return np.array([name[ENDS[first]] in sought for name in names]) if known else None
        if first not in ("have", "has", "contain", "contains", "include"):
            return None
        if "letter" in words[:-1]:
            letter, *after = words[words.index("letter") + 1 :]
            if letter in LETTERS and key(after) in ("", "in", "in name", "in it"):
                return np.array([letter in name for name in names])
        if noun(words[-1]) == "letter":
            flag, rest = _flagged(words[1:])
            number, rest = cardinal(rest)
            if number is not None and len(rest) == 1:
                return _compare(np.array([float(sum(map(str.isalpha, name))) for name in names]), number, flag)
        return None


def cardinal(words: Sequence[str]) -> tuple[float | None, Words]:
    """The number at the beginning, and the words after it; `a` and `an` are 1."""
    if not words:
        return None, ()
    first = words[0]
    if first.replace(".", "", 1).isdigit() and first.isascii():
        value: float | None = float(first)
    else:
        value = CARDINALS.get(first)
    if value is None:
        return None, tuple(words)
    rest = tuple(words[1:])
    while rest and (rest[0] in SCALES or (rest[0] in ("dozen", "half", "couple") and first in ("a", "an"))):
        value, rest = value * CARDINALS[rest[0]], rest[1:]
    if rest[:1] == ("of",) or (rest[:1] in (("a",), ("an",)) and first == "half"):
        rest = rest[1:]
    return value, rest


def _flagged(words: Words) -> tuple[str, Words]:
    """How a number is compared, and the words after that: `more` for `more than`, empty for the number itself."""
    for starts, flag in ((MORE, "more"), (LESS, "less"), (AT_LEAST, "least"), (AT_MOST, "most"), (EXACTLY, "")):
        for start in starts:
            if words[: len(start)] == start:
                return flag, words[len(start) :]
    return "", words


def _compare(numbers: np.ndarray[tuple[int], np.dtype[np.float64]], value: float, flag: str) -> Vector:
    if flag == "more":
        return numbers > value
    if flag == "less":
        return numbers < value
    if flag == "least":
        return numbers >= value
    return numbers <= value if flag == "most" else numbers == value
