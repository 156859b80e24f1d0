"""Understands yes/no questions about the objects: a question gives a truth value for each of them, or nothing at all.

A question is taken apart as a sentence is built: a frame ("is it", "does it", "can you ... it") and a predicate, whose
parts (`object_phrases`) are looked up in the lexicon and put together by not, and, or, and relative clauses. So all
ways to say the same get the same answer, and the negated question gets the opposite one. What cannot be taken apart
wholly is not guessed at.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from env_servers.tasks.object_comparisons import DIMENSIONS
from env_servers.tasks.object_facts import Vector, facts
from env_servers.tasks.object_language import ADVERBS, DETERMINERS, Words, lexicon, noun, sentences, word_set
from env_servers.tasks.object_parsing import BE, DO, HAVE, MODAL, TooLong, opposite
from env_servers.tasks.object_phrases import Phrases

LONGEST = 48  # words of a sentence; a longer one is not understood
REMEMBERED = 2**15  # questions whose answers are kept

OPEN = word_set("what which who whom whose where when why how")
PRONOUNS = word_set("they them these those this he she him")
KINDS = word_set(
    "kind type sort form piece example variety species member breed brand class category item article genre pair set"
)
PROPERTIES = word_set(
    "color shape size weight price cost material texture taste surface height length value flavor appearance category "
    "type kind"
)
FUNCTIONS = word_set("purpose use function job role")
AUXILIARY = BE | DO | MODAL | HAVE
# Words that people say before a question, but that may also be its first.
AMBIGUOUS = word_set("good nice cool great interesting perfect right sure first second next no think guess")
SEEKING = word_set("thinking looking searching talking hinting referring guessing dealing asking")
# What is said in the middle of a question without changing it.
ASIDES = (("by", "any", "chance"), ("by", "chance"), ("in", "general"), ("at", "all"), ("for", "the", "most", "part"))


class Reader(Phrases):
    """Reads questions."""

    def read(self, text: str) -> Vector | None:
        """For each object whether "Yes." is right; None for a text that is not understood."""
        said = [(words, asked) for words, asked in sentences(text) if self._stripped(words)]
        questions = [words for words, asked in said if asked] or [words for words, _ in said[-1:]]
        if len(questions) != 1 or len(questions[0]) > LONGEST:
            return None
        question = questions[0]
        if any(words is not question and self._stripped(words)[0] in AUXILIARY for words, _ in said):
            return None  # two things are asked
        vector = self._sentence(question)
        respelled = tuple(map(self._lexicon.respelled, question)) if vector is None else question
        return vector if respelled == question else self._sentence(respelled)

    def _sentence(self, question: Words) -> Vector | None:
        self.known, self.steps = {}, 0
        question, denied = self._undenied(question)
        try:
            for words in self._readings(question):
                if words and (vector := self._clauses(words)) is not None:
                    return ~vector if denied else vector
        except TooLong:
            return None
        finally:
            self.known = {}
        return None

    # From a sentence to a clause --------------------------------------------------------------------------------------
    def _stripped(self, words: Words) -> Words:
        """Without what people say before a question and after it."""
        while words:
            taken = 1 if words[0] == "," else self._lexicon.starts("prefix", words)
            if not taken or taken == len(words):
                break
            if words[0] in AMBIGUOUS and taken == 1 and words[1] not in AUXILIARY | {",", "it"}:
                break
            words = words[taken:]
        while words:
            taken = 1 if words[-1] == "," else self._lexicon.ends("suffix", words)
            if not taken or taken == len(words):
                break
            words = words[:-taken]
        return words

    def _undenied(self, words: Words) -> tuple[Words, bool]:
        """Without "would it be wrong to say that" and the like at the beginning, and whether these negate the rest."""
        denied = False
        while 0 < (taken := self._lexicon.starts("denial", words := self._stripped(words))) < len(words):
            words, denied = words[taken:], not denied
        return words, denied

    def _readings(self, words: Words) -> Iterator[Words]:
        """The sentence with "it" for the object, and its commas read as "and" or "or", or left out."""
        words = self._stripped(words)
        for place in range(1, len(words) - 1):
            if words[place : place + 2] == ("such", "as") or words[place : place + 2] == (",", "like"):
                words = words[:place]
                break
        words = self._stripped(self._with_it(words))
        words = self._stripped(self._untagged(words))
        if "," not in words:
            yield words
            return
        last = len(words) - 1 - words[::-1].index(",")
        links = [word for word in words[last + 1 :] if word in ("and", "or")]
        if links:
            yield _linked(words, links[0])
        yield tuple(word for word in words if word != ",")
        if not links:
            yield _linked(words, "and")

    def _with_it(self, words: Words) -> Words:
        """With "it" for all that means the object, and without "kind of" and "one of the"."""
        found, place = list[str](), 0
        while place < len(words):
            rest = words[place:]
            if place and (taken := next((len(said) for said in ASIDES if rest[: len(said)] == said), 0)):
                pass
            elif taken := self._lexicon.starts("subject", rest):
                found.append("it")
            elif rest[0] in PRONOUNS:
                taken = 1
                found.append("it")
            elif rest[:2] == ("one", "of") and len(rest) > 3:
                taken = 2
            elif rest[0] == "category" and {"in", "under", "to"} & set(found[-2:]):
                taken = 1
                found.append(rest[0])
            elif rest[0] in DETERMINERS and len(rest) > 3 and noun(rest[1]) in KINDS - {"category"} and rest[2] == "of":
                taken = 3
                found.append("a")
            elif noun(rest[0]) in KINDS and rest[1:2] == ("of",) and len(rest) > 2:
                taken = 2
            else:
                taken = 1
                found.append(rest[0])
            place += taken
        words = tuple(found)
        if words[1:2] == ("that",) and words[0] in AUXILIARY:
            words = (words[0], "it", *words[2:])
        return (*words[:-1], "it") if len(words) > 2 and words[-1] == "that" else words

    def _untagged(self, words: Words) -> Words:
        """Without a tag question at the end: ", is it not"."""
        for size in (3, 2):
            tail = words[-size:]
            if len(words) > size + 1 and tail[0] in AUXILIARY and set(tail[1:]) <= {"it", "not", "you"}:
                before = words[-size - 1]
                if before == "," or (tail[-1] != "not" and words[0] not in AUXILIARY):
                    return words[:-size]
        return words

    # Clauses ----------------------------------------------------------------------------------------------------------
    def _clauses(self, words: Words) -> Vector | None:
        """One question, or two with "and" or "or" between them."""
        places = [place for place in range(2, len(words) - 2) if words[place] in ("and", "or", "but")]
        for place in places:
            # "and can you", "or does it" begin a question whatever stands before them.
            if words[place + 1] in AUXILIARY and words[place + 2] in ("it", "you", "people"):
                return self._two(words, place)
        vector = self.clause(words)
        for place in places if vector is None else ():
            if words[place + 1] in AUXILIARY | {"it"} and (vector := self._two(words, place)) is not None:
                break
        return vector

    def _two(self, words: Words, place: int) -> Vector | None:
        """Two questions with a link at that place."""
        first, second = self.clause(words[:place]), self._clauses(words[place + 1 :])
        if first is None or second is None:
            return None
        return first | second if words[place] == "or" else first & second

    def clause(self, words: Words) -> Vector | None:
        """A whole question, or a statement that is asked."""
        first, rest = words[0], words[1:]
        if first in OPEN:
            return None
        if not rest or first not in AUXILIARY | {"it"}:
            return self._statement(words)
        if rest[0] == "not" and first != "it":
            return opposite(self.clause((first, *rest[1:]))) if len(rest) > 1 else None
        if rest[0] in ("the", "this", "that", "your") and (vector := self._of_kind(first, rest[1:])) is not None:
            return vector
        if first in BE:
            return self._after_be(rest)
        if first in HAVE and rest[0] == "it":
            return self._after_has(rest[1:])
        if first == "it":
            return self._of_it(rest)
        vector = self._after_do(rest)
        return self.fragment(words) if vector is None else vector

    def _of_kind(self, first: str, rest: Words) -> Vector | None:
        """After "is the" and "does the", with a kind for the object: "animal a mammal", "fruit grow on trees"."""
        for size in range(min(3, len(rest) - 1), 0, -1):
            kind, after = self.head(rest[:size]), rest[size:]
            if kind is not None and kind.any() and (vector := self.clause((first, "it", *after))) is not None:
                return opposite(kind & ~vector) if after[0] == "not" else kind & vector
        return None

    def _statement(self, words: Words) -> Vector | None:
        """ "People eat it", or a predicate alone."""
        taken = self._lexicon.starts("people", words)
        if 0 < taken < len(words) and (vector := self.people_do_it(words[taken:])) is not None:
            return vector
        if words[0] in ("its", "the") and (vector := self._property(words[1:])) is not None:
            return vector
        return self.fragment(words)

    def fragment(self, words: Words) -> Vector | None:
        """A predicate alone: "a cat?", "made of wood?", "has wheels?", "can fly?"."""
        if words[0] in MODAL | DO | HAVE and len(words) > 1:
            return self.thing_does(words)
        vector = self.predicate(words)
        if vector is None and self._lexicon.bases.get(words[0], words[0]) != words[0]:
            vector = self.thing_does(words)
        return self.has(words) if vector is None else vector

    def _after_be(self, rest: Words) -> Vector | None:
        first, after = rest[0], rest[1:]
        if first == "there":
            return self._there(after)
        if rest[-2:] == ("than", "it") and (vector := self._comparer.inverse(rest[:-2])) is not None:
            return vector
        if first == "it":
            vector = self.predicate(after)
            return self._property(after) if vector is None else vector
        if first in ("its", "the"):
            vector = self._spelling(rest)
            return self._property(after) if vector is None else vector
        if noun(rest[-1]) in PROPERTIES and (place := next((i for i, w in enumerate(rest) if w in ("its", "the")), 0)):
            return self._property((noun(rest[-1]), *rest[:place]))  # "is blue its main color?"
        if (taken := self._lexicon.starts("people", rest)) and taken < len(rest):
            rest = rest[taken:]
            if rest[0] == "not" and len(rest) > 1:
                return opposite(self._after_be((first, *rest[1:])))
            if rest[:2] == ("able", "to"):
                return self.people_do_it(rest[2:])
            if rest[0] in SEEKING and rest[1:2] in (("of",), ("about",), ("for",), ("at",), ("to",)) and rest[2:]:
                return self.predicate(rest[2:])
            return self.predicate(rest) if first == "you" else None  # "are you a cat?"
        return self.predicate(rest)  # "is a cat?", "is used to cut?"

    def _after_do(self, rest: Words) -> Vector | None:
        """After "does", "can", "have", and the like."""
        first, after = rest[0], rest[1:]
        if rest[:2] == ("there", "be"):
            return self._there(rest[2:])
        if first == "it" and after:
            if noun(after[0]) in ("name", "spelling") and len(after) > 1:
                return self._comparer.spelled(after[1:])
            return self.thing_does(after)
        if (vector := self._spelling(rest)) is not None:
            return vector
        if rest[-2:] == ("than", "it") and (vector := self._comparer.inverse(rest[:-2])) is not None:
            return vector
        if rest[-3:] == ("live", "in", "it") and (vector := self.has(rest[:-3])) is not None:
            return vector
        taken = self._lexicon.starts("people", rest)
        if 0 < taken < len(rest) and (vector := self.people_do_it(rest[taken:])) is not None:
            return vector
        vector = self._users_do(rest, gap=False)
        return self.thing_does(after) if vector is None and first == "one" and after else vector

    def _spelling(self, rest: Words) -> Vector | None:
        """Its name has two words, its first letter is so."""
        if rest[:1] == ("the",) and rest[2:4] == ("of", "it"):
            rest = (*rest[:2], *rest[4:])
        if rest[1:2] in (("name",), ("spelling",)) and len(rest) > 3:
            return self._comparer.spelled(rest[2:] if rest[2] in self._lexicon.bases else ("have", *rest[2:]))
        if rest[1:3] in (("first", "letter"), ("last", "letter")):
            letter = rest[-1:]
            between = set(rest[3:-1]) - {"of", "in", "its", "the", "it", "name", "a", "an", "letter"} - BE
            return (
                None if between else self._comparer.spelled(("start" if rest[1] == "first" else "end", "with", *letter))
            )
        return None

    def _after_has(self, rest: Words) -> Vector | None:
        """After "has it"."""
        while rest and rest[0] in ADVERBS | {"got"}:
            rest = rest[1:]
        if not rest:
            return None
        if rest[0] == "been":
            return self.predicate(rest[1:])
        vector = self.has(rest)
        return self._another(rest) if vector is None else vector

    def _of_it(self, rest: Words) -> Vector | None:
        """After "it" in a statement."""
        if len(rest) > 1 and rest[0] in BE:
            return self.predicate(rest[1:])
        vector = self._property(rest)
        return self.thing_does(rest) if vector is None else vector

    def _there(self, words: Words) -> Vector | None:
        """There is something on it, or one of it somewhere."""
        if words[:1] == ("one",) and len(words) > 1:
            return self.location(words[1:])
        if len(words) > 2 and words[-1] == "it" and words[-2] in ("with", "of"):
            words = words[:-2]
        if not words or "it" in words[:-1]:
            return None
        vector = self.has(words)
        return self._another(words[:-2]) if vector is None and words[-1] == "it" else vector

    def _property(self, words: Words) -> Vector | None:
        """Its color is so, its purpose is that."""
        while words and ((words[0],) in self._lexicon.fillers or words[0] in ADVERBS or words[0] == "intended"):
            words = words[1:]
        if len(words) < 2 or words[0] not in PROPERTIES | FUNCTIONS:
            return None
        named, rest = words[0], words[1:]
        rest = rest[2:] if rest[:2] == ("of", "it") else rest
        while rest and (rest[0] in ADVERBS or rest[0] in BE):
            rest = rest[1:]
        if not rest:
            return None
        if rest[0] == "not":
            return opposite(self._property((named, *rest[1:])))
        if named in DIMENSIONS and (vector := self._comparer.amount(rest, DIMENSIONS[named])) is not None:
            return vector
        if named not in FUNCTIONS:
            return self.material(rest) if named == "material" else self.predicate(rest)
        return self.usage(rest) if rest[0] in ("to", "for", "as") else self.for_what(rest)


def _linked(words: Words, link: str) -> Words:
    """The words with a link for each comma."""
    found = list[str]()
    for place, word in enumerate(words):
        if word != ",":
            found.append(word)
        elif words[place + 1 : place + 2] not in ((link,), ("and",), ("or",), ("but",)):
            found.append(link)
    return tuple(found)


@functools.cache
def _reader() -> Reader:
    return Reader(facts(), lexicon())


@functools.lru_cache(maxsize=REMEMBERED)
def understand(question: str) -> Vector | None:
    """For each object, in the table's order, whether "Yes." is right; None where the question is not understood."""
    vector = _reader().read(question)
    if vector is not None:
        vector = vector.copy()
        vector.flags.writeable = False
    return vector
