"""Text-Nav against episodes and messages recorded from TextWorld, exact values, and its golden transcripts."""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections.abc import Iterable
from typing import Any

import pytest

from env_servers.play import episode_starts, play
from env_servers.policy import Context
from env_servers.scores import summarize
from env_servers.tasks import make_env, make_policy
from env_servers.tasks.text_nav import FAR_ROOMS, LIST, NEAR_ROOMS, TextNav, shortest_command
from env_servers.tasks.text_nav_house import FRIDGE, FURNITURE, ROOMS, THINGS, House

# Episodes recorded from TextWorld 1.7.0: a command, what of its answer does not depend on the wording, and the commands
# that are then admissible. The first answer is the first observation.
RECORDED = {
    ("text_nav", "office"): """
        >
        to the east and north
        = go east, go north, open chest
        > go north
        a stale food and a fresh food
        to the east, south and west
        You are carrying nothing.
        = go east, go south, go west, take fresh food from table, take stale food from table
        > take stale food from table
        You take the stale food from the table.
        You are carrying: a stale food.
        = drop stale food, eat stale food, go east, go south, go west, put stale food on table, take fresh food from
        = table
        > go west
        a coffee cup and a plate
        to the east and west
        You are carrying: a stale food.
        = drop stale food, eat stale food, go east, go west, put stale food on table, take coffee cup from table, take
        = plate from table
        > go west
        to the east, north and west
        You are carrying: a stale food.
        = drop stale food, eat stale food, go east, go north, go west, open fridge
        > open fridge
        You open the fridge, revealing a fruit.
        You are carrying: a stale food.
        = close fridge, drop stale food, eat stale food, go east, go north, go west, insert stale food into fridge,
        = take fruit from fridge
        > insert stale food into fridge
        You put the stale food into the fridge.
        You are carrying nothing.
        = close fridge, go east, go north, go west, take fruit from fridge, take stale food from fridge
        > close fridge
        You close the fridge.
        Your score has just gone up by one point.
        *** The End ***
        You scored 1 out of a possible 1
        = won
    """,
    ("text_nav_po", "dining room"): """
        >
        a coffee cup and a plate
        to the east and west
        = go east, go west, take coffee cup from table, take plate from table
        > dance
        That's not a verb I recognise.
        = go east, go west, take coffee cup from table, take plate from table
        > go nowhere
        You can't see any such thing.
        = go east, go west, take coffee cup from table, take plate from table
        > look
        a coffee cup and a plate
        to the east and west
        = go east, go west, take coffee cup from table, take plate from table
        > inventory
        You are carrying nothing.
        = go east, go west, take coffee cup from table, take plate from table
        > examine fridge
        You can't see any such thing.
        = go east, go west, take coffee cup from table, take plate from table
    """,
    ("text_nav_po", "living room"): """
        >
        a stale food and a fresh food
        to the east, south and west
        = go east, go south, go west, take fresh food from table, take stale food from table
        > take stale food from table
        You take the stale food from the table.
        = drop stale food, eat stale food, go east, go south, go west, put stale food on table, take fresh food from
        = table
        > eat stale food
        You eat the stale food. Not bad.
        *** You lost! ***
        You scored 0 out of a possible 1, in 2 turns.
        = lost
    """,
    ("text_nav", "kitchen"): """
        >
        to the east, north and west
        = go east, go north, go west, open fridge
        > go west
        to the east
        You are carrying nothing.
        = go east
        > go east
        to the east, north and west
        You are carrying nothing.
        = go east, go north, go west, open fridge
        > go east
        a coffee cup and a plate
        to the east and west
        You are carrying nothing.
        = go east, go west, take coffee cup from table, take plate from table
        > take plate from table
        You take the plate from the table.
        You are carrying: a plate.
        = drop plate, go east, go west, put plate on table, take coffee cup from table
        > go east
        a stale food and a fresh food
        to the east, south and west
        You are carrying: a plate.
        = drop plate, go east, go south, go west, put plate on table, take fresh food from table, take stale food from
        = table
        > take fresh food from table
        You take the fresh food from the table.
        You are carrying: a fresh food and a plate.
        = drop fresh food, drop plate, eat fresh food, go east, go south, go west, put fresh food on table, put plate
        = on table, take stale food from table
        > drop fresh food
        You drop the fresh food on the ground.
        You are carrying: a plate.
        = drop plate, go east, go south, go west, put plate on table, take fresh food, take stale food from table
        > go east
        a bowl
        to the south and west
        You are carrying: a plate.
        = drop plate, go south, go west, put plate on table, take bowl from table
        > drop plate
        You drop the plate on the ground.
        You are carrying nothing.
        = go south, go west, take bowl from table, take plate
        > take bowl from table
        You take the bowl from the table.
        You are carrying: a bowl.
        = drop bowl, go south, go west, put bowl on table, take plate
        > put bowl on table
        You put the bowl on the table.
        You are carrying nothing.
        = go south, go west, take bowl from table, take plate
        > go west
        a stale food
        to the east, south and west
        There is a fresh food on the floor.
        You are carrying nothing.
        = go east, go south, go west, take fresh food, take stale food from table
        > take fresh food
        You pick up the fresh food from the ground.
        You are carrying: a fresh food.
        = drop fresh food, eat fresh food, go east, go south, go west, put fresh food on table, take stale food from
        = table
        > go west
        a coffee cup
        to the east and west
        You are carrying: a fresh food.
        = drop fresh food, eat fresh food, go east, go west, put fresh food on table, take coffee cup from table
        > drop fresh food
        You drop the fresh food on the ground.
        You are carrying nothing.
        = go east, go west, take coffee cup from table, take fresh food
    """,
}
# The same commands were recorded in the partially observed game, which does not say what is carried.
RECORDED["text_nav_po", "office"] = re.sub(r"\n *You are carrying.*", "", RECORDED["text_nav", "office"])


