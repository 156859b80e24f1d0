"""Partners: who speaks for the environment in the dialogue tasks (an oracle that answers questions, a buyer).

What an episode scores depends on its partner, so a partner has a name and a revision, which every record holds. A
partner answers a batch of queries at once, since a language model is far faster so, and keeps no state between them:
all that it may use is in the query. So an answer does not depend on what is asked beside it or has been asked before.
"""

from __future__ import annotations

import importlib
import inspect
import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from env_servers.seeding import hash_seed
from env_servers.task import EpisodeError


class Exchange(NamedTuple):
    """What the agent said and what the partner answered, in full."""

    text: str
    answer: str


class Query(NamedTuple):
    """One thing to answer.

    Attributes:
        task: Task id.
        secret: What the partner knows and the agent has to find out or to live with (JSON values).
        exchanges: All finished exchanges of the episode.
        text: What the agent says now.
        seed: The partner's seed in this episode, the same throughout it.
        prefix: How the answer has to begin, where the task insists on something; most often empty.
    """

    task: str
    secret: Mapping[str, Any]
    exchanges: Sequence[Exchange]
    text: str
    seed: int
    prefix: str = ""

    def rng(self) -> random.Random:
        """The generator for this answer, the only source of randomness a partner may use."""
        return random.Random(hash_seed("answer", self.seed, len(self.exchanges), self.prefix))

    def once(self) -> random.Random:
        """A generator that begins anew at each answer, for what a partner draws once for the whole episode."""
        return random.Random(hash_seed("partner once", self.seed))


class Answer(NamedTuple):
    """What a partner says.

    Attributes:
        text: Without trailing newline.
        understood: False where the partner could not make sense of what it was asked, and says so by its own rule.
        source: Where the answer comes from, if a partner has several sources (`exact`, `fallback`, ...); counted in
            results.
        usage: Tokens that it cost, by kind, where it cost any.
    """

    text: str
    understood: bool = True
    source: str | None = None
    usage: Mapping[str, int] | None = None


class Interaction(NamedTuple):
    """A question and its answer, with all that the answer may depend on: what is kept of a partner.

    Attributes:
        task: Task id.
        secret: What the partner knew (JSON values).
        history: A hash of the exchanges before it; None where the answer does not depend on them.
        seed: The partner's seed in that episode; None where the answer does not depend on it.
        question: What the agent said.
        prefix: How the answer had to begin, most often empty.
        answer: What the partner said.
        understood: Whether it made sense of the question; None if that is not known.
        partner: Its name.
        revision: Its revision.
        times: How often this happened.
    """

    task: str
    secret: Mapping[str, Any]
    history: str | None
    seed: int | None
    question: str
    prefix: str
    answer: str
    understood: bool | None
    partner: str
    revision: str
    times: int = 1


class Partner(Protocol):
    """Anything that answers queries, one answer for each, in order."""

    @property
    def name(self) -> str:
        """Such as `knowledge`, or a model's repository."""
        ...

    @property
    def revision(self) -> str:
        """Changes whenever an answer would: a version, or a commit."""
        ...

    def answer(self, queries: Sequence[Query]) -> Sequence[Answer | EpisodeError]:
        """One answer for each query; an error in the place of an answer fails that episode alone."""
        ...


class AnsweringPartner:
    """A partner from a function of one query, which must draw only from the query's generators."""

    def __init__(self, name: str, revision: str, reply: Callable[[Query], Answer]) -> None:
        self.name = name
        self.revision = revision
        self._reply = reply

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        """Answer each query on its own."""
        return [self._reply(query) for query in queries]


KNOWLEDGE = "knowledge"
# A partner can be any program, address or bill: of a task with these options, a stranger has its own.
GUARDED: Mapping[str, Collection[Any]] = {"partner": (KNOWLEDGE,), "partner_options": ({}, None)}
# Kinds of partners besides a task's own, as text: this room must not import the rooms that they need. Each is a
# function of the task's id and of what follows the colon, with the options as keyword arguments, that gives a partner.
PARTNERS: Mapping[str, str] = {
    "replay": "hub_datasets.replay:replay_partner",
    "model": "trainers.model_partner:model_partner",
    "openai": "env_servers.api_partner:api_partner",
}
# Options of every kind that asks another partner where it has no answer itself: that one's name and options.
FALLBACK, FALLBACK_OPTIONS = "fallback", "fallback_options"


