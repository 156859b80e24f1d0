"""The knowledge partner of Guess My City: it answers from the tables, without a model and without chance."""

from __future__ import annotations

import functools
import re

import numpy as np

from env_servers.partners import KNOWLEDGE, Answer, AnsweringPartner, Query
from env_servers.tasks.city_facts import atlas
from env_servers.tasks.city_frames import Truth, framed, simplified
from env_servers.tasks.city_names import guess
from env_servers.tasks.city_questions import understand
from env_servers.tasks.city_topics import answers, is_open, topic_of
from env_servers.tasks.city_words import last_question, plain, without_articles

REVISION = "1"  # raise it whenever an answer changes: recorded episodes name it
NOT_UNDERSTOOD = "I am not sure about that."
# "Could you tell me which language..." is "which language..."
ASKING = re.compile(
    r"^(?:(?:can|could|would|will) you (?:please |kindly )?(?=tell|describe|give|name|share|explain|say|talk|list)|"
    r"(?:please )?(?:tell me|do you know|do you remember|i would like to know|i want to know|i would love to know|"
    r"may i ask(?: you)?|can i ask(?: you)?|let me ask(?: you)?|i wonder|say)(?: about)? "
    r"(?=what|which|where|how|when|who|in what|in which|on what|on which)|please )+"
)


@functools.lru_cache(maxsize=50_000)
def meaning(question: str) -> tuple[str, ...] | None:
    """The answer to a question for each city of the list, None where the question is not understood."""
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
        # "The language?" is an open question; so may be what is true of all cities ("Any famous dishes?").
        asked = framed(text).aux == "" and (truth is None or len(bare.split()) <= 3)
        topic = _of_topic(topic_of(bare)) if asked else None
        return topic or (None if truth is None else _of_truth(truth))
    return _of_truth(truth)


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