def read_record(record: str) -> Iterable[tuple[str, list[str], str]]:
    """Command, sentences, admissible commands (or how the episode ended)."""
    for part in re.split(r"^ *>", record, flags=re.MULTILINE)[1:]:
        command, *lines = (line.strip() for line in part.split("\n"))
        says = [line for line in lines if line and not line.startswith("= ")]
        yield command, says, " ".join(line[2:] for line in lines if line.startswith("= "))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("task", "start"), RECORDED)
def test_recorded_commands_have_the_recorded_effects(task: str, start: str, seed: int) -> None:
    """Whatever the wording: what is seen and said, what is admissible, what pays and what ends."""
    env = make_env(task, {"start": start})
    first, *turns = read_record(RECORDED[task, start])
    text = env.reset(seed)
    assert text.endswith(f"\n\n{LIST}{first[2]}")
    assert all(sentence in text for sentence in first[1])
    for number, (command, says, admissible) in enumerate(turns, 1):
        step = env.step(command)
        assert all(sentence in step.observation for sentence in says), (command, step.observation)
        if admissible in ("won", "lost"):
            assert (step.reward, step.terminated, step.success) == (admissible == "won", True, admissible == "won")
            assert step.end_reason == ("goal" if admissible == "won" else "stale_food_eaten")
            assert step.observation.split("\n\n")[-1] == f"{says[-1].partition(',')[0]}, in {number} turns."
            return
        assert step.observation.endswith(f"\n\n{LIST}{admissible}")
        assert (step.reward, step.terminated, step.truncated) == (0, False, number == 15)


HAS_FRUIT = ["open fridge", "take fruit from fridge"]


