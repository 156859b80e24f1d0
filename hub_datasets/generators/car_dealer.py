"""Offline data of `car_dealer`: 19,000 conversations of scripted sellers with the scripted buyer.

Each episode draws one of three selling strategies, its prices, what it asks and how careless and pushy it is
(`env_servers.tasks.car_sellers`, `behavior`).
"""

from __future__ import annotations

from hub_datasets.generators import Generator

GENERATOR = Generator(
    episodes={"train": 17_100, "validation": 1_900},
    difference=(
        "The paper's conversations were written by a language model, these by scripts; its return is by the reward "
        "`fancy`, ours by `revenue`, in thousands of dollars. By `fancy` ours is 0.48 with standard deviation 0.38 "
        "(2,000 episodes). Success agrees with the paper's; our conversations are shorter."
    ),
    shard_episodes=2_500,
)
