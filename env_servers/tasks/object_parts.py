"""What an object has, what it needs, what it is made of, and what it belongs to."""

from __future__ import annotations

from env_servers.tasks.object_facts import Vector
from env_servers.tasks.object_language import ADVERBS, Words, key, noun, word_set
from env_servers.tasks.object_parsing import GENERIC, Parsing, both, opposite, remembered

PARTS = word_set("part piece component element bit surface")
LOOKS = word_set("color shape texture taste surface flavor appearance material feel")
GROUPS = word_set("category family group class kingdom of")


class Parts(Parsing):
    """Parts, needs, materials and kinds."""

    def _category(self, words: Words) -> Vector | None:
        """After "belongs to": "the cat family", "the category of tools"."""
        for section in ("place", "noun"):
            if (vector := self._phrases[section].get(key(words))) is not None:
                return vector
        named = tuple(word for word in words if noun(word) not in GROUPS)
        vector = self.noun_phrase(named) if named != words else None
        return self.noun_phrase(words) if vector is None else vector

    @remembered
    def has(self, words: Words) -> Vector | None:
        """What it has: "four wheels", "a handle", "no legs", "a round shape"."""
        if words[0] in ("no", "not"):
            return opposite(self.has(words[1:]))
        if words[0] in ("something", "anything") and words[1:4] == ("to", "do", "with"):
            return self._topic(words[4:])
        if words[:3] == ("to", "do", "with"):
            return self._topic(words[3:])
        inside = words[-1] == "it" and len(words) > 2 and words[-2] in ("on", "in", "inside", "to")
        words = words[: -3 if words[-3:-2] == ("attached",) and len(words) > 3 else -2] if inside else words
        if (vector := self._comparer.count(words)) is not None:
            return vector
        words = self.bare(words)
        if not words:
            return None
        if (vector := self._phrases["have"].get(key(words))) is not None:
            return vector
        if words[0] in self._phrases["color"] and len(words) > 1:
            return both(self._phrases["color"][words[0]], self.has(words[1:]))  # "red skin"
        if len(words) > 1 and words[:1] in self._lexicon.fillers:
            return self.has(words[1:])
        if len(words) > 1 and words[0] == "animal":
            return both(self.has(words[1:]), self._table.attributes["animal"])
        if len(words) > 1 and noun(words[-1]) in LOOKS and (vector := self.modifier(words[:-1])) is not None:
            return vector
        of_parts = len(words) > 1 and noun(words[-1]) in PARTS
        for section in ("have", "material") if of_parts or inside else ():
            if (vector := self._phrases[section].get(key(words[:-1] if of_parts else words))) is not None:
                return vector
        return self._joined(self.has, words)

    def _another(self, words: Words) -> Vector | None:
        """What no part of the objects is, but a thing of its own: "a house", "a mean dog", "a magical item"."""
        head = self.head(words) if words else None
        if head is None or noun(words[-1]) in LOOKS | PARTS or (head.any() and noun(words[-1]) in GENERIC):
            return None
        return self._table.attributes["nothing"]

    @remembered
    def needs(self, words: Words) -> Vector | None:
        """What it needs to work or to live, or what has to be done to it."""
        words = words[1:] if words[0] == "to" else words
        words = self.bare(words[:-1] if words[-1:] == ("it",) else words)
        if not words:
            return None
        named = key(words)
        for ending in (
            "",
            " to work",
            " to function",
            " to run",
            " to operate",
            " to live",
            " to survive",
            " to grow",
            " to use",
        ):
            if named.endswith(ending) and (vector := self._phrases["need"].get(named.removesuffix(ending))) is not None:
                return vector
        if words[0] == "be" and len(words) > 1:
            return self.predicate(words[1:])
        return self._joined(self.needs, words)

    @remembered
    def material(self, words: Words) -> Vector | None:
        """What it is made of."""
        if words[0] in ADVERBS or words[0] in ("either", "both"):
            return self.material(words[1:])
        if words[0] == "not":
            return opposite(self.material(words[1:]))
        if words[1:3] == ("other", "than") and noun(words[0]) in GENERIC:
            return opposite(self.material(words[3:]))
        named = key(words)
        for name in (named, named.removesuffix(" material")):
            if (vector := self._phrases["material"].get(name)) is not None:
                return vector
        for size in range(1, len(words)):
            made = self._phrases["material"].get(key(words[size:]))
            if made is not None and (vector := self.quality(words[:size])) is not None:
                return made & vector  # "hard plastic"
        return self._joined(self.material, words)

    def _topic(self, words: Words) -> Vector | None:
        named = key(tuple(word for word in words if (word,) not in self._lexicon.fillers and word not in ADVERBS))
        for section in ("topic", "for", "place", "noun"):
            if (vector := self._phrases[section].get(named)) is not None:
                return vector
        return self._joined(self._topic, words) if words else None
