"""What all parts of a question about an object share: words, memory, and being joined by "and" or "or"."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from env_servers.tasks.object_comparisons import Comparer
from env_servers.tasks.object_facts import Facts, Vector
from env_servers.tasks.object_language import ADVERBS, DETERMINERS, QUANTIFIERS, Lexicon, Words, word_set

MOST_STEPS = 15_000  # of taking a question apart; one that needs more is not understood

BE = word_set("is are was were am be been being")
DO = word_set("do does did")
MODAL = word_set("can could will would should may might must shall")
HAVE = word_set("have has had having")
GENERIC = word_set("thing object item something anything one stuff entity someone everything")
PLACE_PREPOSITIONS = word_set("in at on inside within around near from into to through throughout by outside above")
PREPOSITIONS = PLACE_PREPOSITIONS | word_set("for with without of under over below between about as during")
LINKS = ("but", "or", "and")  # those first that hold the least together
NEGATIONS = word_set("not no never without neither")


class TooLong(Exception):
    """A question that takes too many steps."""


AnyParsing = TypeVar("AnyParsing", bound="Parsing")


def remembered(
    parser: Callable[[AnyParsing, Words], Vector | None],
) -> Callable[[AnyParsing, Words], Vector | None]:
    """Keep what words were found to mean, for the question at hand."""

    @functools.wraps(parser)
    def parse(self: AnyParsing, words: Words) -> Vector | None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooLong
        place = (parser.__name__, words)
        if place not in self.known:
            self.known[place] = None  # nothing is a part of itself
            self.known[place] = parser(self, words) if words else None
        return self.known[place]

    return parse


def opposite(vector: Vector | None) -> Vector | None:
    """The answers to the negated question."""
    return None if vector is None else ~vector


def both(first: Vector | None, second: Vector | None) -> Vector | None:
    """True where both are, None where one is not understood."""
    return None if first is None or second is None else first & second


class Parsing(ABC):
    """Takes parts of questions apart; a method takes words, and gives None where they are not that part.

    Args:
        table: The objects.
        words: The lexicon.
    """

    def __init__(self, table: Facts, words: Lexicon) -> None:
        self.known: dict[tuple[str, Words], Vector | None] = {}
        self.steps = 0
        self._table = table
        self._lexicon = words
        self._phrases = words.phrases
        self._comparer = Comparer(table, words)
        self._all = np.ones(len(table.names), bool)

    @abstractmethod
    def predicate(self, words: Words) -> Vector | None: ...

    @abstractmethod
    def quality(self, words: Words) -> Vector | None: ...

    @abstractmethod
    def noun_phrase(self, words: Words) -> Vector | None: ...

    @abstractmethod
    def head(self, words: Words) -> Vector | None: ...

    @abstractmethod
    def modifier(self, words: Words) -> Vector | None: ...

    def bare(self, words: Words) -> Words:
        """Without articles, adverbs and quantities at the beginning."""
        while words:
            taken = next((len(start) for start in QUANTIFIERS if words[: len(start)] == start), 0)
            if not taken and (words[0] in DETERMINERS or words[0] in ADVERBS):
                taken = 1
            if not taken:
                break
            words = words[taken:]
        return words

    def _joined(self, read: Callable[[Words], Vector | None], words: Words) -> Vector | None:
        """Two parts with "and" or "or" between them, which may share their beginning or their end."""
        if "neither" in words and "nor" in words:
            said = tuple("or" if word == "nor" else word for word in words if word != "neither")
            return opposite(read(said))
        for link in LINKS:
            for place in range(1, len(words) - 1):
                if words[place] == link:
                    vector = self._pair(read, words[:place], words[place + 1 :], link)
                    if vector is not None:
                        return vector
        return None

    def _pair(self, read: Callable[[Words], Vector | None], left: Words, right: Words, link: str) -> Vector | None:
        first = read(left)
        second: Vector | None = None
        denied = False
        if first is not None:
            # "made of wood or metal", "used in the kitchen or the bathroom", "a dog or a cat": as much of the
            # beginning as can be is shared, but what the second part begins like, it stands for.
            for share in sorted(range(len(left)), key=lambda share: (not _alike(left[share], right[0]), -share)):
                if (second := read(left[:share] + right)) is not None:
                    denied = bool(NEGATIONS & set(left[:share]))  # "does not fly or swim" is neither
                    break
        elif (second := read(right)) is not None:
            first = next((v for size in range(1, len(right)) if (v := read(left + right[size:])) is not None), None)
        if first is None or second is None:
            return None
        return first | second if link == "or" and not denied else first & second


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    groups = (DETERMINERS, PREPOSITIONS | {"not"})
    return any(one in group and other in group for group in groups) or (one.endswith("ing") and other.endswith("ing"))


def without_it(words: Words) -> Words:
    """The words that are not "it"."""
    return tuple(word for word in words if word != "it")