@pytest.mark.parametrize(
    ("start", "before", "command", "message"),
    [
        ("kitchen", [], "", "I beg your pardon?"),
        ("kitchen", [], "xyzzy", "That's not a verb I recognise."),
        ("kitchen", [], "go", "You'll have to say which compass direction to go in."),
        ("kitchen", [], "go south", "You can't go that way."),
        ("kitchen", [], "up", "You can't go that way."),
        ("kitchen", [], "go east now", "I only understood you as far as wanting to go east."),
        ("kitchen", [], "inventory please", "I only understood you as far as wanting to take inventory."),
        ("kitchen", [], "take fruit", "You can't see any such thing."),
        ("kitchen", [], "open chest", "You can't see any such thing."),
        ("kitchen", ["open fridge"], "open fridge", "That's already open."),
        ("kitchen", [], "shut the fridge", "That's already closed."),
        ("kitchen", [], "take fridge", "That's fixed in place."),
        ("kitchen", [], "drop fridge", "The fridge is already here."),
        ("kitchen", ["open fridge"], "drop fruit", "You haven't got that."),
        ("kitchen", HAS_FRUIT, "take fruit", "You already have that."),
        ("kitchen", ["open fridge"], "insert fruit into fridge", "You need to take the fruit first."),
        ("kitchen", ["open fridge"], "eat fruit", "You need to take the fruit first."),
        ("kitchen", HAS_FRUIT, "take fruit from fridge", "You can't see any such thing."),
        ("kitchen", HAS_FRUIT, "put fruit on fridge", "Putting things on the fridge would achieve nothing."),
        ("kitchen", HAS_FRUIT, "insert fruit into fruit", "You can't put something inside itself."),
        ("kitchen", [*HAS_FRUIT, "close fridge"], "put fruit in fridge", "The fridge is closed."),
        ("living room", [], "eat table", "That's plainly inedible."),
        ("living room", [], "open table", "It isn't something you can open."),
        ("living room", [], "close stale food", "It isn't something you can close."),
        ("living room", [], "put table on table", "The table is fixed in place."),
        ("living room", ["take stale food"], "insert stale food into table", "That can't contain things."),
        (
            "living room",
            ["take stale food"],
            "put stale food on stale food",
            "You can't put something on top of itself.",
        ),
        ("living room", ["take stale food", "drop stale food"], "drop stale food", "The stale food is already here."),
    ],
)
def test_impossible_commands_change_nothing_and_use_a_step(
    start: str, before: list[str], command: str, message: str
) -> None:
    """The messages were recorded from TextWorld 1.7.0."""
    env = make_env("text_nav_po", {"start": start, "max_steps": len(before) + 2})
    text = env.reset(0)
    for possible in before:
        step = env.step(possible)
        assert step.legal
        text = step.observation
    state, listed = copy.deepcopy(vars(env._house)), text.rpartition(LIST)[2]  # type: ignore[attr-defined]
    step = env.step(command)
    assert step.observation == f"{message}\n\n{LIST}{listed}"
    assert (step.reward, step.legal, step.done) == (0, False, False)
    assert vars(env._house) == state  # type: ignore[attr-defined]
    assert env.step(command).end_reason == "turn_limit"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("GO   East", "go east"),
        ("\tgo east  ", "go east"),
        ("e", "go east"),
        ("walk east", "go east"),
        ("Shut the fridge", "close fridge"),
        ("get the fruit from the fridge", "take fruit from fridge"),
        ("take fruit", "take fruit from fridge"),
        ("put bowl in fridge", "insert bowl into fridge"),
        ("l", "look"),
        ("i", "inventory"),
        ("x fridge", "examine fridge"),
        ("z", "wait"),
    ],
)
def test_ways_to_type_a_command(typed: str, meant: str) -> None:
    states = []
    for last in (typed, meant):
        env = make_env("text_nav", {"start": "bedroom"})
        env.reset(4)
        for command in ("take bowl from table", "go west", "go west", "go west", "open fridge"):
            env.step(command)
        step = env.step(last)
        assert step.legal
        states.append((step, env.info))
    assert states[0] == states[1]


@pytest.mark.parametrize(
    "text", ["go " + "east " * 200_000, "x" * 1_000_000, "go\x00east", "开冰箱", "take " + "é" * 99_999]
)
def test_long_and_foreign_commands_have_short_answers(text: str) -> None:
    env = make_env("text_nav", {"start": "garden"})
    env.reset(0)
    step = env.step(text)
    assert not step.legal
    assert len(step.observation) < 200


