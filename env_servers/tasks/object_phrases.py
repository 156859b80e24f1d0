"""What an object is: adjectives, participles, and noun phrases with all that may be said of a noun.

Together with `object_actions` this is the grammar below the clause. A noun phrase may have a relative clause, a
relative clause a verb phrase, and any of them may be two that are joined by "and" or "or".
"""

from __future__ import annotations

from collections.abc import Mapping

from env_servers.tasks.object_actions import CALLED, Actions
from env_servers.tasks.object_facts import Vector
from env_servers.tasks.object_language import ADVERBS, DETERMINERS, Words, key, noun, word_set
from env_servers.tasks.object_parsing import (
    BE,
    DO,
    GENERIC,
    MODAL,
    PREPOSITIONS,
    both,
    opposite,
    remembered,
    without_it,
)

MADE = word_set("make compose construct build craft form create produce manufacture mine consist")
MAKERS: Mapping[str, str] = {
    **dict.fromkeys(word_set("human man people person mankind humanity"), "man_made"),
    **dict.fromkeys(("factory", "machine", "company"), "in_factory"),
    **dict.fromkeys(("nature", "god", "mother nature"), "natural"),
    "hand": "handmade_art", "animal": "nothing",
}  # fmt: skip
ABLE = word_set("able likely known expected sure bound apt")
EASY = word_set("easy safe possible fun okay ok fine common normal legal healthy good nice best popular")
FIT_FOR = word_set(
    "meant intended designed supposed suited ideal good useful needed required necessary important perfect suitable "
    "great appropriate made built created helpful handy essential best used popular safe"
)
RELATED = word_set("related associated connected linked relevant tied")


