"""Offline data of `wordle`: 1,100,000 episodes of the paper's mixture of random and consistent guesses.

A guess is with probability 0.67 a random word of the list, else a random one of the words that agree with all
feedback so far (`env_servers.tasks.wordle`, `behavior`). The hidden words are drawn anew in each episode, so every
word of the list is also a hidden word of the training data, as in the paper.
"""

from __future__ import annotations

from hub_datasets.generators import Generator

GENERATOR = Generator(
    episodes={"train": 1_000_000, "validation": 100_000},
    difference=(
        "The mixture of guesses and the rules are the paper's, the words are not: our list has 422 common words under "
        "a licence that lets them be passed on, the paper's 431. Over 100,000 episodes the mean return is -4.10 (the "
        "paper's -4.12), the length 4.79 (4.82), the success rate 0.70 (0.70)."
    ),
    shard_episodes=25_000,
)
