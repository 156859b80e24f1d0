"""What an object is: adjectives, participles, and noun phrases with all that may be said of a noun.

Together with `object_actions` this is the grammar below the clause. A noun phrase may have a relative clause, a
relative clause a verb phrase, and any of them may be two that are joined by "and" or "or".
"""

from __future__ import annotations

from collections.abc import Mapping

from env_servers.tasks.object_actions import CALLED, Actions
from env_servers.tasks.object_comparisons import ADJECTIVES
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
from env_servers.tasks.object_parts import GROUPS

MADE = word_set("make compose construct build craft assemble form create produce manufacture fabricate mine consist")
MAKERS: Mapping[str, str] = {
    **dict.fromkeys(word_set("human man people person mankind humanity"), "man_made"),
    **dict.fromkeys(("factory", "machine", "company"), "in_factory"),
    **dict.fromkeys(("nature", "god", "mother nature"), "natural"),
    "hand": "handmade_art", "animal": "nothing",
}  # fmt: skip
ABLE = word_set("able likely known expected sure bound apt")
EASY = word_set(
    "easy safe possible fun okay ok fine common normal legal healthy good nice best popular accurate correct right fair"
)
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
        if rest[:1] == ("but",) and first in ("anything", "everything"):
            return opposite(self.predicate(rest[1:]))
        if first == "nothing":
            return opposite(self.noun_phrase(("something", *rest)))
        if first in ("free", "devoid") and rest[:1] == ("of",) and len(rest) > 1:
            return opposite(self._of_material(rest[1:]))
        for apart in (("rather", "than"), ("instead", "of"), ("as", "opposed", "to"), ("and", "not")):
            for size in range(1, len(words) - len(apart)):
                if words[size : size + len(apart)] == apart:
                    return both(self.predicate(words[:size]), opposite(self.predicate(words[size + len(apart) :])))
        if noun(words[-1]) == "word" and (vector := self._comparer.spelled(("have", *words))) is not None:
            return vector  # "is it two words?"
        if first == "native" and rest[:1] == ("to",):
            return self.thing_does(("live", "in", *rest[1:]))
        if first == "part" and rest[:1] == ("of",) and GROUPS & set(map(noun, rest[1:])):
            return self._category(rest[1:])
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
        if words[-1] == "related" and len(words) > 1:
            return self._topic(words[:-1])
        return self._of_parts(words)

    def _of_parts(self, words: Words) -> Vector | None:
        """Four legged, six stringed, wheeled, wheelless."""
        part = words[-1]
        if len(words) == 2 and part == "less":
            return opposite(self._phrases["have"].get(noun(words[0])))
        if len(words) == 1 and part.endswith("less"):
            return opposite(self._phrases["have"].get(noun(part.removesuffix("less"))))
        if len(words) > 2 or not part.endswith("ed"):
            return None
        stem = part.removesuffix("ed")
        stem = stem[:-1] if stem[-2:-1] == stem[-1:] else stem
        return self._comparer.count((words[0], stem)) if len(words) == 2 else self._phrases["have"].get(stem)

    @remembered
    def _adjectives(self, words: Words) -> Vector | None:
        """Adjectives side by side, such as "small round"."""
        if key(words) in self._phrases["noun"]:
            return None  # "fresh water"
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
        moved = verb in ("power", "operate", "fuel", "run", "drive") and rest[:1] in (("by",), ("on",), ("with",))
        if moved and (vector := self._phrases["need"].get(key(rest[1:]))) is not None:
            return vector
        if verb in ("cover", "fill", "equip", "attach") and rest[:1] in (("in",), ("with",), ("by",)):
            made = self.material(rest[1:]) if verb == "fill" else None
            return self.has(rest[1:]) if made is None else made
        done = self.people_do((verb, *rest))
        return self.people_do((verb, *without_it(rest))) if done is None and "it" in rest else done

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
        if rest[:1] == ("enough",) and len(rest) > 2:
            return self._fitting(rest[1:])
        if first == "too" and len(rest) > 2 and rest[0] in ADJECTIVES:
            return opposite(self._fitting(rest[1:]))  # "too heavy for a person to lift"
        if rest[:1] == ("of",) and first in ("capable", "incapable"):
            done = self.thing_does(rest[1:])
            return done if first == "capable" else opposite(done)
        if rest[:1] == ("at",) and first in ("good", "great", "bad") and len(rest) > 1:
            return self.thing_does(rest[1:])
        if first in ("unable", "unlikely", "impossible") and rest[:1] == ("to",):
            return opposite(self._fit(("possible" if first == "impossible" else "able", *rest)))
        if rest[:1] == ("to",):
            if rest[1:2] == ("be",) and first in FIT_FOR | ABLE | EASY:
                return self.predicate(rest[2:])
            if first in ABLE:
                return self.thing_does(rest[1:])
            done = self.people_do(without_it(rest[1:])) if first in EASY | FIT_FOR else None
            meant = self.purpose(without_it(rest[1:])) if first in FIT_FOR else None
            return done if meant is None or (done is not None and (first in EASY or "it" in rest)) else meant
        if first in FIT_FOR and rest[:1] in (("for",), ("in",), ("at",), ("when",), ("as",)):
            return self.usage(rest)
        return None

    def _of_material(self, words: Words) -> Vector | None:
        made = self.material(words)
        return self.has(words) if made is None else made

    def _fitting(self, words: Words) -> Vector | None:
        """After "big enough" and "too big": to fit in a bag, to carry, for a child to lift, for a pocket."""
        somebody = words[0] == "for" and "to" in words[2:-1]
        if somebody:
            to = words.index("to")
            if self._lexicon.starts("people", words[1:to]) != to - 1:
                return self._users_do((*words[1:to], *words[to + 1 :]), gap=True)
            words = words[to:]
        if words[0] == "to" and len(words) > 1:
            done = self.people_do(without_it(words[1:]))
            does = self.thing_does(words[1:])
            first, second = (done, does) if somebody or words[-1] in PREPOSITIONS else (does, done)
            return second if first is None else first
        return self._comparer.inside(("in", *words[1:])) if words[0] in ("for", "in") else None

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
        if first in ("in", "under") and len(rest) > 1 and GROUPS - {"of"} & set(map(noun, rest)):
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
                if words[size] in ("that", "which") and words[size + 1 : size + 2] in (("is",), ("are",)):
                    relative = key(words[size + 2 :]) in self._phrases["gradable"]  # what is large depends on the kind
                    if relative and (graded := self.head((*words[size + 2 :], *words[:size]))) is not None:
                        return graded
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
        if not words or words[-1] in DETERMINERS:
            return None
        if len(words) == 1 and noun(words[0]) in GENERIC:
            return self._all
        if words[0] == "non":
            return opposite(self.head(words[1:]))
        named = key(words)
        for section in ("noun", "other"):
            if (vector := self._phrases[section].get(named)) is not None:
                return vector
        if (vector := self._lexicon.run_together.get(named.replace(" ", ""))) is not None:
            return vector  # "a tooth brush"
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
        if words[0].endswith("ing") and (vector := self.purpose(words)) is not None:
            return vector
        return self._comparer.sized(words)

    @remembered
    def said_of_generic(self, tail: Words) -> Vector | None:
        """What follows "something"."""
        if tail[0] == "to" and (vector := self.people_do(without_it(tail[1:]))) is not None:
            return vector
        if tail[0] == "like" and len(tail) > 1:
            return self.noun_phrase(tail[1:])
        vector = self.said_of_noun(tail)
        for size in range(1, len(tail)) if vector is None else ():
            vector = both(self.quality(tail[:size]), self.said_of_noun(tail[size:]))
            if vector is not None:
                return vector  # "something round that you can eat"
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
        doing = first.endswith("ing") and first in self._lexicon.bases
        if doing or first in self._lexicon.participles or first in ("able", "capable", "not", "good"):
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
