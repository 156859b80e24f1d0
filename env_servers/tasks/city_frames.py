"""What stands around the predicate of a question: polite openings, subject, auxiliary verb, "right?" at the end.

"Could you tell me if the city you are from is in Asia?", "Is your city in Asia, right?" and "In Asia?" come out alike.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from env_servers.tasks.city_facts import Cities
from env_servers.tasks.city_words import NUMBERS, UNITS, with_numbers, without_articles

SIDE = r"(?:(?:north|south|east|west|northeast|northwest|southeast|southwest|central)(?:ern)?)"
DIVIDED = (
    "americas?|american|asian?|africa|african|europe|european|koreas?|korean|india|indian|china|chinese|brazil|brazilian|"
    "coast"
)
NUMBER = rf"(?:\d[\d.]*[a-z]*(?: (?:{'|'.join(UNITS)}))?|(?:{'|'.join(NUMBERS)}|half a|a) (?:{'|'.join(UNITS)}))"
SOULS = r"(?: people| inhabitants| residents| citizens)?"
MORE = r"(?:more than|over|above|greater than|larger than|bigger than|exceed(?:s|ing)?)"
LESS = r"(?:less than|fewer than|under|below|smaller than)"


def _rules(*rules: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns, each with what is put in its place."""
    return tuple((re.compile(pattern), instead) for pattern, instead in rules)