FULLY_OBSERVED = """\
You are now playing a profound round of TextWorld! Your task for today is to close the fridge in the kitchen.

You are in an office.

You see a chest.

There are unguarded exits to the east and north.

Admissible commands: go east, go north, open chest

> go north

You find yourself in the living room. A standard kind of place. You have a look at what is here.

You see a table. On the table you can make out a stale food and a fresh food.

There are unguarded exits to the east, south and west.

You are carrying nothing.

Admissible commands: go east, go south, go west, take fresh food from table, take stale food from table

> take stale food from table

You take the stale food from the table.

You are carrying: a stale food.

Admissible commands: drop stale food, eat stale food, go east, go south, go west, put stale food on table, take \
fresh food from table

> go west

This place is a dining room.

You can make out a table. The table is typical. On the table you can make out a coffee cup and a plate.

There are unblocked exits to the east and west.

You are carrying: a stale food.

Admissible commands: drop stale food, eat stale food, go east, go west, put stale food on table, take coffee \
cup from table, take plate from table

> dance

That's not a verb I recognise.

You are carrying: a stale food.

Admissible commands: drop stale food, eat stale food, go east, go west, put stale food on table, take coffee \
cup from table, take plate from table

> go west

You arrive in the kitchen. You have a look at what is here.

You see a closed fridge.

There are unblocked exits to the east, north and west.

You are carrying: a stale food.

Admissible commands: drop stale food, eat stale food, go east, go north, go west, open fridge

> open fridge

You open the fridge, revealing a fruit.

You are carrying: a stale food.

Admissible commands: close fridge, drop stale food, eat stale food, go east, go north, go west, insert stale \
food into fridge, take fruit from fridge

> insert stale food into fridge

You put the stale food into the fridge.

You are carrying nothing.

Admissible commands: close fridge, go east, go north, go west, take fruit from fridge, take stale food from fridge

> look

You arrive in the kitchen. You have a look at what is here.

You see an opened fridge. Inside it you can make out a stale food and a fruit. Well, why not?

There are unblocked exits to the east, north and west.

You are carrying nothing.

Admissible commands: close fridge, go east, go north, go west, take fruit from fridge, take stale food from fridge

> close fridge

You close the fridge.

Your score has just gone up by one point.

*** The End ***

You scored 1 out of a possible 1, in 9 turns.
"""
PARTIALLY_OBSERVED = """\
You are now playing a profound round of TextWorld! Your task for today is to close the fridge in the kitchen.

You can see a closed fridge.

There are unguarded exits to the east, north and west.

Admissible commands: go east, go north, go west, open fridge

> open fridge

You open the fridge, revealing a fruit.

Admissible commands: close fridge, go east, go north, go west, take fruit from fridge

> take fruit from fridge

You take the fruit from the fridge.

Admissible commands: close fridge, drop fruit, eat fruit, go east, go north, go west, insert fruit into fridge

> drop fruit

You drop the fruit on the ground.

Admissible commands: close fridge, go east, go north, go west, take fruit

> look

You can see an opened fridge. The fridge is empty.

There are unguarded exits to the east, north and west.

There is a fruit on the floor.

Admissible commands: close fridge, go east, go north, go west, take fruit

> go west

There is an unblocked exit to the east.

Admissible commands: go east

> inventory

You are carrying nothing.

Admissible commands: go east

> examine fridge

You can't see any such thing.

Admissible commands: go east
"""


def transcript(task: str, seed: int, start: str, commands: list[str]) -> str:
    env = make_env(task, {"start": start})
    parts = [env.reset(seed)]
    for command in commands:
        step = env.step(command)
        parts.append(f"> {command}\n\n{step.observation}")
    return "\n\n".join(parts) + "\n"


def test_golden_transcript_fully_observed() -> None:
    commands = ["go north", "take stale food from table", "go west", "dance", "go west", "open fridge"]
    commands += ["insert stale food into fridge", "look", "close fridge"]
    assert transcript("text_nav", 9, "office", commands) == FULLY_OBSERVED


def test_golden_transcript_partially_observed() -> None:
    commands = ["open fridge", "take fruit from fridge", "drop fruit", "look", "go west", "inventory", "examine fridge"]
    assert transcript("text_nav_po", 4, "kitchen", commands) == PARTIALLY_OBSERVED


