"""Text-Nav: bring the stale food into the fridge of a house, by typed commands (LMRL-Gym, section 4.2, appendix C.2).

Two tasks share the rules, which are in `text_nav_house`. In `text_nav` the observation names the room and, after
each command, says what the player carries. In `text_nav_po` it does neither, so the agent must remember.

Reward per action: 1 for the one that leaves the stale food in the closed fridge, else 0. So the return is 0 or 1.
That action ends the episode, and so does eating the stale food, which loses; the limit of actions truncates it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from env_servers.policy import Context, scripted
from env_servers.scores import Normalisation
from env_servers.task import Env, Step, TaskSpec
from env_servers.tasks.text_nav_house import (
    CONTAINERS,
    EATEN,
    FLOORS,
    FRIDGE,
    FURNITURE,
    ON_FURNITURE,
    ROOM_OF,
    ROOMS,
    YOU,
    House,
    enumerate_words,
    with_article,
)

STEP_LIMIT = 15
HIGHEST_LIMIT = 100
OBJECTIVES: Mapping[str, str] = {
    "paper": "Your task for today is to close the fridge in the kitchen.",
    "full": (
        "Your task for today is to put the stale food into the fridge in the kitchen and to close the fridge. "
        "You will find the stale food on the table in the living room."
    ),
}
GREETING = "You are now playing a profound round of TextWorld!"
LIST = "Admissible commands: "
PARAGRAPH = "\n\n"
MAP = """\
                  [garden]
                      |
 [backyard] ---- [kitchen] ---- [dining room] ---- [living room] ---- [bedroom]
                                                         |                |
                                                     [office] ------ [bathroom]"""

# Wording ---------------------------------------------------------------------------------------------------------
# Each episode draws its sentences anew from these, each room its own, and keeps them; an empty string is no sentence.
# None may name a room, since `text_nav_po` reads all but the first group.
LOCATIONS = (
    "You are in {room}.",
    "You find yourself in {room}.",
    "You arrive in {room}.",
    "You're now in {room}.",
    "You step into {room}.",
    "This place is {room}.",
    "You look around you in {room}.",
    "You come into {room}.",
    "Your feet have carried you to {room}.",
    "If you have not noticed it yet, this is {room}.",
)
KINDS_OF_PLACE = ("", "", "A standard kind of place.", "An ordinary kind of place.", "It could be anybody's.")
LOCATION_ASIDES = (
    "",
    "",
    "",
    "You have a look at what is here.",
    "You search it for things of use.",
    "You feel rather at home.",
    "It smells of fresh paint.",
    "You wait for something to happen, but nothing does.",
)
PLAIN_SIGHTS = ("You see {}.", "You can see {}.", "You make out {}.", "You can make out {}.")
PLAYFUL_SIGHTS = (
    "Over there stands {}.",
    "Against the wall stands {}.",
    "You nearly overlook {}.",
    "You have to step around {}.",
    "Your eye falls on {}.",
    "Whoever lives here owns {}, it seems.",
)
PLAYFUL_SHARE = 0.3
TABLE_ASIDES = ("", "", "", "Its top is scratched.", "It stands on four legs, as it should.")
TABLE_KINDS = ("", "", "normal", "ordinary", "typical", "standard", "usual")
TABLE_CONTENTS = (
    "On the table you see {}.",
    "On the table you can see {}.",
    "On the table you make out {}.",
    "On the table you can make out {}.",
    "You see {} on the table.",
)
TABLE_EMPTY = (
    "There is nothing on it.",
    "But it is bare.",
    "Nobody has left anything on it.",
    "You see only dust on it.",
)
CONTAINER_CONTENTS = ("The {piece} contains {{}}.", "In the {piece} you see {{}}.", "Inside it you can make out {{}}.")
CONTAINER_EMPTY = ("The {piece} is empty.", "There is nothing in the {piece}.", "You see its bottom, and nothing else.")
CONTENTS_ASIDES = (
    "",
    "",
    "",
    "",
    "You hum a tune while you look.",
    "You are sure that you left it otherwise.",
    "Well, why not?",
)
EXIT_KINDS = ("unblocked", "unguarded")
EXITS = ("There are {kind} exits to the {directions}.",)
ONE_EXIT = ("There is an {kind} exit to the {directions}.", "The one exit, to the {directions}, is {kind}.")
EXAMINED = ("The {} is nothing special.", "You have seen a {} like this before.", "That is a {} if ever there was one!")


class RoomWords(NamedTuple):
    """One room's sentences for one episode.

    Attributes:
        location: Names the room; the only sentences that `text_nav_po` leaves out.
        closed: On the furniture; empty where there is none.
        opened: The same of an open container; that of a table is `closed`.
        contents: What lies in or on it, with `{}` for the list.
        empty: That nothing does.
        exits: On the exits.
    """

    location: str
    closed: str
    opened: str
    contents: str
    empty: str
    exits: str


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _draw_room(rng: random.Random, room: str) -> RoomWords:
    name = rng.choice((with_article(room), f"the {room}"))
    location = _join(rng.choice(LOCATIONS).format(room=name), rng.choice(KINDS_OF_PLACE), rng.choice(LOCATION_ASIDES))
    directions = tuple(ROOMS[room])
    exits = rng.choice(EXITS if len(directions) > 1 else ONE_EXIT).format(
        kind=rng.choice(EXIT_KINDS), directions=enumerate_words(directions)
    )
    piece = FURNITURE.get(room)
    if piece is None:
        return RoomWords(location, "", "", "", "", exits)
    sight = rng.choice(PLAYFUL_SIGHTS if rng.random() < PLAYFUL_SHARE else PLAIN_SIGHTS)
    if piece in CONTAINERS:
        tells_state = rng.random() < 0.5
        closed, opened = (
            sight.format(with_article(f"{state} {piece}" if tells_state else piece)) for state in ("closed", "opened")
        )
        contents, empty = (rng.choice(t).format(piece=piece) for t in (CONTAINER_CONTENTS, CONTAINER_EMPTY))
    else:
        kind = rng.choice(TABLE_KINDS)
        closed = opened = _join(
            sight.format(with_article(piece)), rng.choice(TABLE_ASIDES), kind and f"The {piece} is {kind}."
        )
        contents, empty = rng.choice(TABLE_CONTENTS), rng.choice(TABLE_EMPTY)
    return RoomWords(location, closed, opened, _join(contents, rng.choice(CONTENTS_ASIDES)), empty, exits)


# The tasks -------------------------------------------------------------------------------------------------------
class TextNav(Env):
    """The fully observed house: the observation names the room, and after a command what is carried.

    Args:
        max_steps: Number of actions after which the episode is cut, in 1..100.
        objective: What the first observation says the task is: `paper` (only to close the fridge, which is what the
            paper's agent reads) or `full` (to put the stale food into it). The reward is the same.
        start: Name of the room to start in; None draws one of the eight, each as likely.

    Raises:
        ValueError: An option has a value that it does not take.
    """

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="text_nav",
        version="1.0",
        title="Text-Nav (fully observed)",
        summary="Find the stale food in a house and shut it in the fridge, by the commands of a text adventure.",
        instructions=(
            "You play a text adventure in a house. The first message tells you your task. Each message ends with the "
            "commands that you can give now. Answer with exactly one of them and nothing else."
        ),
        memory=None,
        max_turns=STEP_LIMIT,
        max_action_tokens=16,
        min_return=0.0,
        max_return=1.0,
        end_reasons=("goal", "stale_food_eaten", "turn_limit"),
        test_episodes=800,
        test_starts=tuple({"start": room} for room in ROOMS),
        normalisations={
            "paper": Normalisation(0.0, 0.26, 1.0, "LMRL-Gym, Table 5"),
            "lmrl": Normalisation(
                0.0,
                0.258,
                1.0,
                "`random`, which wins once in 10,000 episodes; `behavior`, 0.26 times the 0.993 of `near`, exact, to "
                "which `far` adds less than 0.001; `shortest_path`, exact",
            ),
        },
        paper={
            "episodes": 2500, "mean_length": 12.2, "std_length": 8.77,
            "success_rate": 0.26, "mean_return": 0.258, "std_return": 0.424,
        },
    )  # fmt: skip
    # Whether the observation names the room and what is carried.
    _shows_all: ClassVar[bool] = True

    def __init__(self, *, max_steps: int = STEP_LIMIT, objective: str = "paper", start: str | None = None) -> None:
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or not 1 <= max_steps <= HIGHEST_LIMIT:
            raise ValueError(f"{self.spec.id}: max_steps is {max_steps!r}; allowed: integers in 1..{HIGHEST_LIMIT}")
        if objective not in tuple(OBJECTIVES):
            raise ValueError(f"{self.spec.id}: objective is {objective!r}; allowed: {', '.join(OBJECTIVES)}")
        if start is not None and start not in tuple(ROOMS):
            raise ValueError(f"{self.spec.id}: start is {start!r}; allowed rooms: {', '.join(ROOMS)}")
        self._max_steps, self._objective, self._fixed_start = max_steps, OBJECTIVES[objective], start
        self._start, self._steps = start or next(iter(ROOMS)), 0
        self._house, self._words, self._examined = House(self._start), dict[str, RoomWords](), ""

    def _reset(self, rng: random.Random) -> str:
        # The room is drawn even where it is given, so that the same seed has the same wording.
        drawn = rng.choice(tuple(ROOMS))
        self._start = self._fixed_start or drawn
        self._words = {room: _draw_room(rng, room) for room in ROOMS}
        self._examined = rng.choice(EXAMINED)
        self._house = House(self._start)
        self._steps = 0
        return PARAGRAPH.join([f"{GREETING} {self._objective}", *self._describe_room(), self._list_commands()])

    def _step(self, action: str) -> Step:
        house = self._house
        outcome = house.do(action)
        self._steps += 1
        place = house.places["stale food"]
        if place == FRIDGE and "fridge" not in house.opened:
            won = (outcome.message, "Your score has just gone up by one point.", "*** The End ***", self._score(1))
            return Step.end(PARAGRAPH.join(won), 1.0, "goal", success=True)
        if place == EATEN:
            lost = (outcome.message, "*** You lost! ***", self._score(0))
            return Step.end(PARAGRAPH.join(lost), 0.0, "stale_food_eaten", success=False)
        if outcome.shows == "room":
            paragraphs = self._describe_room()
        else:
            paragraphs = [self._describe(outcome.shows) if outcome.shows else outcome.message]
        if self._shows_all:
            paragraphs.append(house.describe_inventory())
        text = PARAGRAPH.join([*paragraphs, self._list_commands()])
        if self._steps >= self._max_steps:
            return Step.end(text, 0.0, "turn_limit", success=False, cut=True, legal=outcome.legal)
        return Step.ongoing(text, 0.0, legal=outcome.legal)

    def _score(self, points: int) -> str:
        return f"You scored {points} out of a possible 1, in {self._steps} turns."

    def _list_commands(self) -> str:
        return LIST + ", ".join(self._house.admissible_commands())

    def _describe_room(self) -> list[str]:
        """Location, furniture, exits, things on the floor: a paragraph each, where there is one."""
        house, words = self._house, self._words[self._house.room]
        lying = house.contents[FLOORS[house.room]]
        paragraphs = (
            words.location if self._shows_all else "",
            self._describe_furniture(),
            words.exits,
            f"There is {enumerate_words(map(with_article, lying))} on the floor." if lying else "",
        )
        return [paragraph for paragraph in paragraphs if paragraph]

    def _describe_furniture(self) -> str:
        house, words = self._house, self._words[self._house.room]
        piece = house.furniture
        if piece is None or not house.is_reachable(piece):
            return words.closed
        inside = house.contents[ON_FURNITURE[house.room]]
        contents = words.contents.format(enumerate_words(map(with_article, inside))) if inside else words.empty
        return _join(words.opened, contents)

    def _describe(self, name: str) -> str:
        """What the player sees who examines a thing or the room's furniture."""
        return self._describe_furniture() if name == self._house.furniture else self._examined.format(name)

    @property
    def info(self) -> dict[str, Any]:
        """`start` and `room`, what is `carrying`, the place of `stale_food` and the containers that are `opened`."""
        house = self._house
        return {
            "start": self._start,
            "room": house.room,
            "carrying": list(house.contents[YOU]),
            "stale_food": house.places["stale food"],
            "opened": sorted(house.opened),
        }

    def draw(self) -> str:
        """The house from above; `@` is you."""
        return MAP.replace(f" [{self._house.room}]", f"@[{self._house.room}]")


class TextNavPartiallyObserved(TextNav):
    """The house where no observation names the room, nor unasked what is carried. Options as in `TextNav`."""

    spec: ClassVar[TaskSpec] = replace(
        TextNav.spec,
        id="text_nav_po",
        title="Text-Nav (partially observed)",
        summary=(
            "Find the stale food in a house and shut it in the fridge, where no message says which room this is, so "
            "past moves must be remembered."
        ),
    )
    _shows_all: ClassVar[bool] = False


# Scripted policies -----------------------------------------------------------------------------------------------
# The two halves of the house in which the paper's two collecting policies act optimally.
NEAR_ROOMS = frozenset({"kitchen", "dining room", "living room", "bedroom"})
FAR_ROOMS = frozenset({"office", "bathroom", "garden", "backyard"})
# The paper does not say how many episodes each of the two collects. With this share of `near` the expected return is
# the paper's 0.258; its code has 0.25.
NEAR_SHARE = 0.26


def _first_steps(target: str) -> dict[str, str]:
    """From each other room, the direction in which a shortest way to `target` begins: breadth first, backwards."""
    steps: dict[str, str] = {}
    queue = deque([target])
    while queue:
        reached = queue.popleft()
        for room, exits in ROOMS.items():
            for direction, beyond in exits.items():
                if beyond == reached and room != target and room not in steps:
                    steps[room] = direction
                    queue.append(room)
    return steps


_FIRST_STEPS = {target: _first_steps(target) for target in ROOMS}


def shortest_command(room: str, stale_food: str, opened: Collection[str]) -> str:
    """The first command of a shortest solution from any state in which the game goes on.

    Args:
        room: Where the player is.
        stale_food: The place of the stale food.
        opened: Containers that are open.
    """
    target = "kitchen" if stale_food == YOU else ROOM_OF[stale_food]
    if room != target:
        return f"go {_FIRST_STEPS[target][room]}"
    if stale_food == YOU:
        return "insert stale food into fridge" if "fridge" in opened else "open fridge"
    if stale_food == FRIDGE:
        return "close fridge"
    if stale_food == FLOORS[room]:
        return "take stale food"
    piece = FURNITURE[room]
    if piece in CONTAINERS and piece not in opened:
        return f"open {piece}"
    return f"take stale food from {piece}"


def _shortest(context: Context) -> str:
    info = context.info
    return shortest_command(info["room"], info["stale_food"], info["opened"])


def _random(context: Context) -> str:
    return context.rng.choice(context.observation.rpartition(LIST)[2].split(", "))


def _optimal_in(rooms: Collection[str]) -> Callable[[Context], str]:
    def choose(context: Context) -> str:
        return _shortest(context) if context.info["room"] in rooms else _random(context)

    return choose


_near, _far = _optimal_in(NEAR_ROOMS), _optimal_in(FAR_ROOMS)


def _behavior(context: Context) -> str:
    """In a share of the episodes `near`, in the others `far`."""
    return (_near if context.once().random() < NEAR_SHARE else _far)(context)


TextNav.policies = TextNavPartiallyObserved.policies = scripted(
    random=_random, behavior=_behavior, near=_near, far=_far, shortest_path=_shortest
)