# The names that people use for the hidden city become `it`, those for its country `itsland`.
SUBJECTS = _rules(
    (
        r"\b(?:the|your|this|that|its|their|my) "
        r"(?:home ?|native |birth ?|mystery |secret |hidden |unknown |target |chosen )?"
        r"(?:city|town|place|hometown|metropolis|location|municipality|home(?! to\b))"
        r"(?: (?:that |which |where )?(?:you|he|she|they|i) (?:are|were|was|am|live|lived|come|came|have|had|grew)"
        r"(?: (?:from|in|born in|living in|thinking of|thinking about|talking about|up in|raised in|in mind"
        r"|describing|referring to))?)?(?: in question)?\b(?! of\b)",
        "it",
    ),
    (r"\bwhere (?:you|they) (?:are from|live|come from|were born|grew up|are)\b", "it"),
    (
        r"\b(?:the|your|its|this|that|their) (?:home |native )?(?:country(?: of origin)?|nation|homeland)\b",
        "itsland",
    ),
    (r"\bitsland (?:that |which )?(?:it is in|you (?:are|live|come) (?:from|in))\b", "itsland"),
)
REWRITTEN = _rules(
    (
        r"\b(?:largest|biggest|dominant|predominant|prevalent|"
        r"most (?:common|popular|widespread|important|practiced|spoken)) (religion|language|sport|faith|industry)\b",
        r"main \1",
    ),
    (r"\b(largest|biggest|most populous) (in|of|on) ", r"\1 city \2 "),
    (r"\brich (history|culture|cultural|heritage|traditions?)\b", r"\1"),
    (r"\bcars (?=drive|driven|driving)", "people "),
    (r"\b(?:get by|manage|communicate|converse|get around) (?:with|in|by speaking|using)\b", "speak"),
    (r"^are (?:we|you) (?:talking|speaking|thinking) (?:about|of) ", "is it "),
    (r"\b(has|have) (it|you|they|people) got\b", r"\1 \2"),
    (r"\b(?:at|in|on) or (?=near |close to |next to )", ""),
    (r"\b(?:other than|anything but|anywhere but|apart from|aside from|not counting)\b", "not"),
    (r"\bno longer (?:the |a )?capital\b", "former capital"),
    (
        r"\bcapital (?:city )?of (?:an? |the |its |some )?(?:great |large |ancient |powerful )?empire\b",
        "imperial capital",
    ),
    # "Would you call it a big city?"
    (
        r"^(?:would|do|could|can|should) (?:you|we|people|one|i) (?:consider|call|describe|classify|regard|count) "
        r"(it|itsland)(?: as| to be)? ",
        r"is \1 ",
    ),
    # times
    (r"\b(?:world war (?:2|ii|two|1|i|one)|(?:second|first) world war|ww ?2|ww ?1|wwii|wwi)\b", "war"),
    (r"\b(?:before christ|before our era|in bc)\b", "before 1"),
    (r"^(did (?:\w+ ){1,4})found (it|itsland)\b", r"\1establish \2"),
    (
        r"\b(founded|built|established) (?:in|during) (?:the )?(?:middle ages|medieval (?:times|period))\b",
        r"\1 between 500 and 1500",
    ),
    (r"(\d+(?:\.5)?) hours? (?:ahead of|before) (?:gmt|utc|greenwich|london)\b", r"zone plus \1"),
    (r"(\d+(?:\.5)?) hours? behind (?:gmt|utc|greenwich|london)\b", r"zone minus \1"),
    # "north or south of the equator" is "north of the equator or south of the equator"
    (
        r"(?<!middle )(?<!near )(?<!far )\b((?:north|south|east|west)(?:ern)?) (or|and) (?:in )?(?:the )?"
        r"((?:north|south|east|west)(?:ern)?) (of (?:\w+ ?)+|hemisphere|part.*|half.*)",
        r"\1 \4 \2 \3 \4",
    ),
    # "North, Central or South America" is "North America, Central America or South America"
    (
        rf"(?<!middle )(?<!near )(?<!far )\b({SIDE}) (,|or|and|nor) (?=(?:{SIDE} (?:, )?(?:,|or|and|nor) )*"
        rf"{SIDE} ({DIVIDED})\b)",
        r"\1 \3 \2 ",
    ),
    # "five million or more" is "at least five million"; of "more than five million or less" only the first is asked
    (rf"({NUMBER}{SOULS}) (?:or|and) (?:more|above|over|up|larger|bigger|higher|greater)\b", r"at least \1"),
    (rf"({NUMBER}{SOULS}) (?:or|and) (?:less|fewer|below|under|smaller|lower)\b", r"at most \1"),
    (rf"\b({MORE} {NUMBER}.*?) or (?:less|fewer|below|under|smaller|not)\b(?: than (?:it|that))?$", r"\1"),
    (rf"\b({LESS} {NUMBER}.*?) or (?:more|above|over|larger|bigger|not)\b(?: than (?:it|that))?$", r"\1"),
)
POLITE = re.compile(
    r"^(?:(?:so|ok|okay|well|hmm|then|now|alright|thanks|thank you|interesting|i see|great|please|hi|hello|and|also|,|"
    r"(?:can|could|would|will) you (?:please )?(?:tell me|say|confirm|let me know)(?: if| whether| that)?|"
    r"i (?:would like|want|need) to (?:know|ask)(?: if| whether)?|i (?:was )?wonder(?:ing)? (?:if|whether)|"
    r"(?:please )?tell me (?:if|whether)|do you know (?:if|whether)|"
    r"(?:is|would) it (?:be )?(?:true|correct|right|accurate|fair|(?:fair|right|correct|true|accurate) to say)"
    r"(?: (?:that|if|to say)(?: i say)?(?: that)?)(?= )|"
    r"am i (?:right|correct) (?:that|in (?:thinking|saying|assuming)(?: that)?)|would you say(?: that)?|what about|"
    r"how about|(?:i|we) (?:think|guess|believe|assume|suppose|bet|know|see|take it|gather|heard|would say|would guess)"
    r"(?: that)?|(?:next|my|another|one more|first|second|last|new) (?:next |last |first )?question(?: is)?|"
    r"yes or no|true or false|let us see|just to confirm|by any chance|(?:right|good|cool|nice|perfect|aha|ah|oh) ,) )+"
)
# "Is it false that it is in Asia?"
UNTRUE = re.compile(
    r"^(?:is|would) (?:(?:not it|it not) (?:be )?(?:true|correct|right|so|case)|"
    r"it (?:be )?(?:false|untrue|wrong|incorrect|lie))"
    r"(?: (?:that|if|to say)(?: i say)?(?: that)?) "
)
TAG = re.compile(
    r"(?: ,? ?(?:(?<!on )(?<!hand )(?<!on its )right|correct|yes|or not|please|then|by any chance|is it|is it not|"
    r"is not it|are they|are not they|does it|does not it|do they|do not they|are you|are not you|do you|do not you|"
    r"is there|is not there|are there|are not there|was it|was not it|did it|did not it|has it|has not it|"
    r"am i right|is that right|is that correct|is that so|thanks|thank you|"
    r"or (?:not|no|is it not|is it|elsewhere|something(?: else)?|(?:some ?where|some ?place|anywhere|any ?place) else|"
    r"(?:in |on )?(?:another|other|different) (?:continent|country|place|region|part)s?)))+$"
)
OPENING = re.compile(
    r"^(?P<aux>am|is|are|was|were|does|do|did|has|have|had|can|could|would|will|should|may|might)(?P<not> not)?"
    r"(?: (?P<subject>it|this|that|there|they|you|people|locals|residents|inhabitants|citizens|itsland|we|one|i|"
    r"everyone|everybody|(?:most|many|some) (?:of )?(?:people|locals|residents|inhabitants|citizens|them)))?(?= |$)"
)
STATEMENT = re.compile(
    r"^(?P<subject>it|this|that|there|they|you|people|itsland) (?:(?P<aux>is|are|was|were|has|have|do|does|can) )?"
)
# All that hold words of English.
FRAME_PATTERNS = (POLITE, UNTRUE, TAG, OPENING, STATEMENT, *(pattern for pattern, _ in (*SUBJECTS, *REWRITTEN)))
# What an answer calls whom the question is about.
ANSWERED = {"i": "you", "we": "you", "you": "i", "one": "you", "this": "it", "that": "it", "itsland": "it"}
PLURAL = {"are", "were", "do", "have"}
# "Would it be in Asia?" is answered by "it is"; "would I find" by "you would".
POSSIBLE = {"could", "may", "might", "should", "will", "would"}


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
        # Nor does the verb tell here who is meant: "Did the British rule it?"
        if not denied and (not self.aux or (self.aux, self.subject) == ("did", "")):
            return Truth(cities, "Yes, that is so.", "No, that is not so.")
        echo = _echo(self.aux, self.subject)
        not_so = echo.replace(" can", " cannot") if self.aux == "can" else f"{echo} not"
        if denied:
            echo, not_so = not_so, echo
        return Truth(cities, f"Yes, {echo}.", f"No, {not_so}.")


