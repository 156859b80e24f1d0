"""What a build is to make: its plan, and the shards that the plan falls into."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

from env_servers.tasks import load_task, make_env, make_policy
from hub_datasets.generators import load_generator
from hub_datasets.load import EPISODES, INTERACTIONS, STARTS


@dataclass(frozen=True)
class Plan:
    """All that decides the bytes of a build."""

    task: str
    task_version: str
    config: str
    policy: str
    episodes: Mapping[str, int]
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    shard_episodes: int = 5_000
    lmrl_version: str = field(default_factory=lambda: version("lmrl"))
    datasets_version: str = field(default_factory=lambda: version("datasets"))
    pyarrow_version: str = field(default_factory=lambda: version("pyarrow"))


class Shard(NamedTuple):
    """A run of episodes [first, last) of a split, written as file `number` of `of`."""

    split: str
    number: int
    of: int
    first: int
    last: int

    def path(self, config: str) -> str:
        """Path within the dataset's folder."""
        return f"{config}/{self.split}-{self.number:05d}-of-{self.of:05d}.parquet"


def make_plan(
    task: str,
    *,
    config: str = EPISODES,
    policy: str | None = None,
    episodes: Mapping[str, int] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    shard_episodes: int | None = None,
) -> Plan:
    """The plan of a build; what is not given is the task's generator's.

    Raises:
        ValueError: Unknown task, policy or option, or a number of episodes below 1.
        FileNotFoundError: The task lacks its engine.
    """
    spec, generator = load_task(task).spec, load_generator(task)
    policy = policy or generator.policy
    make_policy(task, policy)
    with closing(make_env(task, env_kwargs)) as env:
        env.prepare()
    counts = dict(episodes or generator.episodes)
    size = shard_episodes or generator.shard_episodes
    for name, count in [*counts.items(), ("shard_episodes", size)]:
        if count < 1:
            raise ValueError(f"{name} is {count}; at least 1 episode is needed")
    if unknown_splits := set(counts) - {"train", "validation"}:
        raise ValueError(f"unknown splits {sorted(unknown_splits)}; a build has train and validation")
    check_config(config)
    return Plan(task, spec.version, config, policy, counts, dict(env_kwargs or {}), size)


def check_config(config: str) -> None:
    """Raise a ValueError unless a configuration can have this name, which is its folder's."""
    if config in (STARTS, INTERACTIONS) or not config.replace("_", "").replace("-", "").isalnum():
        raise ValueError(
            f"config is {config!r}; allowed are letters, digits, - and _, and not {STARTS!r} (the test starts) or "
            f"{INTERACTIONS!r} (a partner's answers)"
        )


def shards(plan: Plan) -> list[Shard]:
    """The shards of a plan, in order."""
    found = []
    for split, count in plan.episodes.items():
        of = -(-count // plan.shard_episodes)
        for number in range(of):
            first = number * plan.shard_episodes
            found.append(Shard(split, number, of, first, min(count, first + plan.shard_episodes)))
    return found


def split_episodes(task: str, total: int) -> dict[str, int]:
    """A total number of episodes, divided among the splits as the task's default numbers are.

    Raises:
        ValueError: The total is too small to give each split one episode.
    """
    default = load_generator(task).episodes
    train, *others = default
    counts = {split: round(total * default[split] / sum(default.values())) for split in others}
    counts = {train: total - sum(counts.values()), **counts}
    if min(counts.values()) < 1:
        raise ValueError(
            f"{total} episodes do not give each of {', '.join(counts)} one; ask for more, or give numbers by split"
        )
    return counts
