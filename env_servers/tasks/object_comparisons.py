"""Questions in numbers: bigger than a car, more than 10 dollars, four wheels, starts with a B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from env_servers.tasks.object_facts import Facts, Vector
from env_servers.tasks.object_language import ADVERBS, DETERMINERS, Lexicon, Words, key, noun, word_set

# What a comparative compares, and whether more of it is meant.
_MORE = {
    "bulk": "bigger larger greater", "size": "longer wider", "height": "taller higher", "weight": "heavier",
    "price": "pricier costlier", "speed": "faster quicker",
}  # fmt: skip
_LESS = {
    "bulk": "smaller tinier littler", "size": "shorter narrower", "height": "lower", "weight": "lighter",
    "price": "cheaper", "speed": "slower",
}  # fmt: skip
_PAIRED = {
    "price": "expensive costly valuable pricey", "weight": "heavy", "bulk": "big large", "size": "long",
    "height": "tall", "speed": "fast",
}  # fmt: skip
COMPARATIVES: Mapping[Words, tuple[str, bool]] = {
    **{(word,): (column, True) for column, words in _MORE.items() for word in words.split()},
    **{(word,): (column, False) for column, words in _LESS.items() for word in words.split()},
    **{("more", word): (column, True) for column, words in _PAIRED.items() for word in words.split()},
    **{("less", word): (column, False) for column, words in _PAIRED.items() for word in words.split()},
    ("more", "affordable"): ("price", False),
    **{
        (verb, word): (column, word == "more")
        for verb, column in (("weigh", "weight"), ("cost", "price"))
        for word in ("more", "less")
    },
}
ADJECTIVES: Mapping[str, str] = {
    "big": "bulk", "large": "bulk", "small": "bulk", "long": "size", "short": "size", "wide": "size", "tall": "height",
    "high": "height", "heavy": "weight", "light": "weight", "expensive": "price", "cheap": "price", "fast": "speed",
}  # fmt: skip
DOWNWARD = frozenset(("small", "short", "light", "cheap"))
DIMENSIONS: Mapping[str, str] = {
    "size": "bulk", "length": "size", "width": "size", "diameter": "size", "height": "height", "weight": "weight",
    "mass": "weight", "price": "price", "cost": "price", "value": "price", "speed": "speed", "volume": "bulk",
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
MORE = (
    *((word, "than") for word in ("more", "greater", "higher", "bigger", "larger")),
    *(("over",), ("above",), ("upwards", "of"), ("in", "excess", "of")),
)
LESS = (*((word, "than") for word in ("less", "fewer", "lower", "smaller")), ("under",), ("below",))
AT_LEAST = (("at", "least"), ("no", "less", "than"), ("not", "less", "than"))
AT_MOST = (("at", "most"), ("up", "to"), ("no", "more", "than"), ("not", "more", "than"))
OR_MORE = word_set("more longer bigger larger heavier taller higher over above")
OR_LESS = word_set("less fewer shorter smaller lighter lower under below")
OR_SO = {("or", "more"): "least", ("or", "fewer"): "most", ("or", "less"): "most"}
EXACTLY = (("exactly",),)
SAME = (("same", "size", "as"), ("similar", "in", "size", "to"), ("similar", "size", "as"), ("size", "of"))
INTENSIFIERS = word_set(
    "much far lot significantly slightly considerably bit little any even way substantially noticeably")  # fmt: skip
COUNTED: Mapping[str, str] = {
    **dict.fromkeys(("wheel", "tire"), "count_wheels"),
    **dict.fromkeys(("leg", "limb"), "count_legs"),
    "string": "count_strings",
}
# What a reference is called besides: "an adult man", "a human hand".
GROWN = word_set("adult grown human person man woman male female people")
SPEEDS: Mapping[str, float] = {"person": 25.0, "human": 25.0, "bike": 25.0, "bicycle": 25.0}
ALONG = frozenset(("size", "height", "bulk"))  # all are lengths
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
        elif len(rest) > 3 and rest[-2] == "in" and rest[-1] in DIMENSIONS:
            column, rest = DIMENSIONS[rest[-1]], rest[:-2]
        if rest[:1] != ("than",) or len(rest) < 2:
            return None
        return self._against(rest[1:], column, more)

    def _against(self, words: Words, column: str, more: bool) -> Vector | None:
        """More or less than an amount or a thing."""
        value, itself = self._quantity(words, column), False
        if value is None:
            value, itself = self._thing(words, column)
        elif column == "bulk":
            column = "size"  # "bigger than 30 cm"
        return None if value is None else self._beyond(column, value, more, itself)

    def _beyond(self, column: str, value: float, more: bool, itself: bool) -> Vector:
        """More or less than a value, which may be that of one of the objects itself.

        An object is neither more nor less than itself. Of an amount there is no third answer: the table has one number
        for what differs from piece to piece, so that what is not less is more.
        """
        numbers = self._table.numbers[column]
        if more:
            return numbers > value if itself else numbers >= value
        return numbers < value

    def inverse(self, words: Words) -> Vector | None:
        """What "a car is bigger than it" fits, without the end: `a car bigger`."""
        for size in range(1, len(words)):
            if words[size:] in COMPARATIVES:
                column, more = COMPARATIVES[words[size:]]
                return self._against(words[:size], column, not more)
        return None

    def _equal(self, words: Words) -> Vector | None:
        """As big as a thing, the size of a thing."""
        bound = next((flag for flag in ("least", "most") if words[:2] == ("at", flag)), "")
        words = words[2:] if bound else words
        if words[:1] == ("as",) and len(words) > 3 and words[2] == "as" and words[1] in ADJECTIVES:
            column = ADJECTIVES[words[1]]
            value, itself = self._thing(words[3:], column)
            if value is None:
                return None
            numbers, down = self._table.numbers[column], words[1] in DOWNWARD
            if bound == "most":
                return ~self._beyond(column, value, not down, itself)
            if bound == "least":
                return numbers <= value if down else numbers >= value
            return numbers <= value * 1.2 if down else numbers >= value * 0.8
        words = tuple(word for word in words if word not in ("the", "a", "around"))
        start = next((start for start in SAME if words[: len(start)] == start), ())
        if start and bound:
            return self._within(words[len(start) :], "bulk", bound)
        return self._alike(words[len(start) :]) if start else None

    def sized(self, words: Words) -> Vector | None:
        """Hand sized, pocket size."""
        return self._alike(words[:-1]) if len(words) > 1 and words[-1] in ("sized", "size") else None

    def inside(self, words: Words) -> Vector | None:
        """What fits somewhere: `in a pocket`, `into a normal car`, `through a door`."""
        place = "in" if words[0] in ("inside", "into", "within") else words[0]
        things = tuple(word for word in words[1:] if (word,) not in self._lexicon.fillers)
        vector = self._lexicon.verbs["it"].get(f"fit {place} {key(things)}")
        if vector is None and place == "in" and (value := self._thing(things, "size")[0]) is not None:
            vector = self._table.numbers["size"] < value
        return vector

    def _alike(self, words: Words) -> Vector | None:
        value, _ = self._thing(words, "bulk")
        if value is None:
            return None
        numbers = self._table.numbers["bulk"]
        return (numbers >= value * (1 - ABOUT)) & (numbers <= value / (1 - ABOUT))

    def amount(self, words: Words, column: str | None) -> Vector | None:
        """More than, less than, between, about an amount; with a column, also than a thing, or a lot.

        Args:
            words: Such as `more than 10 pounds` or `over a meter tall`.
            column: What is measured; None takes it from the unit.
        """
        words = tuple(word for word in words if word not in ADVERBS - {"most"})
        if words[-2:-1] == ("or",) and words[-1] in OR_MORE | OR_LESS and len(words) > 3:
            return self._within(words[:-2], column, "least" if words[-1] in OR_MORE else "most")
        for starts, flag in ((MORE, "more"), (LESS, "less"), (AT_LEAST, "least"), (AT_MOST, "most")):
            for start in starts:
                if words[: len(start)] == start:
                    return self._within(words[len(start) :], column, flag)
        for start, link in ((("between",), "and"), (("from",), "to"), ((), "to")):
            if words[: len(start)] == start and link in words[1:-1]:
                middle = words.index(link)
                return self._between(words[len(start) : middle], words[middle + 1 :], column)
        if column is not None and key(words) in ("lot", "much", "lot of money", "fortune", "ton", "lot of pound"):
            limit = {"price": 300.0, "weight": 15.0}.get(column)
            return None if limit is None else self._table.numbers[column] >= limit
        return self._within(words, column, "") if len(words) > 1 else None

    def _within(self, words: Words, column: str | None, flag: str) -> Vector | None:
        """Compared with an amount or a thing as the flag says; with no flag, about as much."""
        value, itself = None, False
        measure = self._measure(words)
        if measure is not None:
            found, value = measure
            if column is not None and not (column == found or {column, found} <= ALONG):
                return None
            column = column if found == "size" and column == "height" else found
        elif column is not None:
            value, itself = self._thing(words, column)
        if value is None or column is None:
            return None
        numbers = self._table.numbers[column]
        if flag == "most":
            return numbers <= value if itself else numbers < value
        if flag == "least":
            return numbers >= value
        if flag:
            return self._beyond(column, value, flag == "more", itself)
        return (numbers > value * (1 - ABOUT)) & (numbers < value / (1 - ABOUT))

    def _between(self, left: Words, right: Words, column: str | None) -> Vector | None:
        """Between two amounts, the first of which may leave its unit to the other, or between two things."""
        if len(right) > 2 and right[-2] == "in" and right[-1] in DIMENSIONS:
            column, right = DIMENSIONS[right[-1]], right[:-2]
        high = self._measure(right)
        if high is not None:
            low = self._measure(left) or self._measure((*left, *right[-1:]))
            if low is None or low[0] != high[0] or (column is not None and column != high[0]):
                return None
            ends, column = (low[1], high[1]), high[0]
        else:
            column = column or "bulk"
            first, second = self._thing(left, column)[0], self._thing(right, column)[0]
            if first is None or second is None:
                return None
            ends = (min(first, second), max(first, second))
        numbers = self._table.numbers[column]
        return (
            (numbers >= ends[0]) & (numbers <= ends[1])
            if high is not None
            else (numbers > ends[0]) & (numbers < ends[1])
        )

    def _quantity(self, words: Words, column: str) -> float | None:
        measure = self._measure(words)
        if measure is None or not (measure[0] == column or {measure[0], column} <= ALONG):
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
            if said is None or not (said == column or {said, column} <= ALONG):
                return None
            return said, number * scale
        return None if rest else (column, number * scale)

    def _thing(self, words: Words, column: str) -> tuple[float | None, bool]:
        """The number of a thing to compare with, an object or one of the lexicon's, and whether it is an object."""
        if words and words[-1] in ("is", "does", "are"):
            words = words[:-1]
        words = words[2:] if words[:2] in (("that", "of"), ("the", "one")) and len(words) > 2 else words
        name = key(tuple(word for word in words if (word,) not in self._lexicon.fillers))
        first, _, rest = name.partition(" ")
        if first in GROWN and rest in self._lexicon.references:
            name = rest
        vector = self._lexicon.names.get(name)
        if vector is None and name in self._lexicon.references and column != "speed":
            length, weight, price, height = self._lexicon.references[name]
            value = {"size": length, "bulk": length, "weight": weight, "price": price, "height": height}[column]
            return (value if value > 0 else None), False
        vector = self._lexicon.phrases["noun"].get(name) if vector is None else vector
        if vector is None or vector.sum() != 1:
            return (SPEEDS.get(name) if column == "speed" else None), False
        value = float(self._table.numbers[column][vector][0])
        return (None if np.isnan(value) else value), True

    def count(self, words: Words) -> Vector | None:
        """So and so many of a part: `four wheels`, `more than two legs`, `six or more strings`."""
        flag, rest = _flagged(words)
        for said, bound in OR_SO.items():
            if words[1:3] == said or (len(words) > 3 and words[-2:] == said):
                flag, rest = bound, tuple(word for word in words if word not in said)
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
        if first not in ("have", "has", "contain", "contains", "include", "consist"):
            return None
        words = (first, *words[2:]) if words[1:2] == ("of",) else words
        size = next((len(words) - end for end in (1, 2, 3) if key(words[-end:]) in ("in", "in it", "in name")), None)
        words = words[:size]
        if "letter" in words[:-1] and (letter := words[-1]) in LETTERS and words[-2] == "letter":
            return np.array([letter in name for name in names])
        if noun(words[-1]) in ("letter", "word"):
            flag, rest = _flagged(words[1:])
            number, rest = cardinal(rest)
            if number is not None and len(rest) == 1:
                count = str.split if noun(rest[0]) == "word" else _letters
                return _compare(np.array([float(len(count(name))) for name in names]), number, flag)
        return None


def _letters(name: str) -> list[str]:
    return [letter for letter in name if letter.isalpha()]


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