def test_the_objective_is_the_papers_or_the_whole_truth() -> None:
    texts = {}
    for objective in ("paper", "full"):
        env = make_env("text_nav", {"objective": objective})
        texts[objective], *room = env.reset(0).split("\n\n")
        assert env.reset(0).split("\n\n")[1:] == room
    assert texts["paper"].endswith("! Your task for today is to close the fridge in the kitchen.")
    assert "stale food" not in texts["paper"]
    assert "put the stale food into the fridge in the kitchen" in texts["full"]


# Shortest solutions ----------------------------------------------------------------------------------------------
# What decides the way to the goal: room, place of the stale food, open containers. The other things never enable or
# forbid a command on these, so one environment stands for all of its state.
State = tuple[str, str, tuple[str, ...]]


def state_of(env: Any) -> State:
    return env.info["room"], env.info["stale_food"], tuple(env.info["opened"])


@pytest.fixture(scope="module")
def solutions() -> tuple[dict[State, dict[str, State | None]], dict[State | None, int]]:
    """Each state's admissible commands and where they lead (None is the goal), and each state's distance from it.

    Found by playing the real environment breadth first from every room, then backwards from the goal.
    """
    edges: dict[State, dict[str, State | None]] = {}
    queue: list[tuple[Any, str]] = []
    for room in ROOMS:
        env = make_env("text_nav", {"start": room, "max_steps": 100})
        queue.append((env, env.reset(0)))
    for env, text in queue:  # grows while it is read
        if (state := state_of(env)) in edges:
            continue
        edges[state] = {}
        for command in text.rpartition(LIST)[2].split(", "):
            neighbour = copy.deepcopy(env)
            step = neighbour.step(command)
            assert step.legal and not step.truncated
            if not step.terminated:
                queue.append((neighbour, step.observation))
            if step.success or not step.terminated:
                edges[state][command] = None if step.success else state_of(neighbour)
    distance: dict[State | None, int] = {None: 0}
    for steps in itertools.count(1):
        found = [s for s in edges if s not in distance and any(t in distance for t in edges[s].values())]
        if not found:
            return edges, distance
        distance.update(dict.fromkeys(found, steps))
    raise AssertionError


def test_shortest_solutions(solutions: Any) -> None:
    """8 rooms; the food on 8 floors, 3 tables, in 2 containers or the hand; 2 containers, the fridge open with it."""
    edges, distance = solutions
    assert len(edges) == 8 * (12 * 4 + 2 + 4) and set(edges) | {None} == set(distance)
    at_first = {room: distance[room, "living room table", ()] for room in ROOMS}
    assert at_first == {
        "living room": 6, "bedroom": 7, "office": 7, "dining room": 7, "bathroom": 8, "kitchen": 8, "garden": 9,
        "backyard": 9,
    }  # fmt: skip


def act(policy: str, state: State, edges: Any, rng: random.Random) -> str:
    info = {"room": state[0], "stale_food": state[1], "opened": list(state[2])}
    observation = LIST + ", ".join(edges[state])
    return make_policy("text_nav", policy).act([Context(TextNav.spec, [], observation, rng, info)])[0].text


def test_shortest_path_comes_nearer_to_the_goal_in_every_state(solutions: Any) -> None:
    edges, distance = solutions
    for state in edges:
        command = act("shortest_path", state, edges, random.Random(0))
        assert distance[edges[state][command]] == distance[state] - 1


@pytest.mark.parametrize(("policy", "rooms"), [("near", NEAR_ROOMS), ("far", FAR_ROOMS)])
def test_near_and_far_are_optimal_exactly_in_their_half(policy: str, rooms: frozenset[str], solutions: Any) -> None:
    edges, distance = solutions
    rng = random.Random(0)
    for state in random.Random(1).sample(sorted(edges), 60):
        commands = {act(policy, state, edges, rng) for _ in range(200)}
        if state[0] in rooms:
            assert [distance[edges[state][command]] for command in commands] == [distance[state] - 1]
        else:
            assert commands == set(edges[state])
    assert set(ROOMS) == NEAR_ROOMS | FAR_ROOMS and not NEAR_ROOMS & FAR_ROOMS


