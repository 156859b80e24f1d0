"""What an object does, and what people do with it, where, and what for."""

from __future__ import annotations

from collections.abc import Mapping

from env_servers.tasks.object_facts import Vector
from env_servers.tasks.object_language import ADVERBS, DETERMINERS, Words, key, noun, word_set
from env_servers.tasks.object_parsing import (
    DO,
    GENERIC,
    MODAL,
    PLACE_PREPOSITIONS,
    PREPOSITIONS,
    both,
    opposite,
    remembered,
    without_it,
)
from env_servers.tasks.object_parts import Parts

# Verbs that say where a thing is, with what is besides true of a thing that they are said of.
SOMEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        word_set(
            "find see keep store put locate place encounter spot display situate leave come have own belong exist "
            "appear occur stay sit stand be go happen expect produce"
        ),
        "everything",
    ),
    **dict.fromkeys(("buy", "get", "sell", "purchase"), "buyable"),
    **dict.fromkeys(("live", "raise", "reside"), "animal"),
    **{"use": "used", "grow": "growing_plant", "farm": "grows", "eat": "edible", "wear": "worn", "play": "played"},
    "hang": "hung",
}
CALLED = word_set("consider call classify categorize class describe regard know refer label mean think count list rank")
SENSES = word_set("taste smell feel look sound appear seem")
HELPERS = tuple(
    tuple(text.split())
    for text in (
        "be able to", "are able to", "able to", "need to", "needs to", "want to", "have to", "has to", "like to",
        "love to", "get to", "expect to", "tend to", "try to", "be likely to", "be expected to",
    )
)  # fmt: skip
HELPS = word_set("help allow let enable assist aid")
# Verbs whose doer may be a child, a musician, ... and then says who uses the thing.
USING = word_set("use play need like love enjoy have own want wear work handle operate")
LIFTING = word_set("lift carry hold pick")
FITTING = word_set("fit put get pack carry transport take bring squeeze stuff move")
OWNERS = word_set("your someone somebody people person everyone")
CONTEXTS = word_set("area setting environment context")


