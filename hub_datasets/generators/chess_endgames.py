"""Offline data of `chess_endgames`: engine moves and random moves, mixed by a share that is drawn once per game.

The paper does not give the distribution of that share, and names random and engine moves once in the one order and
once in the other. Uniform from 0 to 1, which is the same in both orders, with an engine at full strength that searches
12 plies, gives the paper's success rate and lengths.
"""

from __future__ import annotations

from hub_datasets.generators import Generator

GENERATOR = Generator(
    episodes={"train": 87_980, "validation": 9_776},
    difference=(
        "The paper does not say how the share of random moves is drawn nor how deep the engine searches; with a "
        "uniform share and 12 plies success, return and length agree with the paper's."
    ),
    shard_episodes=2_500,
    reference_episodes=645,
    stream=True,
)
