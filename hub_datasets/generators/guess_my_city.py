"""Offline data of `guess_my_city`: 100,000 games of scripted questioners against the knowledge partner.

The questioner is drawn once per game (`env_servers.tasks.city_agents`, `behavior`): keen and a little careless, patient
and guessing late, or lost. The paper's data is a language model's talk with itself.
"""

from __future__ import annotations

from hub_datasets.generators import Generator

GENERATOR = Generator(
    episodes={"train": 90_000, "validation": 10_000},
    difference=(
        "The paper's games were written by GPT-3.5, which asks and answers in its own words; here scripted questioners "
        "ask 220 questions, besides guesses, and tables answer. Over 10,000 games the success rate is 0.53 (the "
        "paper's 0.53), the mean return -17.3 (-18.8), the length 17.8 (18.8). A success rate of 0.53 and a length of "
        "18.8 give a return of -18.3, so the paper's three numbers do not fit together."
    ),
    shard_episodes=5_000,
)
