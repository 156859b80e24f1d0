"""Offline data of `text_nav` and `text_nav_po`: the paper's two policies, each optimal in one half of the house.

An episode is collected by `near` with probability `env_servers.tasks.text_nav.NEAR_SHARE`, else by `far`.
"""

from __future__ import annotations

from hub_datasets.generators import Generator

GENERATOR = Generator(
    episodes={"train": 2250, "validation": 250},
    difference=(
        "Success agrees with the paper's, since the share of the two collecting policies, which the paper does not "
        "give, is chosen for it. Our lengths vary less: every episode ends after 15 actions, as in the paper's code, "
        "and with that limit no data can have the standard deviation of 8.77 that the paper gives."
    ),
)
