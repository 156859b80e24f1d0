"""Who acts: `Policy`, what it sees (`Context`) and what it answers (`Action`).

A policy answers a whole batch of contexts at once, since a language model is far faster so. It keeps no state
of its own between calls: all of an episode that it may use is in the context.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from env_servers.seeding import hash_seed
from env_servers.task import TaskSpec
from env_servers.trajectory import Turn


class Context(NamedTuple):
    """One episode at the moment of choosing an action.

    Attributes:
        spec: The task's constants.
        history: All finished turns; what of them a model reads is `spec.memory`'s matter.
        observation: The newest observation, which the action answers.
        rng: The episode's own generator, the only source of randomness a policy may use.
        info: `Env.info`, for scripted policies alone: it holds the secrets.
        seed: What `rng` was seeded with; the same throughout the episode.
    """

    spec: TaskSpec
    history: Sequence[Turn]
    observation: str
    rng: random.Random
    info: Mapping[str, Any]
    seed: int = 0

    def once(self) -> random.Random:
        """A generator that begins anew at each action, for what a policy draws once for the whole episode."""
        return random.Random(hash_seed("once", self.seed))


class Action(NamedTuple):
    """An answer and, from a language model, the tokens it was sampled as.

    Attributes:
        text: The action without its terminator.
        prompt_ids: Token ids the model was given.
        token_ids: Sampled ids, the terminator included where it was sampled.
        logprobs: Log-probabilities of `token_ids` under the sampling distribution.
        finish_reason: `stop` (the model ended the action itself) or `length` (the token budget cut it).
        info: A JSON value on how the action came about; an episode's row holds the list of them.
    """

    text: str
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    finish_reason: str | None = None
    info: Any = None


class Policy(Protocol):
    """Anything that answers contexts with actions, one for each, in order."""

    @property
    def name(self) -> str:
        """Goes into every record as `behavior_policy`."""
        ...

    def act(self, contexts: Sequence[Context]) -> Sequence[Action]: ...


class ScriptedPolicy:
    """A policy from a function of one context. It must draw only from `context.rng`."""

    def __init__(self, name: str, choose: Callable[[Context], str]) -> None:
        self.name = name
        self._choose = choose

    def act(self, contexts: Sequence[Context]) -> list[Action]:
        """Answer each context on its own."""
        return [Action(self._choose(context)) for context in contexts]


def scripted(**choices: Callable[[Context], str]) -> dict[str, Callable[[], Policy]]:
    """A task's `policies` from functions of one context, by name."""
    return {name: functools.partial(ScriptedPolicy, name, choose) for name, choose in choices.items()}
