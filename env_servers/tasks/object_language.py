"""English for the questions about objects: sentences as words, base forms of words, and the lexicon.

`assets/object_lexicon.txt` says which phrases stand for which attributes. Phrases of the lexicon and of a question are
brought to one form (`key`): no articles, nouns in the singular, the verb at the beginning in its base form.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from env_servers.tasks.object_facts import LEXICON_FILE, Facts, Vector, facts, lines, read_asset

Words = tuple[str, ...]


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def _pairs(text: str) -> dict[str, str]:
    """What `a:b c:d` says."""
    return {left: right for left, _, right in (pair.partition(":") for pair in text.split())}


DETERMINERS = word_set("a an the some any another your my our their his her its this that these those every each")
# Words that change nothing of what is asked.
ADVERBS = word_set(
    "usually typically generally normally often commonly mostly mainly primarily sometimes ever actually really also "
    "just maybe perhaps probably possibly still even currently likely usual largely widely popularly regularly quite "
    "pretty fairly rather somewhat considered physically ordinarily naturally easily occasionally frequently basically "
    "simply specifically traditionally necessarily particularly especially potentially originally already once very "
    "technically directly roughly approximately about all strictly essentially predominantly most"
)
QUANTIFIERS = (
    ("a", "lot", "of"), ("lots", "of"), ("a", "few"), ("a", "bit", "of"), ("a", "number", "of"), ("plenty", "of"),
    ("one", "or", "more"), ("several",), ("multiple",), ("many",), ("much",),
)  # fmt: skip
SHORTEST_RESPELLED = 5  # letters of a word that is taken for a slip
VERB_SECTIONS = ("use", "you", "it")
PHRASE_SECTIONS = (
    "noun", "other", "adj", "gradable", "color", "have", "need", "material", "place", "where", "for", "by", "when",
    "topic",
)  # fmt: skip
LIST_SECTIONS = ("filler", "prefix", "denial", "suffix", "subject", "people", "core", "real")

_IRREGULAR_NOUNS: Mapping[str, str] = _pairs(
    "leaves:leaf knives:knife feet:foot teeth:tooth children:child kids:kid men:man women:woman mice:mouse "
    "geese:goose wolves:wolf shelves:shelf hooves:hoof buses:bus lenses:lens potatoes:potato tomatoes:tomato "
    "mangoes:mango loaves:loaf movies:movie cookies:cookie veggies:veggie hoodies:hoodie calories:calorie "
    "gas:gas canvas:canvas christmas:christmas canvases:canvas glasses:glasses lungs:lung selfies:selfie "
    "barbies:barbie plushies:plushie "
    "bodies:body batteries:battery dishes:dish axes:axe series:series species:species scarves:scarf halves:half"
)
_IRREGULAR_VERBS = {
    verb: forms.split(",")
    for verb, forms in _pairs(
        "eat:ate,eaten wear:wore,worn make:made,making find:found see:seen buy:bought sell:sold keep:kept "
        "put:put,putting hold:held write:wrote,written draw:drew,drawn drive:drove,driven ride:rode,ridden "
        "fly:flew,flown,flies throw:threw,thrown catch:caught hit:hit,hitting cut:cut,cutting drink:drank,drunk "
        "sit:sat sleep:slept lie:lay,lain,lying lay:laid stand:stood swim:swam,swum run:ran,run,running "
        "grow:grew,grown give:gave,given take:took,taken get:got,gotten,getting have:had,has,having "
        "be:is,are,was,were,been,being,am do:did,done,does go:went,gone,goes come:came,come break:broke,broken "
        "blow:blew,blown read:read hang:hung feel:felt build:built bend:bent shoot:shot burn:burnt teach:taught "
        "think:thought shine:shone spin:spun sing:sung tell:told dig:dug stick:stuck light:lit bite:bit,bitten "
        "hear:heard speak:spoken fall:fell,fallen lose:lost mow:mown bring:brought leave:left say:said know:known "
        "show:shown tie:tying die:dying set:set let:let sew:sewn shut:shut freeze:frozen beat:beaten hide:hidden "
        "steal:stolen weigh:weighs,weighed,weighing rise:risen consider:considered begin:began,begun,beginning "
        "hurt:hurt spread:spread sink:sank,sunk pet:petted,petting travel:traveled,travelled,travelling plug:plugged "
        "use:used,using"
    ).items()
}
# Verbs that the grammar itself knows, besides those of the lexicon.
_MORE_VERBS = word_set(
    "be have need require use find see keep store put buy get sell pay place locate encounter own make compose "
    "construct fabricate build craft manufacture create produce come contain include feature possess weigh cost "
    "measure help allow let enable belong serve function act work live exist fit taste smell feel look sound consist "
    "consider call classify categorize describe regard know refer mean intend design suppose relate associate connect "
    "power cover fill start begin end depend rely take carry leave spot operate consume appear occur stay reside seem "
    "fall grow do go expect link involve display situate happen want label run hunt attach equip form mine harvest "
    "raise lack count qualify class list rank"
)

_SPELLINGS: Mapping[str, str] = _pairs(
    "colour:color colours:colors coloured:colored colourful:colorful grey:gray jewellery:jewelry tyre:tire "
    "tyres:tires metre:meter metres:meters litre:liter centimetre:centimeter centimetres:centimeters "
    "kilometre:kilometer aeroplane:airplane aeroplanes:airplanes favourite:favorite odour:odor flavour:flavor "
    "fibre:fiber mould:mold pyjamas:pajamas theatre:theater licence:license organisation:organization "
    "u:you ur:your smth:something sth:something pls:please plz:please thx:thanks wanna:want doesnt:does~not "
    "dosent:does~not doesent:does~not isnt:is~not dont:do~not cant:can~not wont:will~not "
    "arent:are~not wouldnt:would~not couldnt:could~not shouldnt:should~not hasnt:has~not havent:have~not didnt:did~not "
    "wasnt:was~not werent:were~not im:i~am ive:i~have motorised:motorized mechanised:mechanized mum:mother "
    "its':its tv's:tv televison:television mens:men womens:women childrens:children kid's:kid "
    "cannot:can~not ain't:is~not can't:can~not won't:will~not shan't:shall~not whats:what~is thats:that~is "
    "hes:he~is theyre:they~are youre:you~are y'all:you gotta:have~to "
    "categorised:categorized organise:organize recognise:recognize "
    "fruit's:fruit sofa's:sofa vehical:vehicle brocolli:broccoli elefant:elephant vegatable:vegetable"
)
_IS_SHORT = word_set("it that there what he she this let who where here")
_TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?'?|\d+(?:[.,]\d+)*|[,$]|[^\s]")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE = re.compile(r"(?<!\d)[.]|[.](?!\d)|[?!;:]+")


def sentences(text: str) -> list[tuple[Words, bool]]:
    """The sentences of a text as words, and whether each ends as a question.

    Words are lower-case a-z, numbers, `,`; contractions are written out (`isn't` is `is not`). Another letter or sign
    than those of English stays a word of its own, which nothing in the lexicon has.
    """
    text = re.sub(r"\band\s*/\s*or\b", "or", text.lower()).translate(
        str.maketrans("’‘`“”–—-_/", "'''\"\"    \x00", '"*')
    )
    text = re.sub(r"\.\.+|…", " ", re.sub(r"\([^()]*\)", " ", text)).replace("\x00", " or ").replace("&", " and ")
    text = re.sub(r"\be\.g\.|\bi\.e\.|\bfor example\b", " such as ", text)
    text = re.sub(r"\b(\w+er|more|less) then(?= (?:an? |the |my |your |me\b|you\b|\$|\d))", r"\1 than", text)
    text = re.sub(r"\betc\.", " etc ", text).replace("u.s.", "usa").replace("t.v.", "tv")
    found, place = list[tuple[Words, bool]](), 0
    for stop in itertools.chain(_SENTENCE.finditer(text), [None]):
        end = len(text) if stop is None else stop.start()
        words = tuple(_words(text[place:end]))
        if any(word.isalnum() for word in words):
            found.append((words, stop is not None and "?" in stop.group()))
        elif found and stop is not None and "?" in stop.group():
            found[-1] = (found[-1][0], True)
        place = len(text) if stop is None else stop.end()
    return found


def _words(text: str) -> Iterator[str]:
    money = False
    for token in _TOKEN.findall(text):
        if token == "$":
            money = True
            continue
        if _NUMBER.fullmatch(token):
            yield token.replace(",", "")
            if money:
                yield "dollar"
            money = False
            continue
        yield from _word(token)


def _word(token: str) -> Iterator[str]:
    token = _SPELLINGS.get(token, token)
    if "~" in token:
        yield from token.split("~")
        return
    head, apostrophe, tail = token.partition("'")
    if not apostrophe:
        yield token
    elif tail == "t" and head.endswith("n"):
        yield from (head[:-1], "not")
    elif tail == "s" and head in _IS_SHORT:
        yield from (head, "is" if head != "let" else "us")
    elif tail in _CONTRACTED:
        yield from (head, _CONTRACTED[tail])
    else:  # of a possessive the owner is left
        yield head


_CONTRACTED: Mapping[str, str] = {"re": "are", "ve": "have", "ll": "will", "d": "would", "m": "am"}


@functools.lru_cache(maxsize=8192)
def noun(word: str) -> str:
    """A noun in the singular; of other words something that is the same for all their occurrences."""
    if word in _IRREGULAR_NOUNS:
        return _IRREGULAR_NOUNS[word]
    if word.endswith("men") and len(word) > 5:
        return word[:-2] + "an"
    if len(word) <= 3 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    return word[:-1]


def inflected(verb: str) -> set[str]:
    """The forms of a verb in the base form, itself included; some of them are no English words."""
    stem = verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else verb
    forms = {verb, verb + "s", verb + "es", stem + "ing", stem + "ed", *_IRREGULAR_VERBS.get(verb, [])}
    if verb.endswith("y"):
        forms |= {verb[:-1] + "ies", verb[:-1] + "ied"}
    if re.search(r"[aeiouy][bdglmnprt]$", verb):
        forms |= {verb + verb[-1] + "ing", verb + verb[-1] + "ed"}
    return forms


def without_determiners(words: Sequence[str]) -> Words:
    """The words that are no articles or possessives."""
    return tuple(word for word in words if word not in DETERMINERS)


def key(words: Sequence[str]) -> str:
    """The one form of a phrase of nouns and adjectives; empty for no words."""
    return " ".join(noun(word) for word in words if word not in DETERMINERS)


class Lexicon:
    """The phrases, with their truth values for each object.

    Attributes:
        phrases: By section, vectors by `key`.
        verbs: By section, vectors by the phrase with its verb in the base form; `use+` has those that a thing does.
        lists: By section, phrases as words, by first word and the longest first.
        references: Length, weight, price and height of things to compare with, by `key`.
        names: The objects' names and variants, by `key`; also among the nouns.
        run_together: The same with no spaces in the names.
        bases: The base form of each form of a known verb.
        participles: Forms that are past participles.
    """

    def __init__(self, text: str, table: Facts) -> None:
        self.phrases: dict[str, dict[str, Vector]] = {section: {} for section in PHRASE_SECTIONS}
        self.verbs: dict[str, dict[str, Vector]] = {section: {} for section in (*VERB_SECTIONS, "use+")}
        self.lists: dict[str, dict[str, list[Words]]] = {section: {} for section in LIST_SECTIONS}
        self.references: dict[str, tuple[float, float, float, float]] = {}
        self.names: dict[str, Vector] = {}
        self.bases: dict[str, str] = {}
        self.participles: set[str] = set()
        for name, variants in zip(table.names, table.variants, strict=True):
            for variant in variants:
                self.names[key(variant.lower().split())] = table.only([name])
        self.phrases["noun"] |= self.names
        section = ""
        for line in lines(text):
            if line.startswith("["):
                section = line.strip("[]")
            else:
                self._add(section, line, table)
        verbs = sorted({phrase.split()[0] for held in self.verbs.values() for phrase in held} | _MORE_VERBS)
        # A base form stays one: `lay` is not of `lie`.
        self.bases = {verb: verb for verb in verbs}
        for verb in verbs:
            self._learn(verb)
        for held in self.lists.values():
            for phrases in held.values():
                phrases.sort(key=len, reverse=True)
        self.fillers = {phrase for phrases in self.lists["filler"].values() for phrase in phrases}
        self.run_together = {name.replace(" ", ""): vector for name, vector in self.names.items()}
        named = {word for variants in table.variants for name in variants for word in name.lower().split()}
        self._core = {word for word in named | set(self.lists["core"]) if len(word) >= SHORTEST_RESPELLED}

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """All the words that are in some phrase."""
        phrases = [phrase.split() for held in (*self.phrases.values(), *self.verbs.values()) for phrase in held]
        phrases += [list(phrase) for held in self.lists.values() for listed in held.values() for phrase in listed]
        return frozenset(word for phrase in phrases for word in phrase) | set(self.bases) | ADVERBS | DETERMINERS

    def respelled(self, word: str) -> str:
        """A word that means nothing as the word of the game that it is one slip away from, if it can only be one."""
        if len(word) < SHORTEST_RESPELLED or not word.isalpha() or word in self.words or noun(word) in self.words:
            return word
        cuts = [(word[:place], word[place:]) for place in range(1, len(word) + 1)]
        slips = {head + tail[1:] for head, tail in cuts}
        slips |= {head + tail[1] + tail[0] + tail[2:] for head, tail in cuts if len(tail) > 1}
        for letter in "abcdefghijklmnopqrstuvwxyz":
            slips |= {head + letter + kept for head, tail in cuts for kept in (tail, tail[1:])}
        meant = slips & self._core
        return meant.pop() if len(meant) == 1 else word

    def _add(self, section: str, line: str, table: Facts) -> None:
        left, _, right = line.partition("=")
        agentive = left.startswith("+ ")
        phrases = [phrase for item in left.removeprefix("+ ").split(",") for phrase in _alternatives(item)]
        if section in LIST_SECTIONS:
            for phrase in phrases:
                self.lists[section].setdefault(phrase[0], []).append(phrase)
        elif section == "ref":
            length, weight, price, height = map(float, right.split())
            for phrase in phrases:
                self.references[key(phrase)] = (length, weight, price, height)
        elif section == "color":
            for phrase in phrases:
                self._keep("color", key(phrase), table.attributes[f"color_{right.strip() or phrase[0]}"])
        elif section == "other":
            for phrase in phrases:
                self.phrases["other"].setdefault(key(phrase), table.attributes["nothing"])
        else:
            try:
                vector = table.evaluate(right)
            except ValueError as error:
                raise ValueError(f"{LEXICON_FILE}, [{section}], line {line!r}: {error}") from None
            for phrase in phrases:
                if section in VERB_SECTIONS:
                    self._keep(section, " ".join((phrase[0], *map(noun, without_determiners(phrase[1:])))), vector)
                    if agentive:
                        self.verbs["use+"][" ".join((phrase[0], *map(noun, phrase[1:])))] = vector
                else:
                    self._keep(section, key(phrase), vector)

    def _keep(self, section: str, phrase: str, vector: Vector) -> None:
        held = (self.verbs if section in VERB_SECTIONS else self.phrases)[section]
        if phrase in held and not (held[phrase] == vector).all():
            raise ValueError(f"{LEXICON_FILE}, [{section}]: {phrase!r} stands for two different things")
        held[phrase] = vector

    def _learn(self, verb: str) -> None:
        for form in inflected(verb):
            self.bases.setdefault(form, verb)
        irregular = _IRREGULAR_VERBS.get(verb, [])
        self.participles |= {form for form in inflected(verb) if form.endswith("ed")}
        self.participles |= {form for form in irregular if not form.endswith(("ing", "s"))}

    def starts(self, section: str, words: Sequence[str]) -> int:
        """How many words the longest phrase of a list section takes at the beginning; 0 where none does."""
        for phrase in self.lists[section].get(words[0], ()) if words else ():
            if tuple(words[: len(phrase)]) == phrase:
                return len(phrase)
        return 0

    def ends(self, section: str, words: Sequence[str]) -> int:
        """How many words the longest phrase of a list section takes at the end; 0 where none does."""
        longest = 0
        for size in range(1, min(len(words), 6) + 1):
            tail = tuple(words[-size:])
            if tail in self.lists[section].get(tail[0], ()):
                longest = size
        return longest

    def verb_phrase(self, words: Sequence[str]) -> str:
        """A phrase with its verb at the beginning in the base form."""
        if not words:
            return ""
        first = self.bases.get(words[0], words[0])
        return " ".join((first, *(noun(word) for word in words[1:] if word not in DETERMINERS)))


def _alternatives(item: str) -> Iterable[Words]:
    """The phrases that `cut/slice ~/thing/big_thing` stands for."""
    choices = [word.split("/") for word in item.split()]
    for chosen in itertools.product(*choices):
        phrase = tuple(word for part in chosen if part != "~" for word in part.split("_"))
        if phrase:
            yield phrase


@functools.cache
def lexicon() -> Lexicon:
    """The lexicon, read once per process."""
    return Lexicon(read_asset(LEXICON_FILE), facts())
