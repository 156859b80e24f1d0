"""Seeds by hash, so that no two splits, tasks or policies share random numbers.

Neighbouring integers as seeds are a trap: `Random(42 + i)` and `Random(43 + i)` share all items but one. Here
every seed is the SHA-256 of a name, so test episodes never meet training episodes, whatever their number.
"""

from __future__ import annotations

import hashlib

SPLITS = ("train", "validation", "test")


def hash_seed(*parts: str | int) -> int:
    """A seed in [0, 2**63) from the parts, the same on every machine and in every process."""
    name = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def episode_seed(task: str, version: str, split: str, index: int) -> int:
    """The argument of `Env.reset` for one episode of a split.

    Raises:
        ValueError: The split is unknown or the index is negative.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known splits: {', '.join(SPLITS)}")
    if index < 0:
        raise ValueError(f"episode index is {index}; it counts from 0")
    return hash_seed("episode", task, version, split, index)


def policy_seed(seed: int, run_seed: int = 0) -> int:
    """The seed of the generator that a policy draws from in the episode with `seed`.

    It is a stream of its own, so what the policy draws never shifts what the environment draws, and the same
    episode is played the same way whatever else is played beside it.
    """
    return hash_seed("policy", seed, run_seed)
