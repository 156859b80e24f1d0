"""Offline data of `twenty_questions`: 100,000 episodes of questioners of all degrees of skill.

The paper's data are conversations of two fine-tuned language models. Ours come from scripted questioners against the
knowledge partner (`env_servers.tasks.twenty_questions`, `behavior`), so that they can be made anew by anyone.
"""

from __future__ import annotations

from hub_datasets.generators import Generator

GENERATOR = Generator(
    episodes={"train": 90_000, "validation": 10_000},
    difference=(
        "Scripted questioners and a partner that answers from facts stand in for the paper's two fine-tuned language "
        "models. The mean return is the same, -17.35 (the paper's -17.3); the success rate is 0.38 (0.31), and the "
        "returns spread further, 4.4 (2.6), so that there is more to learn from. A return of -17.3 does not fit the "
        "paper's own length of 14.9 and success rate of 0.31; ours are 17.7 and 0.38."
    ),
)