class Actions(Parts):
    """Verb phrases, places and purposes."""

    # What people do with it -------------------------------------------------------------------------------------------
    def _users_do(self, words: Words, *, gap: bool) -> Vector | None:
        """A kind of people do something with it."""
        for taken in range(min(4, len(words) - 1), 0, -1):
            users = self.users(words[:taken])
            if users is None:
                continue
            rest = words[taken:]
            if rest[0] in ("not", "never"):
                return opposite(self._users_do(words[:taken] + rest[1:], gap=gap))
            done = self.people_do(without_it(rest)) if gap else self.people_do_it(rest)
            verb = next((self._lexicon.bases.get(word, "") for word in rest if word not in ADVERBS | MODAL), "")
            eaten = verb == "eat" and not (users & ~self._table.attributes["edible"]).any()
            if verb == "use" and done is self._table.attributes["used"]:
                return users
            if done is not None and (verb in USING or eaten or users.all() or not (done & ~users).any()):
                return done & users
            if done is not None and verb in LIFTING and noun(words[taken - 1]) in ("child", "kid", "toddler"):
                return done & self._table.evaluate("weight <= 5 & size <= 100")
        return None

    def people_do_it(self, words: Words) -> Vector | None:
        """What people do with it, where "it" has to be said."""
        if "it" not in words:
            for place, word in enumerate(words):
                if word in ("one", "ones") and (place + 1 == len(words) or words[place + 1] in PREPOSITIONS):
                    words = (*words[:place], "it", *words[place + 1 :])
                    break
            else:
                return self.people_do(words) if "its" in words else None
        for place in range(len(words) - 2):
            if words[place : place + 2] == ("need", "it") and words[place + 2] in ("to", "for", "when"):
                vector = self.people_do(without_it((*words[:place], "use", *words[place + 1 :])))
                if vector is not None:
                    return vector
        return self.people_do(without_it(words))

    @remembered
    def people_do(self, words: Words) -> Vector | None:
        """What people do, with "it" left out: "eat", "sit on", "use to cut paper", "find in a kitchen"."""
        first, rest = words[0], words[1:]
        if first in ("not", "never"):
            return opposite(self.people_do(rest))
        if first in ADVERBS | MODAL | DO and rest:
            return self.people_do(rest)
        helper = next((start for start in HELPERS if words[: len(start)] == start), ())
        if helper and (vector := self.people_do(words[len(helper) :])) is not None:
            return vector
        if (vector := self._lexicon.verbs["you"].get(self._lexicon.verb_phrase(words))) is not None:
            return vector
        verb = self._lexicon.bases.get(first, first)
        if verb == "enjoy" and rest and rest[0].endswith("ing"):
            return self.people_do(rest)
        if verb == "use" and rest and (vector := self.usage(rest)) is not None:
            return vector
        if verb in CALLED and rest:
            if rest[0] == "its" and "as" in rest[2:-1]:
                rest = rest[rest.index("as") :]  # "describe its shape as round"
            rest = rest[1:] if rest[0] in ("as", "of") else rest[2:] if rest[:2] == ("to", "be") else rest
            return self.predicate(rest)
        if (
            verb in ("need", "require")
            and "to" in rest[1:-1]
            and (vector := self.needs(rest[: rest.index("to")])) is not None
        ):
            return vector
        if words[-1] == "with" and rest and (vector := self.purpose(words[:-1])) is not None:
            return vector
        if verb == "pay" and rest:
            return self._comparer.amount(rest[:-1] if rest[-1] == "for" else rest, "price")
        if verb in SOMEWHERE and rest and (place := self.location(rest)) is not None:
            return place & self._table.attributes[SOMEWHERE[verb]]
        if verb in FITTING and len(rest) > 1 and (vector := self._comparer.inside(rest)) is not None:
            return vector
        if (vector := self._joined(self.people_do, words)) is not None:
            return vector
        for size in range(len(words) - 1, 0, -1):
            vector = both(self.people_do(words[:size]), self.adverbial(words[size:]))
            if vector is not None:
                return vector
        return None

    @remembered
    def adverbial(self, words: Words) -> Vector | None:
        """Where, when, what for, by whom something is done."""
        named, first = key(words), words[0]
        for section in ("where", "when"):
            if named in self._phrases[section]:
                return self._phrases[section][named]
        if first in DETERMINERS or (first in ADVERBS and len(words) == 1):
            return self._all if first in ADVERBS else None
        if first == "by":
            return self.users(words[1:])
        if first in ("for", "at") and (vector := self._comparer.amount(words[1:], "price")) is not None:
            return vector
        if first in ("to", "for", "as", "in") and (vector := self.usage(words)) is not None:
            return vector
        return self.location(words)

    @remembered
    def usage(self, words: Words) -> Vector | None:
        """What follows "used": for cutting, to write, in the kitchen, by children, as a tool, every day."""
        first, rest = words[0], words[1:]
        used, named = self._table.attributes["used"], key(words)
        if first == "not":
            return opposite(self.usage(rest))
        if first in ADVERBS and rest:
            return self.usage(rest)
        if (vector := self._lexicon.verbs["you"].get(f"use {named}")) is not None:
            return vector
        for section in ("where", "when"):
            if named in self._phrases[section]:
                return self._phrases[section][named] & used
        vector = self._usage_of(first, rest) if rest else None
        if vector is None and (place := self.location(words)) is not None:
            vector = place & used
        if vector is not None:
            return vector
        if (vector := self._joined(self.usage, words)) is not None:
            return vector
        for size in range(len(words) - 1, 0, -1):
            if words[size] in PREPOSITIONS or words[size] == "every":
                vector = both(self.usage(words[:size]), self.usage(words[size:]))
                if vector is not None:
                    return vector
        return None

    def _usage_of(self, first: str, rest: Words) -> Vector | None:
        if first == "to":
            return self.predicate(rest[1:]) if rest[0] == "be" and len(rest) > 1 else self.purpose(rest)
        if first == "for":
            return self.for_what(rest)
        if first in ("in", "when", "while", "during", "at", "on"):
            if rest[0].endswith("ing") and (vector := self.purpose(rest)) is not None:
                return vector
            return self._phrases["for"].get(key(rest)) if first in ("in", "during") else None
        if first == "as":
            return self.noun_phrase(rest)
        return self.users(rest) if first == "by" else None

    @remembered
    def for_what(self, words: Words) -> Vector | None:
        """What follows "for": cooking, children, decoration, people to eat."""
        if words[0] in ADVERBS and len(words) > 1:
            return self.for_what(words[1:])
        if words[1:3] == ("other", "than") and noun(words[0]) in GENERIC:
            return both(opposite(self.for_what(words[3:])), self._table.attributes["used"])
        named = key(words)
        for name in (named, named.removesuffix(" purpose"), named.removesuffix(" activity")):
            if (vector := self._phrases["for"].get(name)) is not None:
                return vector
        if words[0].endswith("ing") and (vector := self.purpose(words)) is not None:
            return vector
        if (vector := self.users(words)) is not None:
            return vector
        if words[0] == "use" and len(words) > 1:
            return self.usage(words[1:])
        if (taken := self._lexicon.starts("people", words)) and words[taken : taken + 1] == ("to",):
            return self.people_do(without_it(words[taken + 1 :]))
        vector = self._phrases["place"].get(named)
        vector = self._lexicon.verbs["it"].get(f"go on {named}") if vector is None else vector
        return self._joined(self.for_what, words) if vector is None else vector

    @remembered
    def purpose(self, words: Words) -> Vector | None:
        """What one does with it as a means: "cut paper", "writing", "help people sleep"."""
        first, rest = words[0], words[1:]
        verb = self._lexicon.bases.get(first, first)
        if first in ADVERBS and rest:
            return self.purpose(rest)
        if (vector := self._lexicon.verbs["use"].get(self._lexicon.verb_phrase(words))) is not None:
            return vector
        if verb in HELPS and rest:
            return self._help(rest)
        if words[-1] in PREPOSITIONS:
            return self._lexicon.verbs["you"].get(self._lexicon.verb_phrase(words))
        if (vector := self._joined(self.purpose, words)) is not None:
            return vector
        for size in range(len(words) - 1, 0, -1):
            if words[size] in PLACE_PREPOSITIONS:
                vector = both(self.purpose(words[:size]), self.location(words[size:]))
                if vector is not None:
                    return vector
        return None

    def _help(self, rest: Words) -> Vector | None:
        """After "help": "you to cut things"."""
        rest = rest[self._lexicon.starts("people", rest) :]
        rest = rest[1:] if rest[:1] in (("to",), ("with",), ("in",)) else rest
        return self.purpose(rest) if rest else self._table.attributes["used"]

    @remembered
    def users(self, words: Words) -> Vector | None:
        """Who uses it."""
        if self._lexicon.starts("people", words) == len(words):
            return self._all
        if (vector := self._phrases["by"].get(key(words))) is not None:
            return vector
        words = self.bare(words[1:] if words[0] in ("both", "either") else words)
        while words and (
            words[:1] in self._lexicon.fillers or words[0] in ("professional", "young", "little", "other")
        ):
            words = words[1:]
        if not words:
            return None
        vector = self._phrases["by"].get(key(words))
        return self._joined(self.users, words) if vector is None else vector

    @remembered
    def location(self, words: Words) -> Vector | None:
        """Where it is: "in a kitchen", "outside", "on your head"."""
        first, named = words[0], key(words)
        if first == "not":
            return opposite(self.location(words[1:]))
        if first in ADVERBS and len(words) > 1:
            return self.location(words[1:])
        if (vector := self._phrases["where"].get(named)) is not None:
            return vector
        if first in PLACE_PREPOSITIONS and len(words) > 1:
            if (vector := self._lexicon.verbs["it"].get(f"go {named}")) is not None:
                return vector
            rest = words[2:] if words[1] == "of" else words[1:]
            rest = self.bare(rest)
            while len(rest) > 1 and (rest[:1] in self._lexicon.fillers or rest[0] in OWNERS):
                rest = self.bare(rest[1:])
            if rest and noun(rest[-1]) in CONTEXTS and len(rest) > 1:
                rest = rest[:-1]
            if (vector := self._phrases["place"].get(key(rest))) is not None:
                return vector
        return self._joined(self.location, words)

    # What it does and has ---------------------------------------------------------------------------------------------
    @remembered
    def thing_does(self, words: Words) -> Vector | None:
        """What it does or can do: "fly", "have wheels", "need electricity", "cost more than a car", "be eaten"."""
        first, rest = words[0], words[1:]
        if first in ("not", "never"):
            return opposite(self.thing_does(rest))
        if len(words) > 2 and words[-1] == "it" and words[-2] in ("on", "in", "inside", "to", "with"):
            words, rest = words[:-2], rest[:-2]
        if first in ADVERBS | MODAL | DO and rest:
            return self.thing_does(rest)
        if (vector := self._comparer.spelled(words)) is not None:
            return vector
        verb = "weigh" if first == "weight" else self._lexicon.bases.get(first, first)
        if verb == "be" or (verb == "get" and rest[:1] and rest[0] in self._lexicon.participles):
            return self.predicate(rest)
        helper = next((start for start in HELPERS if words[: len(start)] == start), ())
        if helper[-1:] == ("to",) and (vector := self.thing_does(words[len(helper) :])) is not None:
            return vector
        named = self._lexicon.verb_phrase(without_it(words))
        for section in ("it", "use+"):
            if (vector := self._lexicon.verbs[section].get(named)) is not None:
                return vector
        if rest and (vector := self._with_object(verb, rest)) is not None:
            return vector
        if verb in SOMEWHERE and rest and (place := self.location(rest)) is not None:
            return place & self._table.attributes[SOMEWHERE[verb]]
        if (vector := self._joined(self.thing_does, words)) is not None:
            return vector
        for size in range(len(words) - 1, 0, -1):
            vector = both(self.thing_does(words[:size]), self.adverbial(words[size:]))
            if vector is not None:
                return vector
        return None

    def _with_object(self, verb: str, rest: Words) -> Vector | None:
        """Verbs that the grammar knows."""
        if verb in ("have", "contain", "include", "feature", "possess") or (verb == "come" and rest[0] == "with"):
            rest = rest[1:] if rest[0] in ("with", "got") else rest
            vector = self.has(rest) if rest else None
            vector = self.material(rest) if vector is None and verb == "contain" else vector
            return self._another(rest) if vector is None else vector
        if verb in ("need", "require", "use", "take", "consume"):
            return self.needs(rest)
        if verb in ("run", "work", "operate", "depend", "rely") and rest[0] in ("on", "with", "by"):
            return self.needs(rest[1:])
        if verb in SENSES:
            return self.predicate(rest) if verb in ("feel", "look", "appear", "seem") else self.quality(rest)
        if verb in ("weigh", "cost", "measure"):
            rest = rest[self._lexicon.starts("people", rest) :] if verb == "cost" else rest
            return self._comparer.amount(rest, {"weigh": "weight", "cost": "price", "measure": "size"}[verb])
        if verb == "go" and (vector := self.people_do(("put", *rest))) is not None:
            return vector
        if verb in ("belong", "fall") and rest[0] in ("to", "under", "into", "in"):
            if rest[0] == "in" and (vector := self.location(rest)) is not None:
                return vector
            return self._category(rest[1:])
        if verb in HELPS:
            return self._help(rest)
        if verb == "lack" or (verb in ("go", "work", "run", "function", "operate") and rest[0] == "without"):
            return opposite(self.has(rest) if verb == "lack" else self.needs(rest[1:]))
        if verb in ("serve", "function", "act", "work", "count", "qualify", "classify") and rest[0] == "as":
            return self.noun_phrase(rest[1:])
        if verb == "consist" and "of" in rest[:-1] and set(rest[: rest.index("of")]) <= ADVERBS:
            return self.material(rest[rest.index("of") + 1 :])
        if verb == "fit" and len(rest) > 1:
            return self._comparer.inside(rest)
        if verb == "relate" and rest[0] == "to":
            return self._topic(rest[1:])
        if verb == "have" and rest[:3] == ("to", "do", "with"):
            return self._topic(rest[3:])
        return None