def success_of_near(house: House, steps: int, memo: dict[Any, float]) -> float:
    """Chance that `near` wins from here, by adding up what it can do in the far half, command by command."""
    if house.places["stale food"] == FRIDGE and "fridge" not in house.opened:
        return 1.0
    if steps == 0:
        return 0.0
    key = (house.room, tuple(house.places.items()), frozenset(house.opened), steps)
    if key not in memo:
        if house.room in NEAR_ROOMS:
            commands = [shortest_command(house.room, house.places["stale food"], house.opened)]
        else:
            commands = house.admissible_commands()
        total = 0.0
        for command in commands:
            neighbour = copy.deepcopy(house)
            neighbour.do(command)
            total += success_of_near(neighbour, steps - 1, memo)
        memo[key] = total / len(commands)
    return memo[key]


def played_returns(policy: str, episodes: int, split: str = "train") -> Any:
    played = play("text_nav", make_policy("text_nav", policy), episode_starts("text_nav", split, range(episodes)))
    return summarize(p.trajectory for p in played)


def test_near_wins_as_often_as_the_exact_chance() -> None:
    exact = sum(success_of_near(House(room), 15, {}) for room in ROOMS) / len(ROOMS)
    assert round(exact, 4) == 0.993
    assert exact * 0.26 == pytest.approx(TextNav.spec.normalisations["lmrl"].middle, abs=5e-4)
    summary = played_returns("near", 3000)
    assert summary.success_interval.low < exact < summary.success_interval.high


def test_scores_of_the_other_policies() -> None:
    assert played_returns("shortest_path", 80, "test")[:2] == (80, 1.0)
    assert played_returns("shortest_path", 80, "test").mean_length == 7.625
    assert played_returns("random", 1000).mean_return < 0.01
    assert played_returns("far", 1000).mean_return < 0.01


def test_behavior_keeps_to_one_policy_in_an_episode() -> None:
    """Whole episodes are those of `near` with a share of 0.26, else those of `far`."""
    counts = {"near": 0, "far": 0, "both": 0}
    episodes = {
        policy: [
            p.trajectory.turns
            for p in play("text_nav", make_policy("text_nav", policy), episode_starts("text_nav", "train", range(2000)))
        ]
        for policy in ("behavior", "near", "far")
    }
    by_start = {name: {turns[0].observation: turns for turns in found} for name, found in episodes.items()}
    for first, turns in by_start["behavior"].items():
        same = [name for name in ("near", "far") if by_start[name][first] == turns]
        assert same
        counts["both" if len(same) == 2 else same[0]] += 1
    assert counts["near"] / (counts["near"] + counts["far"]) == pytest.approx(0.26, abs=0.03)


# Texts -----------------------------------------------------------------------------------------------------------
def test_partially_observed_never_names_a_room_nor_what_is_carried() -> None:
    """But for the objective, whose last word is a room's name, and the answer to `inventory`, no text does."""
    names = re.compile("|".join(ROOMS))
    for policy in ("behavior", "random"):
        for p in play(
            "text_nav_po", make_policy("text_nav_po", policy), episode_starts("text_nav_po", "test", range(800))
        ):
            texts = [turn.observation for turn in p.trajectory.turns] + [p.trajectory.final_observation or ""]
            assert names.findall(texts[0]) == ["kitchen"] and texts[0].index("kitchen") < texts[0].index("\n")
            assert not names.search("".join(texts[1:]))
            assert not any("carrying" in text for text in texts)


def test_fully_observed_names_the_room_on_entering_and_always_what_is_carried() -> None:
    for p in play("text_nav", make_policy("text_nav", "random"), episode_starts("text_nav", "test", range(80))):
        first, *later = [turn.observation for turn in p.trajectory.turns]
        assert p.trajectory.info["start"] in first.split("\n\n")[1]
        assert "carrying" not in first, "as in the reference, nothing is said before the first command"
        assert all("\n\nYou are carrying" in text for text in later)


def test_wording_differs_between_seeds_and_stays_within_an_episode() -> None:
    tours = {}
    for seed in range(30):
        env = make_env("text_nav", {"start": "living room"})
        first = env.reset(seed).split("\n\n")[1:]
        there = [env.step(direction).observation for direction in ("go east", "go south", "go west", "go north")]
        again = [env.step(direction).observation for direction in ("go east", "go south", "go west", "go north")]
        assert there == again
        assert there[-1].split("\n\n")[:3] == first[:3]
        tours[seed] = there
    assert all(len({tours[seed][step] for seed in tours}) > 15 for step in range(4))