def check_partner(task: str, partner: str, options: Mapping[str, Any]) -> None:
    """Raise a ValueError unless `find_partner` knows the kind; nothing is loaded."""
    if not isinstance(partner, str) or not isinstance(options, Mapping):
        raise ValueError(f"{task}: partner is {partner!r} with options {options!r}; it must be a text with a mapping")
    kind, _, argument = partner.partition(":")
    if partner == KNOWLEDGE:
        if options:
            raise ValueError(f"{task}: partner {KNOWLEDGE!r} takes no options, got {dict(options)}")
    elif kind not in PARTNERS or not argument:
        raise ValueError(
            f"{task}: partner is {partner!r}; allowed: {KNOWLEDGE}, replay:<dataset[@revision] or recorded file>, "
            "model:<repository[@revision]>, openai:<model>@<base URL>"
        )
    if FALLBACK in options:
        check_partner(task, options[FALLBACK], options.get(FALLBACK_OPTIONS, {}))
    elif FALLBACK_OPTIONS in options:
        raise ValueError(f"{task}: there are {FALLBACK_OPTIONS}, but no {FALLBACK} that they are for; name one")


def find_partner(task: str, partner: str, options: Mapping[str, Any], own: Callable[[], Partner]) -> Partner:
    """A partner by its name, made once per process, so that all episodes share one model.

    Args:
        task: Task id.
        partner: `knowledge`, the task's own; or `<kind>:<what>`, see `PARTNERS`.
        options: Keyword arguments of that kind (JSON values). `fallback` and `fallback_options` name another partner.
        own: Gives the task's own.

    Raises:
        ValueError: No such kind or option.
        FileNotFoundError: What it needs is not there.
    """
    check_partner(task, partner, options)
    if partner == KNOWLEDGE:
        return own()
    given = dict(options)
    fallback: Partner | None = None
    if FALLBACK in given:
        fallback = find_partner(task, given.pop(FALLBACK), given.pop(FALLBACK_OPTIONS, {}), own)
    identity = None if fallback is None else (fallback.name, fallback.revision)
    key = (task, partner, json.dumps(given, sort_keys=True), identity)
    if key not in _made:
        _made[key] = _make(task, partner, given if fallback is None else {**given, FALLBACK: fallback})
    return _made[key]


_made: dict[tuple[str, str, str, tuple[str, str] | None], Partner] = {}


def _make(task: str, partner: str, options: Mapping[str, Any]) -> Partner:
    kind, _, argument = partner.partition(":")
    module, _, name = PARTNERS[kind].partition(":")
    function = getattr(importlib.import_module(module), name)
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(f"{task}: partner {kind!r} has no option {option!r}; known: {', '.join(known)}")
    made: Partner = function(task, argument, **options)
    return made


class Tally:
    """What an episode's record says of its partner, for a task's `info`."""

    def __init__(self) -> None:
        self.not_understood = 0
        self._sources: dict[str, int] = {}

    def count(self, answer: Answer) -> None:
        """Count one more answer."""
        self.not_understood += not answer.understood
        if answer.source is not None:
            self._sources[answer.source] = self._sources.get(answer.source, 0) + 1

    def info(self, partner: Partner | None) -> dict[str, Any]:
        """How many questions it did not understand, its name and revision, and how many answers came from where."""
        info: dict[str, Any] = {"not_understood": self.not_understood}
        if partner is not None:
            info |= {"partner": partner.name, "partner_revision": partner.revision}
        if self._sources:
            info["answer_sources"] = dict(self._sources)
        return info


def is_of(info: Mapping[str, Any], partner: Partner) -> bool:
    """Whether an episode's record is of this very partner, at its present revision."""
    return (info.get("partner"), info.get("partner_revision")) == (partner.name, partner.revision)


def recorded_answers(answers: Iterable[Any]) -> list[str]:
    """The answers of an episode's record, checked.

    Raises:
        EpisodeError: One is no text.
    """
    found = list(answers)
    for number, answer in enumerate(found):
        if not isinstance(answer, str):
            raise EpisodeError(f"the record's answer {number} is {answer!r}; it must be a text")
    return found
