"""The knowledge partner of Guess My City: it answers from the tables, without a model and without chance."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from string import ascii_lowercase

import numpy as np

from env_servers.partners import KNOWLEDGE, Answer, AnsweringPartner, Query
from env_servers.tasks.city_facts import atlas, group, table
from env_servers.tasks.city_frames import FRAME_PATTERNS, Truth, framed, simplified
from env_servers.tasks.city_names import guess
from env_servers.tasks.city_questions import understand
from env_servers.tasks.city_topics import answers, is_open, topic_of
from env_servers.tasks.city_words import last_question, plain, without_articles

REVISION = "2"  # raise it whenever an answer changes: recorded episodes name it
NOT_UNDERSTOOD = "I am not sure about that."
SHORTEST_SLIP = 4  # letters
# Slips of words that are too short for a rule.
SLIPS = {
    "teh": "the", "hte": "the", "ot": "to", "si": "is", "ti": "it", "tis": "it is", "adn": "and", "ther": "there",
    "thier": "their", "u": "you", "ur": "your", "r": "are", "wat": "what", "wats": "what is", "wich": "which",
    "doe": "does", "aer": "are", "rver": "river", "hav": "have", "costal": "coastal", "sout": "south",
}  # fmt: skip
# "Could you tell me which language..." is "which language..."
ASKING = re.compile(
    r"^(?:(?:can|could|would|will) you (?:please |kindly )?(?=tell|describe|give|name|share|explain|say|talk|list)|"
    r"(?:please )?(?:tell me|do you know|do you remember|i would like to know|i want to know|i would love to know|"
    r"may i ask(?: you)?|can i ask(?: you)?|let me ask(?: you)?|i wonder|say)(?: about)? "
    r"(?=what|which|where|how|when|who|in what|in which|on what|on which)|please )+"
)


@functools.lru_cache(maxsize=50_000)
def meaning(question: str) -> tuple[str, ...] | None:
    """The answer to a question for each city of the list, None where the question is not understood.

    Slips of the pen are put right; where that does not help, the question is read as it stands.
    """
    words = plain(last_question(question)).split()
    mended = " ".join(map(_mended, words)) + "?"
    # What becomes a guess so is none: it does not win.
    found = None if mended == " ".join(words) + "?" or guess(mended) is not None else _meaning(mended)
    return _meaning(question) if found is None else found


def _meaning(question: str) -> tuple[str, ...] | None:
    if (found := guess(question)) is not None:
        here = np.zeros(len(atlas().cities), np.bool_)
        if found.city is not None and found.fits:
            here[found.city] = True
        return _of_truth(framed(simplified(plain(last_question(question)))).answered(here))
    text = ASKING.sub("", simplified(plain(last_question(question))))
    bare = " ".join(without_articles(text.split()))
    if is_open(bare):
        return _of_topic(topic_of(bare))
    truth = understand(text)
    if truth is None or truth.cities.all():
        # "The language?" is an open question; so may be what is true of all cities: "Any famous dishes?", "Is it on the
        # coast or inland?".
        asked = framed(text).aux == "" and (truth is None or len(bare.split()) <= 3)
        asked = asked or (truth is not None and _chooses(text))
        topic = _of_topic(topic_of(bare)) if asked else None
        return topic or (None if truth is None else _of_truth(truth))
    return _of_truth(truth)


def _chooses(text: str) -> bool:
    """Whether `or` stands between what is true of some cities and what is true of the others."""
    first, either, _ = text.partition(" or ")
    truth = understand(first) if either else None
    return truth is not None and not truth.cities.all()


@functools.lru_cache(maxsize=10_000)
def _mended(word: str) -> str:
    """The word, or the one that is asked most of which an unknown word is a slip.

    A slip swaps two neighbouring letters, mistakes a vowel, or leaves out or adds a letter that is not the first. Names
    of cities are left alone, since a guess counts by its letters.
    """
    if word in SLIPS:
        return SLIPS[word]
    if len(word) < SHORTEST_SLIP or word in lexicon():
        return word
    near = group("asked") & set(_slips(word))
    return next(iter(near)) if len(near) == 1 else word


def _slips(word: str) -> Iterator[str]:
    """All words that a word is one slip away from."""
    for place in range(1, len(word) + 1):
        before, after = word[:place], word[place:]
        yield from (before + letter + after for letter in ascii_lowercase)
        if after:
            yield before + after[1:]
            yield before + after[1:2] + after[0] + after[2:]
            yield from (before + vowel + after[1:] for vowel in "aeiou" if after[0] in "aeiou")


@functools.cache
def lexicon() -> frozenset[str]:
    """Every word that the grammar, the tables and the topics know."""
    here = atlas()
    texts = [*here.phrases, *here.country_names, *here.place_names]
    texts += [row["words"].replace(";", " ") for row in table("groups")]
    texts += [re.sub(r"\\.", " ", pattern.pattern) for pattern in (*FRAME_PATTERNS, ASKING)]
    texts += [re.sub(r"\\.", " ", row["pattern"]) for row in table("topics")]
    return frozenset(re.findall(r"[a-z]+", " ".join(texts)))


def _of_truth(truth: Truth) -> tuple[str, ...]:
    return tuple(truth.yes if here else truth.no for here in truth.cities)


def _of_topic(topic: str | None) -> tuple[str, ...] | None:
    return None if topic is None else answers(topic)


@functools.cache
def _number_of() -> dict[str, int]:
    return {city.name: number for number, city in enumerate(atlas().cities)}


def reply(query: Query) -> Answer:
    """The answer to a question about the secret's `city`."""
    found = meaning(query.text)
    if found is None:
        return Answer(NOT_UNDERSTOOD, understood=False)
    return Answer(found[_number_of()[query.secret["city"]]])


@functools.cache
def knowledge_partner() -> AnsweringPartner:
    """The partner, one per process."""
    return AnsweringPartner(KNOWLEDGE, REVISION, reply)