@pytest.mark.parametrize("task", ["text_nav", "text_nav_po"])
def test_what_is_in_and_on_the_furniture_can_be_read(task: str) -> None:
    for seed in range(200):
        env = make_env(task, {"start": "kitchen"})
        assert "fruit" not in env.reset(seed)
        env.step("open fridge")
        assert "a fruit" in env.step("look").observation
        env.step("take fruit")
        text = env.step("look").observation
        assert "fruit" not in text.partition("You are carrying")[0].partition(LIST)[0]
        env.step("drop fruit")
        assert "\n\nThere is a fruit on the floor.\n\n" in env.step("look").observation


def test_a_room_without_anything_has_no_empty_paragraph() -> None:
    for seed, room in itertools.product(range(20), ("garden", "backyard", "bathroom")):
        text = make_env("text_nav_po", {"start": room}).reset(seed)
        assert len(text.split("\n\n")) == 3
        assert "\n\n\n" not in text


# Options and picture ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, r"max_steps is 0; allowed: integers in 1\.\.100"),
        ({"max_steps": 101}, "max_steps is 101; allowed"),
        ({"max_steps": "15"}, "max_steps is '15'; allowed"),
        ({"max_steps": 15.0}, r"max_steps is 15\.0; allowed"),
        ({"max_steps": True}, "max_steps is True; allowed"),
        ({"objective": "none"}, "objective is 'none'; allowed: paper, full"),
        ({"objective": ["full"]}, r"objective is \['full'\]; allowed: paper, full"),
        ({"start": "cellar"}, "start is 'cellar'; allowed rooms: bedroom, bathroom, office, living room, kitchen, "),
        ({"start": ["garden"]}, r"start is \['garden'\]; allowed rooms"),
    ],
)
@pytest.mark.parametrize("task", ["text_nav", "text_nav_po"])
def test_impossible_options_are_refused(task: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"{task}: {message}"):
        make_env(task, options)


@pytest.mark.parametrize("limit", [1, 15, 100])
def test_the_limit_cuts_at_the_last_action_unless_it_wins(limit: int) -> None:
    env = make_env("text_nav", {"max_steps": limit})
    env.reset(0)
    steps = [env.step("wait") for _ in range(limit)]
    assert not any(step.done for step in steps[:-1])
    assert (steps[-1].terminated, steps[-1].truncated, steps[-1].end_reason) == (False, True, "turn_limit")
    assert LIST in steps[-1].observation
    winning = make_env("text_nav", {"start": "living room", "max_steps": 6})
    winning.reset(0)
    commands = ["take stale food", "go west", "go west", "open fridge", "insert stale food into fridge", "close fridge"]
    last = [winning.step(command) for command in commands][-1]
    assert (last.terminated, last.success, last.end_reason, last.reward) == (True, True, "goal", 1)


def test_each_room_is_a_start_equally_often() -> None:
    env = make_env("text_nav")
    counts = dict.fromkeys(ROOMS, 0)
    for seed in range(4000):
        env.reset(seed)
        counts[env.info["start"]] += 1
    assert all(count == pytest.approx(500, abs=80) for count in counts.values())


def test_a_person_sees_the_house() -> None:
    for room in ROOMS:
        picture = make_env("text_nav", {"start": room}).draw()
        assert picture.count("@") == 1 and f"@[{room}]" in picture
        assert all(f"[{name}]" in picture for name in ROOMS)


def test_the_budget_of_tokens_holds_for_every_command() -> None:
    """At most two tokens a word with GPT-2's tokenizer, three for `utensils`, and one for the newline."""
    pieces = sorted(set(FURNITURE.values()))
    commands = [f"insert the {thing} into the {piece}" for thing in THINGS for piece in pieces]
    commands += [f"take the {thing} from the {piece}" for thing in THINGS for piece in pieces]
    assert max(2 * len(c.split()) + ("utensils" in c) + 1 for c in commands) <= TextNav.spec.max_action_tokens
