"""The house of Text-Nav: its rooms and things, and what each command does to them (LMRL-Gym, appendix C.2).

Nothing here is random and nothing pays: texts that vary from episode to episode, rewards and ends of episodes are
in `text_nav`. The messages are those of a TextWorld game, also for commands that are unknown or impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

# Exits in alphabetical order, which is their order in texts and in the list of commands.
ROOMS: Mapping[str, Mapping[str, str]] = {
    "bedroom": {"south": "bathroom", "west": "living room"},
    "bathroom": {"north": "bedroom", "west": "office"},
    "office": {"east": "bathroom", "north": "living room"},
    "living room": {"east": "bedroom", "south": "office", "west": "dining room"},
    "kitchen": {"east": "dining room", "north": "garden", "west": "backyard"},
    "dining room": {"east": "living room", "west": "kitchen"},
    "garden": {"south": "kitchen"},
    "backyard": {"east": "kitchen"},
}
# No room has more than one piece.
FURNITURE: Mapping[str, str] = {
    "bedroom": "table",
    "office": "chest",
    "living room": "table",
    "kitchen": "fridge",
    "dining room": "table",
}
CONTAINERS = frozenset({"chest", "fridge"})
FOOD = frozenset({"stale food", "fresh food", "fruit"})

# A place is `you`, `eaten`, `<room> floor` or `<room> <furniture>`.
YOU, EATEN = "you", "eaten"
FRIDGE = "kitchen fridge"
FLOORS: Mapping[str, str] = {room: f"{room} floor" for room in ROOMS}
ON_FURNITURE: Mapping[str, str] = {room: f"{room} {piece}" for room, piece in FURNITURE.items()}
ROOM_OF: Mapping[str, str] = {place: room for places in (FLOORS, ON_FURNITURE) for room, place in places.items()}
THINGS: Mapping[str, str] = {
    "stale food": "living room table",
    "fresh food": "living room table",
    "bowl": "bedroom table",
    "coffee cup": "dining room table",
    "plate": "dining room table",
    "utensils": "office chest",
    "fruit": FRIDGE,
}

DIRECTIONS = frozenset({
    "north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest", "up", "down", "in", "out",
})  # fmt: skip
_FIRST_WORDS: Mapping[str, str] = {
    "n": "go north", "s": "go south", "e": "go east", "w": "go west", "walk": "go", "get": "take", "shut": "close",
    "l": "look", "x": "examine", "i": "inventory", "z": "wait",
    **{direction: f"go {direction}" for direction in DIRECTIONS},
}  # fmt: skip
_ARTICLES = frozenset({"a", "an", "the"})


class Outcome(NamedTuple):
    """What a command did.

    Attributes:
        message: The game's sentence; empty where `shows` says what is to be described.
        legal: Whether the game carried the command out. If not, nothing has changed.
        shows: `room`, or the thing or piece of furniture that the player examines.
    """

    message: str
    legal: bool = True
    shows: str = ""


def _refuse(message: str) -> Outcome:
    return Outcome(message, legal=False)


_UNSEEN = _refuse("You can't see any such thing.")


def with_article(name: str) -> str:
    """`a table`, `an office`. The choice is by letter, as in TextWorld: `an utensils`."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def enumerate_words(words: Iterable[str]) -> str:
    """`east`, `east and west`, `east, south and west`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _split(names: str, *prepositions: str) -> tuple[str, str]:
    """The two names around the first preposition that is there; the second is empty where there is none."""
    for preposition in prepositions:
        first, found, second = names.partition(preposition)
        if found:
            return first, second
    return names, ""


class House:
    """The state of the house: where the player and the things are, which containers are open.

    Attributes:
        room: Where the player is.
        places: The place of each thing.
        contents: The things of each place, the one that came last first, as TextWorld lists them.
        opened: Containers that are open.
    """

    def __init__(self, room: str) -> None:
        self.room = room
        self.places = dict(THINGS)
        self.contents: dict[str, list[str]] = {place: [] for place in (YOU, EATEN, *ROOM_OF)}
        for thing, place in THINGS.items():
            self.contents[place].append(thing)
        self.opened: set[str] = set()

    @property
    def furniture(self) -> str | None:
        """The piece of furniture in the player's room."""
        return FURNITURE.get(self.room)

    def is_reachable(self, piece: str) -> bool:
        """Whether what lies in or on a piece of furniture can be seen and taken."""
        return piece not in CONTAINERS or piece in self.opened

    def sees(self, name: str) -> bool:
        """Whether the player, in this room, can see a thing or piece of furniture of that name."""
        piece = self.furniture
        if name == piece:
            return True
        place = self.places.get(name)
        if place == YOU or place == FLOORS[self.room]:
            return True
        return piece is not None and place == ON_FURNITURE[self.room] and self.is_reachable(piece)

    def admissible_commands(self) -> list[str]:
        """All that changes something now, in alphabetical order, which is TextWorld's.

        As in the reference, `look`, `inventory` and `examine` are possible too but are not in this list.
        """
        carried, piece = self.contents[YOU], self.furniture
        commands = [f"go {direction}" for direction in ROOMS[self.room]]
        commands += [f"take {thing}" for thing in self.contents[FLOORS[self.room]]]
        commands += [f"drop {thing}" for thing in carried]
        commands += [f"eat {thing}" for thing in carried if thing in FOOD]
        if piece is not None and self.is_reachable(piece):
            commands += [f"take {thing} from {piece}" for thing in self.contents[ON_FURNITURE[self.room]]]
            put = "insert {} into {}" if piece in CONTAINERS else "put {} on {}"
            commands += [put.format(thing, piece) for thing in carried]
        if piece in CONTAINERS:
            commands.append(f"{'close' if piece in self.opened else 'open'} {piece}")
        return sorted(commands)

    def do(self, command: str) -> Outcome:
        """Carry out a command, or say why it cannot be done.

        Capitals, runs of blanks, and articles before a name make no difference. The time that this takes grows
        with the length of the command no faster than linearly, and no message repeats what was typed.
        """
        words = command.lower().split()
        if not words:
            return _refuse("I beg your pardon?")
        first, *more = _FIRST_WORDS.get(words[0], words[0]).split()
        rest = " ".join(more + [word for word in words[1:] if word not in _ARTICLES])
        if first in _WITHOUT_NAME:
            wish, outcome = _WITHOUT_NAME[first]
            return _refuse(f"I only understood you as far as wanting to {wish}.") if rest else outcome(self)
        if first not in _WITH_NAME:
            return _refuse("That's not a verb I recognise.")
        if rest:
            return _WITH_NAME[first](self, rest)
        return _refuse(
            "You'll have to say which compass direction to go in." if first == "go" else f"What do you want to {first}?"
        )

    def _move(self, thing: str, place: str) -> None:
        self.contents[self.places[thing]].remove(thing)
        self.contents[place].insert(0, thing)
        self.places[thing] = place

    def _inventory(self) -> Outcome:
        return Outcome(self.describe_inventory())

    def describe_inventory(self) -> str:
        """The sentence on what the player carries."""
        carried = self.contents[YOU]
        if not carried:
            return "You are carrying nothing."
        return f"You are carrying: {enumerate_words(map(with_article, carried))}."

    def _go(self, where: str) -> Outcome:
        direction, _, more = where.partition(" ")
        if direction not in DIRECTIONS:
            return _UNSEEN
        if more:
            return _refuse(f"I only understood you as far as wanting to go {direction}.")
        if direction not in ROOMS[self.room]:
            return _refuse("You can't go that way.")
        self.room = ROOMS[self.room][direction]
        return Outcome("", shows="room")

    def _examine(self, name: str) -> Outcome:
        return Outcome("", shows=name) if self.sees(name) else _UNSEEN

    def _open(self, name: str) -> Outcome:
        if not self.sees(name):
            return _UNSEEN
        if name not in CONTAINERS:
            return _refuse("It isn't something you can open.")
        if name in self.opened:
            return _refuse("That's already open.")
        self.opened.add(name)
        inside = self.contents[ON_FURNITURE[self.room]]
        revealing = f", revealing {enumerate_words(map(with_article, inside))}" if inside else ""
        return Outcome(f"You open the {name}{revealing}.")

    def _close(self, name: str) -> Outcome:
        if not self.sees(name):
            return _UNSEEN
        if name not in CONTAINERS:
            return _refuse("It isn't something you can close.")
        if name not in self.opened:
            return _refuse("That's already closed.")
        self.opened.discard(name)
        return Outcome(f"You close the {name}.")

    def _take(self, names: str) -> Outcome:
        name, separator, piece = names.partition(" from ")
        if not self.sees(name):
            return _UNSEEN
        if separator and not (piece == self.furniture and self.places.get(name) == ON_FURNITURE[self.room]):
            return _UNSEEN
        if name not in self.places:
            return _refuse("That's fixed in place.")
        place = self.places[name]
        if place == YOU:
            return _refuse("You already have that.")
        self._move(name, YOU)
        if place == FLOORS[self.room]:
            return Outcome(f"You pick up the {name} from the ground.")
        return Outcome(f"You take the {name} from the {self.furniture}.")

    def _drop(self, name: str) -> Outcome:
        if " on " in name:
            return self._put(name)
        if not self.sees(name):
            return _UNSEEN
        place = self.places.get(name)
        if place != YOU:
            lies_here = place is None or place == FLOORS[self.room]
            return _refuse(f"The {name} is already here." if lies_here else "You haven't got that.")
        self._move(name, FLOORS[self.room])
        return Outcome(f"You drop the {name} on the ground.")

    def _put(self, names: str) -> Outcome:
        name, target = _split(names, " on ", " onto ")
        if not target:
            return self._insert(names)
        if refused := self._refuse_to_place(name, target):
            return refused
        if target == name:
            return _refuse("You can't put something on top of itself.")
        if target != "table":
            return _refuse(f"Putting things on the {target} would achieve nothing.")
        self._move(name, ON_FURNITURE[self.room])
        return Outcome(f"You put the {name} on the {target}.")

    def _insert(self, names: str) -> Outcome:
        name, target = _split(names, " into ", " in ")
        if refused := self._refuse_to_place(name, target):
            return refused
        if target == name:
            return _refuse("You can't put something inside itself.")
        if target not in CONTAINERS:
            return _refuse("That can't contain things.")
        if target not in self.opened:
            return _refuse(f"The {target} is closed.")
        self._move(name, ON_FURNITURE[self.room])
        return Outcome(f"You put the {name} into the {target}.")

    def _refuse_to_place(self, name: str, target: str) -> Outcome | None:
        if not (self.sees(name) and self.sees(target)):
            return _UNSEEN
        if name not in self.places:
            return _refuse(f"The {name} is fixed in place.")
        if self.places[name] != YOU:
            return _refuse(f"You need to take the {name} first.")
        return None

    def _eat(self, name: str) -> Outcome:
        if not self.sees(name):
            return _UNSEEN
        if name not in FOOD:
            return _refuse("That's plainly inedible.")
        if self.places[name] != YOU:
            return _refuse(f"You need to take the {name} first.")
        self._move(name, EATEN)
        return Outcome(f"You eat the {name}. Not bad.")


_WITHOUT_NAME: Mapping[str, tuple[str, Callable[[House], Outcome]]] = {
    "look": ("look", lambda house: Outcome("", shows="room")),
    "inventory": ("take inventory", House._inventory),
    "wait": ("wait", lambda house: Outcome("Time passes.")),
}
_WITH_NAME: Mapping[str, Callable[[House, str], Outcome]] = {
    "go": House._go, "open": House._open, "close": House._close, "take": House._take, "drop": House._drop,
    "put": House._put, "insert": House._insert, "eat": House._eat, "examine": House._examine,
}  # fmt: skip
