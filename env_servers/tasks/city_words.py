"""From a text to plain words, the first thing that is done with a question about a city.

Words are lower case, without accents, apostrophes and shortened forms: `What's São Paulo's...` reads `what is sao
paulo`. Numbers become `#` and a value, `ten million` and `10,000,000` alike.
"""

from __future__ import annotations

import functools
import re
import unicodedata

APOSTROPHES = str.maketrans(dict.fromkeys("’‘`´ʼ", "'"))
SPECIAL = {"ı": "i", "ß": "s", "ø": "o", "ł": "l", "đ": "d", "æ": "a", "œ": "o"}
SHORT = (
    (re.compile(r"\bcan'?t\b"), "can not"),
    (re.compile(r"\bcannot\b"), "can not"),
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"\bain't\b"), "is not"),
    (re.compile(r"\b(is|are|was|were|do|does|did|has|have|had|could|would|should|might|must)n'?t\b"), r"\1 not"),
    (re.compile(r"\b(what|where|who|how|when|which|it|that|there|he|she|here)'s\b"), r"\1 is"),
    (re.compile(r"\b(whats|wheres|whos|hows)\b"), lambda found: f"{found[1][:-1]} is"),
    (re.compile(r"\blet's\b"), "let us"),
    (re.compile(r"\bi'm\b"), "i am"),
    (re.compile(r"'re\b"), " are"),
    (re.compile(r"'ve\b"), " have"),
    (re.compile(r"'ll\b"), " will"),
    (re.compile(r"\b(it|there|you|i|they)'d\b"), r"\1 would"),
    (re.compile(r"(?<=[a-z0-9])'s\b"), ""),
    # Slips that are other words.
    (re.compile(r"\b(more|less|fewer|[a-z]{3,}er) then\b"), r"\1 than"),
    (re.compile(r"\b(on|near|along|by|to) the cost\b(?! of)"), r"\1 the coast"),
)
# Signs that say what words say: ">5 million", "5 million+", "UTC+9".
SIGNS = (
    (re.compile(r"\b(?:gmt|utc)\s*\+\s*(?=\d)"), "zone plus "),
    (re.compile(r"\b(?:gmt|utc)\s*[-−–]\s*(?=\d)"), "zone minus "),
    (re.compile(r">=|≥"), " at least "),
    (re.compile(r"<=|≤"), " at most "),
    (re.compile(r">"), " more than "),
    (re.compile(r"<"), " less than "),
    (re.compile(r"(\d[\d.,]*\s*(?:k|m|mio|thousand|million|billion|bn)?)\s*\+"), r"at least \1"),
    (re.compile(r"(?<=\w)\s*[;:]\s"), " , "),
    (re.compile(r"&"), " and "),
)
INITIALS = re.compile(r"\b([a-z])\.(?=[a-z]\b)")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
WORD = re.compile(r"\d+\.\d+[a-z]*|[a-z0-9]+|,")
GLUED = re.compile(r"(\d+(?:\.\d+)?)(k|m|mio|million|bn)?")
SENTENCE = re.compile(r"(?<=[.!?])\s+")
# A last question that only asks back: "It is in India. Am I right?"
ASKED_BACK = re.compile(
    r"\W*(?:(?:am i|is (?:that|this|it)) (?:right|correct|true|so)|right|correct|true|yes|no|yes or no|ok(?:ay)?|huh|"
    r"eh|please|if (?:so|yes|not|no)\b.*|(?:and )?(?:which|what) ones?|is(?:n'?t)? it|is it not|are(?:n'?t)? you|"
    r"do(?:n'?t)? you|does(?:n'?t)? it)\W*",
    re.IGNORECASE,
)

UNITS = {
    "hundred": 1e2, "thousand": 1e3, "lakh": 1e5, "million": 1e6, "millions": 1e6, "mio": 1e6, "crore": 1e7,
    "billion": 1e9,
}  # fmt: skip
GLUED_UNITS = {"k": 1e3, "m": 1e6, "mio": 1e6, "million": 1e6, "bn": 1e9}
LARGEST = 1e15
SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
NUMBERS = {word: float(number) for number, word in enumerate(SMALL)} | {
    "thirty": 30.0, "forty": 40.0, "fifty": 50.0, "sixty": 60.0, "seventy": 70.0, "eighty": 80.0, "ninety": 90.0,
    "couple": 2.0,
}  # fmt: skip
ARTICLES = {"a", "an", "the"}


@functools.lru_cache(maxsize=5_000)
def fold_character(character: str) -> str:
    """One lower-case character without accent, or the character itself where it has none."""
    base = unicodedata.normalize("NFD", character)[0].lower()
    return SPECIAL.get(base, base)[:1]


def fold(text: str) -> str:
    """Lower case without accents, character by character: the length stays as it is."""
    return text.lower() if text.isascii() else "".join(map(fold_character, text))


@functools.lru_cache(maxsize=50_000)
def plain(text: str) -> str:
    """The words of a text, commas among them, with one space between; articles are kept."""
    text = fold(unicodedata.normalize("NFC", text)).translate(APOSTROPHES)
    for pattern, whole in (*SHORT, *SIGNS):
        text = pattern.sub(whole, text)
    text = INITIALS.sub(r"\1", text.replace("'", ""))
    return " ".join(WORD.findall(THOUSANDS.sub("", text)))


def last_question(text: str) -> str:
    """The last sentence that is a question, or the whole text where none is.

    A full stop after one or two letters, as in `St. Petersburg`, ends no sentence. Of "It is in India. Am I right?" the
    first sentence is the question.
    """
    parts: list[str] = []
    for part in SENTENCE.split(text):
        if parts and re.search(r"\b\w{1,2}\.$", parts[-1]):
            parts[-1] = f"{parts[-1]} {part}"
        else:
            parts.append(part)
    questions = [number for number, part in enumerate(parts) if part.rstrip("\"' )").endswith("?")]
    if not questions:
        return text
    last = questions[-1]
    return f"{parts[last - 1].rstrip('.!? ')}?" if last and ASKED_BACK.fullmatch(parts[last]) else parts[last]


def without_articles(words: list[str]) -> list[str]:
    """The words that are no article."""
    return [word for word in words if word not in ARTICLES]


def with_numbers(words: list[str]) -> list[str]:
    """The words, each number as one word: `#10000000`."""
    found: list[str] = []
    place = 0
    while place < len(words):
        value, length = _number(words[place:])
        if length:
            found.append(f"#{value:.15g}")
            place += length
        else:
            found.append(words[place])
            place += 1
    return found


def _number(words: list[str]) -> tuple[float, int]:
    """The number that the words begin with and how many words it takes; no words where there is none."""
    first, length = words[0], 1
    if first == "half":
        rest = words[2:] if words[1:2] in (["a"], ["of"]) else words[1:]
        return (0.5 * UNITS[rest[0]], len(words) - len(rest) + 1) if rest and rest[0] in UNITS else (0.0, 0)
    if found := GLUED.fullmatch(first):
        value = min(float(found[1]) * GLUED_UNITS.get(found[2], 1.0), LARGEST)
    elif first in NUMBERS:
        value = NUMBERS[first]
        if value >= 20 and words[1:] and 1 <= NUMBERS.get(words[1], 0) <= 9:
            value, length = value + NUMBERS[words[1]], 2
    elif first in UNITS:
        value, length = 1.0, 0
    else:
        return 0.0, 0
    if first == "couple" and words[1:2] == ["of"]:
        length = 2
    while length < len(words) and words[length] in UNITS:
        value, length = min(value * UNITS[words[length]], LARGEST), length + 1
    return value, length
