"""Numbers of episodes by what their seeds draw, for records whose start no option of the environment can give."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from env_servers.seeding import episode_seed
from env_servers.tasks import make_env


class Numbers:
    """Gives out each number of a split once, the first free one whose seed draws what is wanted."""

    def __init__(
        self, task: str, env_kwargs: Mapping[str, Any], split: str, start_of: Callable[[Mapping[str, Any]], str]
    ) -> None:
        self._env = make_env(task, env_kwargs)
        self._split, self._start_of = split, start_of
        self._next = 0
        self._free: dict[str, deque[int]] = {}

    def info(self, index: int) -> dict[str, Any]:
        """The environment's `info` at the start of the episode of that number."""
        spec = self._env.spec
        self._env.reset(episode_seed(spec.id, spec.version, self._split, index))
        return dict(self._env.info)

    def _draw(self) -> tuple[int, str]:
        index = self._next
        self._next += 1
        return index, self._start_of(self.info(index))

    def take(self, starts: Collection[str] | None) -> int:
        """The first free number that draws one of the starts, or the first free one."""
        keys = starts or self._free
        heads = [(self._free[key][0], key) for key in keys if self._free.get(key)]
        if heads:
            return self._free[min(heads)[1]].popleft()
        while True:
            index, key = self._draw()
            if not starts or key in starts:
                return index
            self._free.setdefault(key, deque()).append(index)

    def use(self, indices: Sequence[int]) -> None:
        """Take these numbers, which an earlier run gave out."""
        used = set(indices)
        free = [(index, key) for key, found in self._free.items() for index in found]
        while self._next <= max(used):
            free.append(self._draw())
        self._free = {}
        for index, key in sorted(free):
            if index not in used:
                self._free.setdefault(key, deque()).append(index)
