"""How each task's offline data is collected. `load_generator` finds a task's file by the name of its module."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field

from env_servers.play import Stop
from env_servers.tasks import load_task


@dataclass(frozen=True)
class Generator:
    """The defaults of a task's dataset; every one of them is an option of `lmrl data build`.

    Attributes:
        policy: Scripted policy of the task that collects the episodes.
        episodes: Number of episodes of each split.
        stop: Asked before each action; a reason it returns cuts the episode there. It must be a module's function,
            since worker processes import it.
        stop_reasons: What `stop` can return, with the meaning.
        difference: A sentence on how the data differs from the paper's, for the card.
        shard_episodes: Episodes of one Parquet file, which is also one worker's piece of work.
        reference_episodes: Test episodes that each scripted policy plays for the card's reference scores.
        stream: Write each finished episode to the disk at once, so that an interrupted build loses none. For episodes
            that cost much more than the writing.
    """

    policy: str = "behavior"
    episodes: Mapping[str, int] = field(default_factory=lambda: {"train": 900, "validation": 100})
    stop: Stop | None = None
    stop_reasons: Mapping[str, str] = field(default_factory=dict)
    difference: str = ""
    shard_episodes: int = 5_000
    reference_episodes: int = 800
    stream: bool = False


def load_generator(task: str) -> Generator:
    """The `GENERATOR` of the file here that is named as the task's module, or the defaults where there is none."""
    name = f"hub_datasets.generators.{load_task(task).__module__.rpartition('.')[2]}"
    if importlib.util.find_spec(name) is None:
        return Generator()
    generator: Generator = importlib.import_module(name).GENERATOR
    return generator
