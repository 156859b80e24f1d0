"""Maze: find the goal of a small grid world by four moves (LMRL-Gym, arXiv 2311.18232, section 4.2 and appendix C.1).

Two tasks share the rules. In `maze` the observation gives the goal, the position and the walls around, so the
newest observation is a full state (memory 0). In `maze_po` it gives the walls alone, so the agent must remember.

Reward per action: 0 for the move onto the goal, -1 for any other move (bumping into a wall included), -4 for a
string that is none of the four moves. After 100 actions off the goal the next call ends the episode at -1
whatever the action, as the reference does; so returns lie in [-401, 0], and in [-101, 0] for legal strings. That
end is a limit of time, not a state of the maze: the episode is truncated, not terminated.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from env_servers.policy import Context, scripted
from env_servers.scores import Normalisation
from env_servers.task import Env, Step, TaskSpec

Cell = tuple[int, int]

# '#' wall, '.' free, 'G' goal. Rows grow downwards.
MAZES = {
    "double_t": (
        "#############",
        "#.....#.....#",
        "###.#####.###",
        "###.#####.###",
        "###.#####.###",
        "###.......###",
        "######.######",
        "######.######",
        "######G######",
        "#############",
    ),
    "umaze": ("#####", "#...#", "#.#.#", "#.#G#", "#####"),
}
MOVES: Mapping[str, Cell] = {"move left": (0, -1), "move right": (0, 1), "move up": (-1, 0), "move down": (1, 0)}
# The order of the walls in the observation, which is not the order of the moves.
WALLS = (((0, 1), "to your right"), ((0, -1), "to your left"), ((-1, 0), "above you"), ((1, 0), "below you"))
# (goal, bump or plain move, anything else); the first is the paper's.
REWARDS = {
    "standard": (0.0, -1.0, -4.0),
    "illegal_penalty": (1.0, 0.0, -1.0),
    "illegal_penalty_scaled": (1.0, -1.0, -100.0),
}
STEP_LIMIT = 100
FAILURE = "Failure"  # said at the limit


class Grid:
    """A maze's map: free cells, goal, moves and distances."""

    def __init__(self, rows: tuple[str, ...]) -> None:
        self.rows = rows
        self.free = [(r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark != "#"]
        self.goal = next((r, c) for r, c in self.free if rows[r][c] == "G")
        self.starts = [cell for cell in self.free if cell != self.goal]
        self.distance = {self.goal: 0}
        queue = [self.goal]
        for cell in queue:  # breadth first: the queue grows while it is read
            for move in MOVES:
                neighbour = self.move(cell, move)
                if neighbour not in self.distance:
                    self.distance[neighbour] = self.distance[cell] + 1
                    queue.append(neighbour)

    def is_wall(self, cell: Cell) -> bool:
        """Whether nobody can stand there."""
        return self.rows[cell[0]][cell[1]] == "#"

    def move(self, cell: Cell, move: str) -> Cell:
        """Where a legal move leads; a wall leaves the position as it is."""
        target = (cell[0] + MOVES[move][0], cell[1] + MOVES[move][1])
        return cell if self.is_wall(target) else target

    def shortest_move(self, cell: Cell) -> str:
        """The first of the moves that come one step nearer to the goal."""
        return next(m for m in MOVES if self.distance[self.move(cell, m)] < self.distance[cell])

    def describe_walls(self, cell: Cell) -> str:
        """The sentence on the walls of the four neighbours."""
        sides = [phrase for (dr, dc), phrase in WALLS if self.is_wall((cell[0] + dr, cell[1] + dc))]
        if not sides:
            return "There are no walls near you."
        return f"There {'is a wall' if len(sides) == 1 else 'are walls'} {', '.join(sides)}."


@functools.cache
def grid(name: str) -> Grid:
    """The map of that name, built once."""
    return Grid(MAZES[name])


class Maze(Env):
    """The fully observed maze.

    Args:
        maze: `double_t` (the paper's) or `umaze`.
        start: Row and column to start in; None draws a free cell other than the goal, each as likely.
        reward: `standard` (0, -1, -4: goal, other moves, anything else), `illegal_penalty` (1, 0, -1) or
            `illegal_penalty_scaled` (1, -1, -100).

    Raises:
        ValueError: An option has a value that it does not take.
    """

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="maze",
        version="1.0",
        title="Maze (fully observed)",
        summary="Walk to the goal of a small maze, reading goal, position and walls in words.",
        instructions=(
            "You are in a maze, and walk to the goal in as few steps as you can. Each message tells you the goal, "
            "your position (row, column) and the walls next to you. Rows grow downwards, columns to the right. "
            "Answer with exactly one of these lines and nothing else: move left, move right, move up, move down"
        ),
        memory=0,
        max_turns=STEP_LIMIT + 1,
        max_action_tokens=8,
        closing_texts=(FAILURE,),
        actions=tuple(MOVES),
        min_return=-4.0 * STEP_LIMIT - 1,
        max_return=0.0,
        end_reasons=("goal", "turn_limit"),
        test_episodes=800,
        test_starts=tuple({"start": list(cell)} for cell in grid("double_t").starts),
        normalisations={
            "paper": Normalisation(-101.0, -83.0, -6.84, "LMRL-Gym, Table 5"),
            "lmrl": Normalisation(
                -85.89, -40.20, -6.84, "`random`, `behavior` and `optimal`, all exact"
            ),
        },
        paper={
            "episodes": 1240, "mean_length": 19.7, "std_length": 24.5,
            "success_rate": 0.11, "mean_return": -19.7, "std_return": 24.5,
        },
    )  # fmt: skip

    def __init__(self, *, maze: str = "double_t", start: list[int] | None = None, reward: str = "standard") -> None:
        if maze not in MAZES:
            raise ValueError(f"{self.spec.id}: maze is {maze!r}; allowed: {', '.join(MAZES)}")
        if reward not in REWARDS:
            raise ValueError(f"{self.spec.id}: reward is {reward!r}; allowed: {', '.join(REWARDS)}")
        self._grid = grid(maze)
        if start is not None and tuple(start) not in self._grid.starts:
            allowed = ", ".join(str(list(cell)) for cell in self._grid.starts)
            raise ValueError(f"{self.spec.id}: start is {start!r}; allowed cells [row, column]: {allowed}")
        self._fixed_start = None if start is None else (start[0], start[1])
        self._reward = REWARDS[reward]
        self._start = self._position = self._grid.starts[0]
        self._steps = 0

    def _reset(self, rng: random.Random) -> str:
        # The reference draws the goal, of which there is one, before the start; so the same seed starts alike.
        rng.choice([self._grid.goal])
        self._start = self._position = self._fixed_start or rng.choice(self._grid.starts)
        self._steps = 0
        return self._observe()

    def _step(self, action: str) -> Step:
        at_goal, moved, illegal = self._reward
        if self._steps >= STEP_LIMIT:
            return Step.end(FAILURE, moved, "turn_limit", success=False, cut=True, legal=action in MOVES)
        self._steps += 1
        if action not in MOVES:
            return Step.ongoing(self._observe(), illegal, legal=False)
        self._position = self._grid.move(self._position, action)
        if self._position == self._grid.goal:
            return Step.end("Success", at_goal, "goal", success=True)
        return Step.ongoing(self._observe(), moved)

    def _observe(self) -> str:
        goal, position = (", ".join(" ".join(str(n)) for n in cell) for cell in (self._grid.goal, self._position))
        walls = self._grid.describe_walls(self._position)
        return f"The goal is at position {goal}. Your current position is at position {position}. {walls}"

    @property
    def info(self) -> dict[str, Any]:
        """`start` and `position`, each row and column."""
        return {"start": list(self._start), "position": list(self._position)}

    def draw(self) -> str:
        """The maze from above: `@` is you, `G` the goal, `█` a wall."""
        rows = [list(row) for row in self._grid.rows]
        rows[self._position[0]][self._position[1]] = "@"
        picture = {"#": "██", ".": "  ", "G": "G ", "@": "@ "}
        return "\n".join("".join(picture[mark] for mark in row) for row in rows)


