"""What stands around the predicate of a question: polite openings, subject, auxiliary verb, "right?" at the end.

"Could you tell me if the city you are from is in Asia?", "Is your city in Asia, right?" and "In Asia?" come out alike.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from env_servers.tasks.city_facts import Cities
from env_servers.tasks.city_words import with_numbers, without_articles

# The names that people use for the hidden city become `it`, those for its country `itsland`.
SUBJECTS = (
    (
        re.compile(
            r"\b(?:the|your|this|that|its|their|my) (?:home ?|native |birth ?)?"
            r"(?:city|town|place|hometown|metropolis|location)"
            r"(?: (?:that |which |where )?(?:you|he|she|they|i) (?:are|were|was|am|live|lived|come|came|have|had|grew)"
            r"(?: (?:from|in|born in|living in|thinking of|thinking about|talking about|up in|raised in|in mind"
            r"|describing|referring to))?)?(?: in question)?\b(?! of\b)"
        ),
        "it",
    ),
    (re.compile(r"\bwhere (?:you|they) (?:are from|live|come from|were born|grew up|are)\b"), "it"),
    (re.compile(r"\b(?:the|your|its|this|that|their) (?:home |native )?(?:country|nation|homeland)\b"), "itsland"),
    (re.compile(r"\bitsland (?:that |which )?(?:it is in|you (?:are|live|come) (?:from|in))\b"), "itsland"),
)
REWRITTEN = (
    (
        re.compile(
            r"\b(?:largest|biggest|dominant|predominant|prevalent|"
            r"most (?:common|popular|widespread|important|practiced|spoken)) (religion|language|sport|faith|industry)\b"
        ),
        r"main \1",
    ),
    (re.compile(r"\b(largest|biggest|most populous) (in|of|on) "), r"\1 city \2 "),
    (re.compile(r"\brich (history|culture|cultural|heritage|traditions?)\b"), r"\1"),
    (re.compile(r"\bcars (?=drive|driven|driving)"), "people "),
    (re.compile(r"\b(?:before christ|before our era|in bc)\b"), "before 1"),
    # "north or south of the equator" is "north of the equator or south of the equator"
    (
        re.compile(
            r"(?<!middle )(?<!near )(?<!far )\b((?:north|south|east|west)(?:ern)?) (or|and) "
            r"((?:north|south|east|west)(?:ern)?) (of (?:\w+ ?)+|hemisphere|part.*|half.*)"
        ),
        r"\1 \4 \2 \3 \4",
    ),
)
POLITE = re.compile(
    r"^(?:(?:so|ok|okay|well|hmm|then|now|alright|thanks|thank you|interesting|i see|great|please|hi|hello|and|also|,|"
    r"(?:can|could|would|will) you (?:please )?(?:tell me|say|confirm|let me know)(?: if| whether| that)?|"
    r"i (?:would like|want|need) to (?:know|ask)(?: if| whether)?|i (?:was )?wonder(?:ing)? (?:if|whether)|"
    r"(?:please )?tell me (?:if|whether)|do you know (?:if|whether)|is it (?:true|correct|right|fair to say) that|"
    r"am i (?:right|correct) that|would you say(?: that)?|what about|how about|i think(?: that)?|i guess(?: that)?|"
    r"let us see|just to confirm|by any chance) )+"
)
TAG = re.compile(
    r"(?: ,? ?(?:(?<!on )(?<!hand )right|correct|yes|or not|please|then|by any chance|is it|is it not|is not it|"
    r"does it|does not it|do they|do not they|are not you|do not you|am i right|is that right|is that correct))+$"
)
OPENING = re.compile(
    r"^(?P<aux>is|are|was|were|does|do|did|has|have|had|can|could|would|will|should|may|might)(?P<not> not)?"
    r"(?: (?P<subject>it|this|that|there|they|you|people|locals|residents|inhabitants|citizens|itsland|we|one|i|"
    r"everyone|most people|many people|some people))?(?= |$)"
)
STATEMENT = re.compile(r"^(?:it|this|that|there|they|you|itsland)(?: (?:is|are|was|were|has|have|do|does|can))? ")
# What an answer repeats of the question: by auxiliary verb and subject, the fact and its opposite.
ECHOES = {
    ("are", "you"): ("I am", "I am not"),
    ("were", "you"): ("I was", "I was not"),
    ("do", "you"): ("I do", "I do not"),
    ("did", "you"): ("I did", "I did not"),
    ("have", "you"): ("I have", "I have not"),
    ("is", "there"): ("there is", "there is not"),
    ("are", "there"): ("there are", "there are not"),
    ("was", "there"): ("there was", "there was not"),
    ("were", "there"): ("there were", "there were not"),
    ("are", ""): ("they are", "they are not"),
    ("were", ""): ("they were", "they were not"),
    ("do", ""): ("they do", "they do not"),
    ("have", ""): ("they have", "they have not"),
    ("does", ""): ("it does", "it does not"),
    ("did", ""): ("it did", "it did not"),
    ("has", ""): ("it has", "it has not"),
    ("had", ""): ("it had", "it had not"),
    ("was", ""): ("it was", "it was not"),
    ("can", "it"): ("it can", "it cannot"),
    ("can", ""): ("you can", "you cannot"),
}


class Truth(NamedTuple):
    """A yes/no question, understood.

    Attributes:
        cities: Those for which the answer is yes.
        yes: The answer in words where it is yes.
        no: The answer in words where it is no.
    """

    cities: Cities
    yes: str
    no: str


class Frame(NamedTuple):
    """A question without what stands around its predicate.

    Attributes:
        aux: The auxiliary verb that it begins with, empty for a bare statement ("In Europe?").
        subject: What follows it; `itsland` for the country.
        denied: Whether `not` stands there ("Isn't it", "Is it not").
        words: The predicate, without articles, numbers as `#5`.
    """

    aux: str
    subject: str
    denied: bool
    words: list[str]

    def answered(self, cities: Cities, *, denied: bool = False) -> Truth:
        """Yes or no, and the fact itself in words, so that a question with `not` is answered without doubt."""
        echo = ECHOES.get((self.aux, self.subject)) or ECHOES.get((self.aux, "")) or ("it is", "it is not")
        so, not_so = reversed(echo) if denied else echo
        return Truth(cities, f"Yes, {so}.", f"No, {not_so}.")


def simplified(text: str) -> str:
    """Plain words, with the names for the city as `it` and those for its country as `itsland`."""
    text = POLITE.sub("", f"{text} ").strip()
    for pattern, instead in (*SUBJECTS, *REWRITTEN):
        text = pattern.sub(instead, text)
    return text


def without_tag(text: str) -> str:
    """Without "right?" or "isn't it?" at the end."""
    return TAG.sub("", text)


def framed(text: str) -> Frame:
    """Take a question apart.

    Args:
        text: As `simplified` gives it.
    """
    rest = without_tag(" ".join(without_articles(text.split())))
    opening = OPENING.match(rest)
    if opening is None:
        words = with_numbers(STATEMENT.sub("", f"{rest} ").split())
        denied = words[:1] == ["not"]
        return Frame("", "", denied, words[1:] if denied else words)
    words = with_numbers(rest[opening.end() :].split())
    denied = opening["not"] is not None
    if not denied and words[:1] == ["not"]:
        denied, words = True, words[1:]
    return Frame(opening["aux"], opening["subject"] or "", denied, words)