class Phrases(Actions):
    """Predicates and noun phrases."""

    @remembered
    def predicate(self, words: Words) -> Vector | None:
        """What stands after "is it"."""
        first, rest = words[0], words[1:]
        if first in ("not", "never"):
            return opposite(self.predicate(rest))
        if first == "neither" and "nor" in rest:
            return opposite(self.predicate(tuple("or" if word == "nor" else word for word in rest)))
        if first in ("either", "both", "being"):
            return self.predicate(rest)
        if first == "no" and (compared := self._comparer.read(rest)) is not None:
            return ~compared  # "no bigger than a car"
        for reader in (self.quality, self._comparer.read, self._participle, self._fit, self.prepositional):
            if (vector := reader(words)) is not None:
                return vector
        if first in ADVERBS and (vector := self.predicate(rest)) is not None:
            return vector
        if first == "full" and rest[:1] == ("of",):
            return self.has(rest[1:])
        for reader in (self._adjectives, self.noun_phrase, self._comparing_noun):
            if (vector := reader(words)) is not None:
                return vector
        return self._joined(self.predicate, words)

    @remembered
    def quality(self, words: Words) -> Vector | None:
        """An adjective, a color, a material, or a place or time that needs no preposition."""
        named, colors = key(words), self._phrases["color"]
        if words[0] in DETERMINERS:
            return None
        for ending in (" in color", " color", " colored"):
            if named.endswith(ending):
                return colors.get(named.removesuffix(ending))
        if len(words) > 2 and words[-2] == "in" and words[-1] in ("shape", "form", "size", "nature", "appearance"):
            return self.quality(words[:-2])
        if named in colors:
            made = self._phrases["material"].get(named)
            return colors[named] if made is None else colors[named] | made
        for section in ("adj", "gradable", "where", "when"):
            if (vector := self._phrases[section].get(named)) is not None:
                return vector
        made = self._phrases["material"].get(named)
        if made is not None and (made.any() or named not in self._phrases["noun"]):
            return made  # but "is it food" asks for a kind of thing
        if words[0] == "non" and len(words) > 1:
            return opposite(self.quality(words[1:]))
        return None

    @remembered
    def _adjectives(self, words: Words) -> Vector | None:
        """Adjectives side by side, such as "small round"."""
        for taken in range(min(3, len(words) - 1), 0, -1):
            if (first := self.quality(words[:taken])) is not None:
                rest = words[taken:]
                second = self.quality(rest)
                if (second := self._adjectives(rest) if second is None else second) is not None:
                    return first & second
        return None if words[0] in DETERMINERS else self._joined(self._qualities, words)

    @remembered
    def _qualities(self, words: Words) -> Vector | None:
        """Adjectives with "and" or "or" between them."""
        vector = self.quality(words)
        return self._joined(self._qualities, words) if vector is None else vector

    def _participle(self, words: Words) -> Vector | None:
        """Made of, used for, found in, eaten, related to, growing, ..."""
        first, rest = words[0], words[1:]
        verb = self._lexicon.bases.get(first)
        if first in RELATED and rest[:1] in (("to",), ("with",)) and (vector := self._topic(rest[1:])) is not None:
            return vector
        if verb is None or first not in self._lexicon.participles:
            return self.thing_does((verb, *rest)) if verb is not None and first.endswith("ing") else None
        if first == "used":
            return self.usage(rest) if rest else self._table.attributes["used"]
        if verb in MADE and (vector := self._made(rest)) is not None:
            return vector
        if verb in CALLED:
            while rest and rest[0] in ("as", "of", "to", "be"):
                rest = rest[1:]
            return self.predicate(rest) if rest else None
        if verb in ("power", "operate", "fuel", "run", "drive") and rest[:1] in (("by",), ("on",), ("with",)):
            return self._phrases["need"].get(key(rest[1:]))
        if verb in ("cover", "fill", "equip", "attach") and rest[:1] in (("in",), ("with",), ("by",)):
            made = self.material(rest[1:]) if verb == "fill" else None
            return self.has(rest[1:]) if made is None else made
        return self.people_do((verb, *rest))

    def _made(self, rest: Words) -> Vector | None:
        while rest and rest[0] in ADVERBS | {"entirely", "completely", "up", "partly", "partially"}:
            rest = rest[1:]
        if not rest:
            return self._table.attributes["man_made"]
        if rest[0] == "by" and (maker := key(rest[1:])) in MAKERS:
            return self._table.attributes[MAKERS[maker]]
        if rest[0] in ("of", "from", "with", "out"):
            return self.material(rest[2:] if rest[:2] == ("out", "of") else rest[1:])
        return self.usage(rest) if rest[0] in ("for", "to") else None

    def _fit(self, words: Words) -> Vector | None:
        """Good for, meant to, able to, easy to, small enough to."""
        first, rest = words[0], words[1:]
        if first == "safe" and rest[:1] == ("to",):
            return both(~self._table.attributes["dangerous"], self.people_do(without_it(rest[1:])))
        if first in EASY and rest[:1] == ("for",) and (taken := self._lexicon.starts("people", rest[1:])):
            rest = rest[1 + taken :]
        if rest[:2] == ("enough", "to") and len(rest) > 2:
            does = self.thing_does(rest[2:])
            return self.people_do(without_it(rest[2:])) if does is None else does
        if first in ("capable", "incapable") and rest[:1] == ("of",):
            done = self.thing_does(rest[1:])
            return done if first == "capable" else opposite(done)
        if first in ("unable", "unlikely", "impossible") and rest[:1] == ("to",):
            return opposite(self._fit(("possible" if first == "impossible" else "able", *rest)))
        if rest[:1] == ("to",):
            if rest[1:2] == ("be",) and first in FIT_FOR | ABLE | EASY:
                return self.predicate(rest[2:])
            if first in ABLE:
                return self.thing_does(rest[1:])
            done = self.people_do(without_it(rest[1:])) if first in EASY | FIT_FOR else None
            meant = self.purpose(without_it(rest[1:])) if first in FIT_FOR else None
            return done if meant is None or (first in EASY and done is not None) else meant
        if first in FIT_FOR and rest[:1] in (("for",), ("in",), ("at",), ("when",), ("as",)):
            return self.usage(rest)
        return None

    @remembered
    def prepositional(self, words: Words) -> Vector | None:
        """For cooking, with a handle, by children, from Africa, in a kitchen."""
        first, rest = words[0], words[1:]
        if first == "for":
            return self.for_what(rest)
        if first in ("with", "without"):
            return self.has(rest) if first == "with" else opposite(self.has(rest))
        if first == "by":
            return self.users(rest)
        if first == "of":
            return self.material(rest)
        if first in ("in", "under") and len(rest) > 1 and {"category", "group", "family"} & set(map(noun, rest)):
            return self._category(rest)
        if first == "from" and (vector := self._lexicon.verbs["it"].get(f"come from {key(rest)}")) is not None:
            return vector
        return self.location(words)

    # Noun phrases -----------------------------------------------------------------------------------------------------
    @remembered
    def noun_phrase(self, words: Words) -> Vector | None:
        """A thing with what is said of it: "a small animal that lives in a house"."""
        words = self.bare(words)
        for size in range(len(words), 0, -1):
            head = self.head(words[:size])
            if head is not None:
                if size == len(words):
                    return head
                generic = noun(words[size - 1]) in GENERIC
                said = self.said_of_generic(words[size:]) if generic else self.said_of_noun(words[size:])
                if said is not None:
                    return head & said
        return None

    def _comparing_noun(self, words: Words) -> Vector | None:
        """A bigger animal than a dog."""
        words = self.bare(words)
        if "than" not in words[2:]:
            return None
        than = words.index("than")
        for size in (1, 2):
            compared = self._comparer.read(words[:size] + words[than:])
            if compared is not None and size < than:
                return both(compared, self.head(words[size:than]))
        return None

    @remembered
    def head(self, words: Words) -> Vector | None:
        """A noun with its adjectives."""
        words = self.bare(words)
        if len(words) == 1 and noun(words[0]) in GENERIC:
            return self._all
        named = key(words)
        for section in ("noun", "other"):
            if (vector := self._phrases[section].get(named)) is not None:
                return vector
        for taken in range(min(3, len(words) - 1), 0, -1):
            first, rest = words[:taken], words[taken:]
            if (modifier := self.modifier(first)) is None:
                continue
            if rest[0] in ("and", "or"):
                if (group := self._group(modifier, rest)) is not None:
                    return group
            elif (head := self.head(rest)) is not None:
                relative = key(first) in self._phrases["gradable"] and key(rest) in self._lexicon.names
                return head if relative else head & modifier  # a big dog is a dog
        if len(words) > 1 and noun(words[-1]) in GENERIC:
            return self._phrases["noun"].get(key(words[:-1]))
        return None

    def _group(self, first: Vector, rest: Words) -> Vector | None:
        """After an adjective: "or green fruit"."""
        for taken in range(min(3, len(rest) - 2), 0, -1):
            second, head = self.modifier(rest[1 : 1 + taken]), self.head(rest[1 + taken :])
            if second is not None and head is not None:
                return head & (first | second if rest[0] == "or" else first & second)
        return None

    @remembered
    def modifier(self, words: Words) -> Vector | None:
        """What stands before a noun and restricts it."""
        if words in self._lexicon.fillers:
            return self._all
        if words[0] in ("non", "not"):
            return opposite(self.modifier(words[1:]))
        if words[0] in ADVERBS:
            return self.modifier(words[1:])
        if (vector := self.quality(words)) is not None:
            return vector
        named = key(words)
        for section in ("place", "for", "by"):
            if named in self._phrases[section]:
                return self._phrases[section][named]
        return self._comparer.sized(words)

    @remembered
    def said_of_generic(self, tail: Words) -> Vector | None:
        """What follows "something"."""
        if tail[0] == "to" and (vector := self.people_do(without_it(tail[1:]))) is not None:
            return vector
        vector = self.said_of_noun(tail)
        return self.predicate(tail) if vector is None and tail[0] not in DETERMINERS | {"and", "or"} else vector

    @remembered
    def said_of_noun(self, tail: Words) -> Vector | None:
        """What follows a noun, which may be several things."""
        if (vector := self._said_at_once(tail)) is not None:
            return vector
        for size in range(len(tail) - 1, 0, -1):
            if tail[size] in PREPOSITIONS or tail[size] in ("that", "which", "who", "used", "made", "found"):
                vector = both(self._said_at_once(tail[:size]), self.said_of_noun(tail[size:]))
                if vector is not None:
                    return vector
        return None

    @remembered
    def _said_at_once(self, tail: Words) -> Vector | None:
        """One thing that follows a noun: a relative clause, a preposition, a participle."""
        first, rest = tail[0], tail[1:]
        if first in ("that", "which", "who"):
            return self.relative(rest)
        if tail[:2] in (("other", "than"), ("apart", "from"), ("except", "for"), ("but", "not")):
            return opposite(self.predicate(tail[2:]))
        if first in ("except", "besides"):
            return opposite(self.predicate(rest))
        if first == "to":
            meant = self.purpose(without_it(rest))
            return self.people_do(without_it(rest)) if meant is None else meant
        if first in PREPOSITIONS and (vector := self.prepositional(tail)) is not None:
            return vector
        if first in self._lexicon.participles or first.endswith("ing") or first in ("able", "capable", "not", "good"):
            return self.predicate(tail)
        if (vector := self._comparer.read(tail)) is not None:
            return vector
        return self.predicate(rest) if first in ADVERBS and rest else self.relative(tail)

    @remembered
    def relative(self, words: Words) -> Vector | None:
        """A relative clause without "that": "has wheels", "you can eat", "people use to cut", "is red"."""
        first, rest = words[0], words[1:]
        if first in ("that", "which", "who") or first in ADVERBS:
            return self.relative(rest)
        if first == "not":
            return opposite(self.relative(rest))
        if first in BE:
            return self.predicate(rest)
        if first in MODAL | DO:
            return self.thing_does(rest)
        if taken := self._lexicon.starts("people", words):
            vector = self.people_do(without_it(words[taken:]))
        elif first in self._lexicon.bases:
            vector = self.thing_does(words)
        else:
            vector = self._users_do(words, gap=True)
        return self._joined(self.relative, words) if vector is None else vector
