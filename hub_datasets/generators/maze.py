"""Offline data of `maze` and `maze_po`: the paper's mixture of 15 % solver and 85 % random moves, in a sub-maze.

The paper collects 1.24k episodes inside three sub-mazes without giving their borders or how an episode in an arm
ends. Here the sub-mazes are the two arms and the stem (`env_servers.tasks.maze.sub_maze`): an episode that started
in an arm is cut when it comes out at the junction, and one that started in the stem stays there until the goal.
So no episode shows the whole way from an arm to the goal; a learner has to join the pieces, as in the paper.
"""

from __future__ import annotations

from env_servers.policy import Context
from env_servers.tasks.maze import JUNCTION, sub_maze
from hub_datasets.generators import Generator

LEFT_ARM = "left_sub_maze"


def stop_at_junction(context: Context) -> str | None:
    """Cut an episode that started in an arm when it reaches the junction."""
    start, position = (tuple(context.info[key]) for key in ("start", "position"))
    return LEFT_ARM if sub_maze(start) != "stem" and position == JUNCTION else None


GENERATOR = Generator(
    episodes={"train": 1116, "validation": 124},
    stop=stop_at_junction,
    stop_reasons={LEFT_ARM: "the walk came out of the arm it started in; the collector cut the episode there"},
    difference=(
        "Success agrees with the paper's (only walks that start in the stem, 3 of 25 cells, can reach the goal); our "
        "episodes are longer, since the paper does not say where its sub-mazes end and ours run until the junction."
    ),
)