class MazePartiallyObserved(Maze):
    """The maze where only the walls around are told. Options as in `Maze`."""

    spec: ClassVar[TaskSpec] = replace(
        Maze.spec,
        id="maze_po",
        title="Maze (partially observed)",
        summary="Walk to the goal of a small maze, reading only the walls around, so past moves must be remembered.",
        instructions=(
            "You are in a maze, and walk to the hidden goal in as few steps as you can. Each message tells you the "
            "walls next to you; you must remember your moves to know where you are. Answer with exactly one of "
            "these lines and nothing else: move left, move right, move up, move down"
        ),
        memory=20,
        normalisations={
            "paper": Normalisation(-101.0, -83.0, -25.75, "LMRL-Gym, Table 5"),
            "lmrl": Normalisation(-85.89, -40.20, -7.24, "`random`, `behavior` and `best_memory`, all exact"),
        },
    )

    def _observe(self) -> str:
        return self._grid.describe_walls(self._position)


# Scripted policies -----------------------------------------------------------------------------------------------
SOLVER_SHARE = 0.15
JUNCTION: Cell = (5, 6)


def sub_maze(cell: Cell) -> str:
    """Which third of `double_t` a cell lies in: `left` arm, `right` arm, or `stem` with junction and goal."""
    return "stem" if cell[1] == JUNCTION[1] else "left" if cell[1] < JUNCTION[1] else "right"


