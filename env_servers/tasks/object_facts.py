"""What is true of the 158 objects of Twenty Questions: numbers, colors, materials, and some 600 attributes.

The table is data: `assets/objects.csv` has a row per object, `assets/object_attributes.txt` a line per attribute with
the objects that have it. An attribute, and any expression over attributes, is a vector with one truth value per object.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.bool_]

OBJECTS_FILE = "objects.csv"
ATTRIBUTES_FILE = "object_attributes.txt"
LEXICON_FILE = "object_lexicon.txt"
# Columns of the table that are compared, by their name in expressions.
NUMBERS: Mapping[str, str] = {
    "size": "size_cm", "height": "height_cm", "weight": "weight_kg", "price": "price_usd", "speed": "speed_kmh",
    "count_wheels": "wheels", "count_legs": "legs", "count_strings": "strings",
}  # fmt: skip
# Columns with several words; an attribute for each, such as `color_red`.
WORDS: Mapping[str, str] = {"color": "colors", "material": "materials", "shape": "shapes"}
# A flute is as long as a microwave, and smaller: of what is long and thin this share counts as how big it is.
THIN, LONGEST_THIN = 0.6, 200.0
COMPARISONS: Mapping[str, np.ufunc] = {
    ">=": np.greater_equal, "<=": np.less_equal, "==": np.equal, ">": np.greater, "<": np.less,
}  # fmt: skip
_EXPRESSION = re.compile(r"\s*(\[[^\]]*\]|[A-Za-z_]\w*|\d+(?:\.\d+)?|>=|<=|==|[<>&|!()])")


def read_asset(name: str) -> str:
    """The text of a file in `assets`."""
    return (resources.files("env_servers.tasks") / "assets" / name).read_text(encoding="utf-8")


def digest() -> str:
    """Eight hexadecimal digits that change with the table or with the words that name what is in it."""
    text = "".join(read_asset(name) for name in (OBJECTS_FILE, ATTRIBUTES_FILE, LEXICON_FILE))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class Facts:
    """The table.

    Attributes:
        names: The objects' names, in the order of the paper's code, which the hidden object is drawn from.
        variants: For each object the names that are accepted, the first its own.
        categories: For each object the paper's category.
        attributes: Truth values per object, by attribute.
        numbers: Values per object, by name; NaN where there is none. `size` is the longest side in cm, and `bulk` how
            big that makes it: less than its length if it is thin.
    """

    def __init__(self, objects: str, attributes: str) -> None:
        rows = list(csv.DictReader(objects.splitlines()))
        self.names = tuple(row["object"] for row in rows)
        self.variants = tuple((row["object"], *_split(row["variants"], ";")) for row in rows)
        self.categories = tuple(row["category"] for row in rows)
        self._place = {name: number for number, name in enumerate(self.names)}
        self.numbers = {
            name: np.array([float(row[column] or "nan") for row in rows]) for name, column in NUMBERS.items()
        }
        self.attributes: dict[str, Vector] = {}
        for kind, column in WORDS.items():
            held = [row[column].split() for row in rows]
            for word in sorted({word for words in held for word in words}):
                self.attributes[f"{kind}_{word}"] = np.array([word in words for words in held])
        size, thin = self.numbers["size"], self.attributes.get("shape_long", np.zeros(len(rows), bool))
        self.numbers["bulk"] = np.where(thin & (size <= LONGEST_THIN), THIN * size, size)
        for line in lines(attributes):
            name, _, listed = line.partition(":")
            if name in self.attributes:
                raise ValueError(f"attribute {name!r} has two lines; leave one")
            self.attributes[name] = self._listed(name, _split(listed, ","))

    def place(self, name: str) -> int:
        """The number of the object with that name."""
        return self._place[name]

    def only(self, names: Iterable[str]) -> Vector:
        """True of these objects.

        Raises:
            ValueError: There is no object of such a name.
        """
        vector = np.zeros(len(self.names), bool)
        for name in names:
            if name not in self._place:
                raise ValueError(f"there is no object {name!r}")
            vector[self._place[name]] = True
        return vector

    def _listed(self, attribute: str, items: Iterable[str]) -> Vector:
        vector = np.zeros(len(self.names), bool)
        for item in items:
            taken_out, name = item.startswith("-"), item.removeprefix("-")
            if name.startswith("@"):
                members = np.array([category == name[1:] for category in self.categories])
                if not members.any():
                    raise ValueError(f"attribute {attribute!r}: there is no category {name[1:]!r}")
            elif name.startswith("="):
                if name[1:] not in self.attributes:
                    raise ValueError(f"attribute {attribute!r}: no line above has {name[1:]!r}")
                members = self.attributes[name[1:]]
            else:
                members = self.only([name])
            vector = vector & ~members if taken_out else vector | members
        return vector

    def evaluate(self, expression: str) -> Vector:
        """The truth values of an expression, such as `edible & !color_red | size > 100`.

        Raises:
            ValueError: It cannot be read, or a name in it is unknown.
        """
        tokens, place = list[str](), 0
        while place < len(expression.rstrip()):
            found = _EXPRESSION.match(expression, place)
            if found is None:
                raise ValueError(f"expression {expression!r} cannot be read from character {place}")
            tokens.append(found[1])
            place = found.end()
        stream = iter([*tokens, "end"])
        vector, left = self._any(next(stream), stream)
        if left != "end":
            raise ValueError(f"expression {expression!r}: {left!r} is out of place")
        return vector

    def _any(self, token: str, stream: Iterator[str]) -> tuple[Vector, str]:
        vector, token = self._all(token, stream)
        while token == "|":
            other, token = self._all(next(stream), stream)
            vector = vector | other
        return vector, token

    def _all(self, token: str, stream: Iterator[str]) -> tuple[Vector, str]:
        vector, token = self._one(token, stream)
        while token == "&":
            other, token = self._one(next(stream), stream)
            vector = vector & other
        return vector, token

    def _one(self, token: str, stream: Iterator[str]) -> tuple[Vector, str]:
        if token == "!":
            vector, token = self._one(next(stream), stream)
            return ~vector, token
        if token == "(":
            vector, token = self._any(next(stream), stream)
            if token != ")":
                raise ValueError(f"a bracket is closed by {token!r}")
            return vector, next(stream)
        if token.startswith("["):
            return self.only(_split(token[1:-1], ";")), next(stream)
        if token in self.numbers:
            operator, value = next(stream), next(stream)
            if operator not in COMPARISONS:
                raise ValueError(f"{token} is a number; compare it by {', '.join(COMPARISONS)}, not {operator!r}")
            compared: Vector = COMPARISONS[operator](self.numbers[token], float(value))
            return compared, next(stream)
        if token not in self.attributes:
            raise ValueError(f"there is no attribute {token!r}")
        return self.attributes[token], next(stream)


def lines(text: str) -> Iterator[str]:
    """The lines of a data file that are not empty and no comments."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def _split(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


@functools.cache
def facts() -> Facts:
    """The table, read once per process."""
    return Facts(read_asset(OBJECTS_FILE), read_asset(ATTRIBUTES_FILE))
