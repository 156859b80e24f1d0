"""Offline data of `chess`: Stockfish on both sides, White at a rating drawn once per game, Black at its lowest.

The paper draws White's rating from 800 to 1600 and plays 100 games at each draw; here every game has its own draw,
which gives the same distribution of games.
"""

from __future__ import annotations

from hub_datasets.generators import Generator

GENERATOR = Generator(
    episodes={"train": 562_500, "validation": 62_500},
    difference=(
        "As in the paper both sides are Stockfish 15.1, and a rating below 1350 plays as 1350, which the engine makes "
        "its lowest; the moves are drawn by the engine's clock, so games differ from build to build, and numbers by "
        "chance alone."
    ),
    shard_episodes=2_500,
    reference_episodes=200,
    stream=True,
)