def _random_move(context: Context) -> str:
    return context.rng.choice(list(MOVES))


def _behavior_move(context: Context) -> str:
    """With probability 0.15 the solver's move, else uniform over the moves that do not turn into an arm.

    The paper collects inside one of three sub-mazes and does not say where they end. Ours are the two arms and
    the stem. A walk may come down from an arm to the junction, where collection stops; it never enters an arm.
    """
    maze, cell = grid("double_t"), (context.info["position"][0], context.info["position"][1])
    if context.rng.random() < SOLVER_SHARE:
        return maze.shortest_move(cell)
    enters_arm = [m for m in MOVES if sub_maze(cell) == "stem" and sub_maze(maze.move(cell, m)) != "stem"]
    return context.rng.choice([m for m in MOVES if m not in enters_arm])


def _shortest_move(context: Context) -> str:
    return grid("double_t").shortest_move((context.info["position"][0], context.info["position"][1]))


Belief = frozenset[Cell]


def _split_belief(belief: Belief, move: str) -> dict[str, Belief]:
    """The beliefs after a move, by what is then observed; cells that reach the goal are gone."""
    maze, seen = grid("double_t"), dict[str, set[Cell]]()
    for cell in belief:
        target = maze.move(cell, move)
        if target != maze.goal:
            seen.setdefault(maze.describe_walls(target), set()).add(target)
    return {observation: frozenset(cells) for observation, cells in seen.items()}


def _first_beliefs() -> dict[str, Belief]:
    maze, seen = grid("double_t"), dict[str, set[Cell]]()
    for cell in maze.starts:
        seen.setdefault(maze.describe_walls(cell), set()).add(cell)
    return {observation: frozenset(cells) for observation, cells in seen.items()}


@functools.cache
def best_memory_values() -> dict[Belief, float]:
    """Expected return of the best policy from each reachable belief, by value iteration over beliefs.

    A belief is the set of cells that the observations and moves so far leave possible, each as likely, since the
    start is uniform and moves are deterministic. One sweep sets V(b) to the maximum over moves of
    sum over observations of |b'|/|b| (V(b') - 1), where the move onto the goal costs nothing.
    """
    beliefs = list(_first_beliefs().values())
    for belief in beliefs:
        for move in MOVES:
            beliefs.extend(b for b in _split_belief(belief, move).values() if b not in beliefs)
    values = dict.fromkeys(beliefs, -float(STEP_LIMIT))
    while True:
        change = 0.0
        for belief in beliefs:
            value = max(_move_value(belief, move, values) for move in MOVES)
            change = max(change, abs(value - values[belief]))
            values[belief] = value
        if change == 0.0:
            return values


def _move_value(belief: Belief, move: str, values: Mapping[Belief, float]) -> float:
    return sum(len(b) * (values[b] - 1) for b in _split_belief(belief, move).values()) / len(belief)


def _best_memory_move(context: Context) -> str:
    values = best_memory_values()
    observations = [turn.observation for turn in context.history] + [context.observation]
    belief = _first_beliefs()[observations[0]]
    for turn, after in zip(context.history, observations[1:], strict=True):
        if turn.action in MOVES:
            belief = _split_belief(belief, turn.action)[after]
    return max(MOVES, key=lambda move: _move_value(belief, move, values))


_COMMON = scripted(random=_random_move, behavior=_behavior_move)
Maze.policies = {**_COMMON, **scripted(optimal=_shortest_move)}
MazePartiallyObserved.policies = {**_COMMON, **scripted(best_memory=_best_memory_move)}