@functools.cache
def _echo(verb: str, subject: str) -> str:
    """What an answer repeats of the question: `it is`, `they do`, `I was`, `you can`."""
    if not verb or (verb in POSSIBLE and subject not in ("i", "you", "we", "one", "they", "people")):
        return "it is"
    if subject:
        who = ANSWERED.get(subject, subject if subject in ("it", "there", "they") else "they")
    else:
        who = "they" if verb in PLURAL else "you" if verb == "can" else "it"
    if who == "i":
        return f"I {'am' if verb == 'are' else 'was' if verb == 'were' else verb}"
    if who in ("you", "they"):
        verb = {"am": "are", "is": "are", "was": "were", "has": "have", "does": "do"}.get(verb, verb)
    return f"{who} {verb}"


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
    if (untrue := UNTRUE.match(rest)) is not None:
        rest = rest[untrue.end() :]
        frame = _frame(rest, STATEMENT.match(f"{rest} "))
        return frame._replace(denied=not frame.denied)
    return _frame(rest, OPENING.match(rest) or STATEMENT.match(f"{rest} "))


def _frame(text: str, opening: re.Match[str] | None) -> Frame:
    parts = {} if opening is None else opening.groupdict()
    words = with_numbers(text[0 if opening is None else opening.end() :].split())
    denied, subject = parts.get("not") is not None, parts.get("subject") or ""
    if not denied and words[:1] == ["not"]:
        denied, words = True, words[1:]
    if subject.startswith("most "):
        words = ["most", *words]  # "Do most people speak Spanish?" asks for the main language
    return Frame(parts.get("aux") or "", subject, denied, words)
