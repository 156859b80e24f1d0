"""When a question of Twenty Questions names the object: by a rule of words alone, and by the paper's, of tags."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Sequence

from env_servers.tasks.object_facts import facts
from env_servers.tasks.object_language import ADVERBS, DETERMINERS, lexicon, word_set

Tagger = Callable[[str], Sequence[tuple[str, str]]]

# Words of a question's frame, besides those that the lexicon has before a question and for the object.
FRAME = word_set(
    "is are was it its this that they these those can could would will might may be do does you i we a an the one "
    "think thinking guess guessing believe say call called considered known as simply something anything object thing "
    "item just am of if whether by chance any it's that's i'm i'd i'll you're let's what's my your"
)
ADJECTIVES = word_set("old new young little fresh ripe raw clean dirty broken fancy famous tiny classic favorite")
# Links, and what makes a place or a verb of the name.
OTHERS = word_set("and or but not no nor neither except other than in on at with for near to have has live")
# One of these says that it is the name, and not a verb, that follows.
NAMING = word_set("is are was be it's that's called a an the my your this some")
# What does not count as another noun by the paper's rule.
PAPER_NOUNS = frozenset(("object", "something", "type", "kind"))
REMEMBERED = 2**15
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[^\Wa-z]+")


@functools.cache
def _before_names() -> tuple[frozenset[str], frozenset[str]]:
    """The words that may stand before a name, being no nouns, and the words of all names."""
    words = lexicon()
    frame = {
        word
        for section in ("prefix", "subject")
        for phrases in words.lists[section].values()
        for phrase in phrases
        for word in phrase
    }
    adjectives = {phrase for section in ("adj", "gradable", "color") for phrase in words.phrases[section]}
    adjectives |= {phrase[0] for phrase in words.fillers}
    nouns = {phrase for section in ("noun", "other", "place") for phrase in words.phrases[section]}
    names = frozenset(word for variants in facts().variants for name in variants for word in name.lower().split())
    allowed = frame | FRAME | DETERMINERS | ADVERBS | ADJECTIVES | (adjectives - nouns) | set(words.phrases["color"])
    return frozenset(allowed - names - OTHERS) | {"of"}, names - {"of"}


@functools.lru_cache(maxsize=REMEMBERED)
def names_object(question: str, variants: tuple[str, ...]) -> bool:
    """Whether a question names the object: it ends with one of its names, and names nothing else before.

    Before the name may stand how a question begins ("OK, is it", "I think it is"), articles, adjectives, and what has
    an "of" after it ("a kind of"); no other noun, no "not", "and" or "or". "Is it a black cat?" names the cat, "Is it a
    cat toy?" and "Is it a dog or a cat?" do not.

    Args:
        question: What the agent said.
        variants: The object's names.
    """
    words = _WORD.findall(re.sub(r"[^a-z]+$", "", question.lower().replace("\u2019", "'")))
    allowed, other_names = _before_names()
    names = [variant.lower().split() for variant in variants]
    own = {word for name in names for word in name}
    for name in names:
        if words[-len(name) :] != name:
            continue
        before = words[: -len(name)]
        if before and not NAMING & set(before):
            continue
        following = [*before, name[0]][1:]
        if all(
            word in own or word in allowed or (after == "of" and word not in other_names)
            for word, after in zip(before, following, strict=True)
        ):
            return True
    return False


def names_object_by_tags(question: str, variants: Iterable[str], tag: Tagger) -> bool:
    """The paper's rule: the question ends with a name, and has no noun besides, unless "of" follows it.

    Args:
        question: What the agent said.
        variants: The object's names.
        tag: Gives the words of a text with their tags of the Penn Treebank.
    """
    text = re.sub(r"[^A-Za-z]+$", "", question).lower()
    if not text:
        return False
    tagged = list(tag(text))
    words = [word for word, _ in tagged]
    names = [variant.lower().split() for variant in variants]
    allowed = PAPER_NOUNS | {word for name in names for word in name}
    for (word, kind), after in zip(tagged, [*words[1:], ""], strict=True):
        if kind.startswith("NN") and word not in allowed and after != "of":
            return False
    return any(words[-len(name) :] == name for name in names)


@functools.cache
def nltk_tagger() -> Tagger:
    """NLTK's tokenizer and tagger, for the paper's rule.

    Raises:
        ValueError: NLTK or its data is not installed.
    """
    needs = (
        "twenty_questions: win 'paper' tags words with NLTK: pip install nltk, then "
        "python -m nltk.downloader punkt_tab averaged_perceptron_tagger_eng; or take win 'name', which needs neither"
    )
    try:
        nltk = importlib.import_module("nltk")
    except ModuleNotFoundError:
        raise ValueError(needs) from None

    def tag(text: str) -> Sequence[tuple[str, str]]:
        tagged: Sequence[tuple[str, str]] = nltk.pos_tag(nltk.word_tokenize(text))
        return tagged

    try:
        tag("is it a cat")
    except LookupError:
        raise ValueError(needs) from None
    return tag
