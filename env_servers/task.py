"""A task: its constants (`TaskSpec`), one step's result (`Step`), and the environment (`Env`).

`Env.reset` and `Env.step` are written once and keep the books: what may be called when, what the seed may be,
what a finished episode refuses. A task implements `_reset` and `_step` and never touches those rules.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_servers.partners import Answer, Partner, Query
    from env_servers.policy import Policy
    from env_servers.scores import Normalisation
    from env_servers.trajectory import Trajectory

T = TypeVar("T")


@dataclass(frozen=True)
class TaskSpec:
    """The constants of a task.

    Attributes:
        id: Task id, also the name of its Hub repository.
        version: Changes whenever an episode with the same seed and actions would read or pay differently.
        title: Name for people.
        summary: One sentence: what the agent has to do.
        instructions: What a chat model is told before the first observation.
        memory: How much of the past a policy sees: None is all, 0 the newest observation, k the last k turns.
        max_turns: Most actions an episode can have.
        max_action_tokens: Tokens that every legal action, with its terminator, fits in with GPT-2's tokenizer.
        min_return: Lowest possible undiscounted return, in the task's reward units.
        max_return: Highest possible undiscounted return.
        end_reasons: How the environment itself can end an episode.
        closing_texts: What the environment may say at a limit in place of the next observation: after it nothing is
            known of the state, so no value can be bootstrapped from it.
        actions: All actions that the task understands, where they are few and always the same; else empty.
        test_episodes: Number of episodes of the `tasks` configuration, the paper's where it states one.
        test_starts: Keyword arguments of the environment that the test episodes go through in turn.
        normalisations: Scales for `scores.normalize`, by name; `paper` is LMRL-Gym's Table 5. `lmrl` is ours:
            a score of 0 is the uniformly random policy's return, 50 the collecting policy's, 100 the best scripted
            policy's.
        paper: Row of LMRL-Gym's Table 1 for the offline data: size, mean and std of length and return, success.
        repeatable: Options under which the same seed and actions always give the same episode. Empty where that
            holds anyway; a task with an opponent or partner that draws for itself names one that does not.
    """

    id: str
    version: str
    title: str
    summary: str
    instructions: str
    memory: int | None
    max_turns: int
    max_action_tokens: int
    min_return: float
    max_return: float
    end_reasons: tuple[str, ...]
    test_episodes: int
    closing_texts: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    test_starts: tuple[Mapping[str, Any], ...] = ({},)
    normalisations: Mapping[str, Normalisation] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    repeatable: Mapping[str, Any] = field(default_factory=dict)


class EpisodeError(RuntimeError):
    """An episode that cannot be finished, since something outside the task failed: an engine, a partner, a server.

    It says nothing about the policy. So it is counted apart and never as a result, and the episode may be played
    again.
    """


class Step(NamedTuple):
    """What the environment answers to one action. Built by `Step.ongoing` and `Step.end`, never by hand.

    Attributes:
        observation: Text without trailing newline.
        reward: In the task's units.
        legal: False where the action was not understood or not allowed.
        terminated: The task ended by its own rules.
        truncated: The episode was cut by a limit.
        end_reason: One of the task's `end_reasons`, None while the episode goes on.
        success: The task's own predicate; False while the episode goes on.
    """

    observation: str
    reward: float
    legal: bool = True
    terminated: bool = False
    truncated: bool = False
    end_reason: str | None = None
    success: bool = False

    @classmethod
    def ongoing(cls, observation: str, reward: float, *, legal: bool = True) -> Step:
        """A step after which the episode goes on."""
        return cls(observation, float(reward), legal)

    @classmethod
    def end(
        cls, observation: str, reward: float, reason: str, *, success: bool, cut: bool = False, legal: bool = True
    ) -> Step:
        """The last step; `cut` tells a limit (truncated) from the task's own end (terminated)."""
        return cls(observation, float(reward), legal, not cut, cut, reason, success)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class Pending(ABC, Generic[T]):
    """What is under way on another machine: the first observation of an episode, or the result of an action.

    Whoever plays many episodes lets all of them go as far, and then waits, so that they take the time of the slowest.
    """

    @abstractmethod
    def wait(self, seconds: float | None = None) -> T:
        """The result.

        Args:
            seconds: Most time to wait now; None waits until it is there or has failed.

        Raises:
            TimeoutError: It is not there yet; it may be waited for again.
            EpisodeError: As in `Env.reset` and `Env.step`.
        """


class Env(ABC):
    """One environment, playing one episode at a time.

    A subclass has a `spec`, its scripted `policies`, and implements `_reset` and `_step`. Its options are keyword
    arguments of `__init__` with JSON values, so that an episode's row can rebuild it.

    Where a partner speaks for the environment, `_step` may give a query for it in place of a result, and `_receive`
    takes the answer. `step` asks the partner itself; whoever plays many episodes calls `submit` and `receive`, and
    asks for all of them at once. Where the environment is on another machine, `begin` and `submit` give what is under
    way, and `reset` and `step` wait for it.

    Attributes:
        guarded: Options that reach out of the task (files, programs, networks, the machine's time), each with the
            values that a stranger may choose, such as a server's client; others are for whoever runs the process.
        partner: Who answers queries; None where the task has none or it has not been needed yet. A task with a
            partner finds it in `prepare` and `reset`, unless one was put here before.
    """

    spec: ClassVar[TaskSpec]
    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {}
    guarded: ClassVar[Mapping[str, Collection[Any]]] = {}

    partner: Partner | None = None

    _playing = False
    _finished = False
    _waiting = False

    def reset(self, seed: int) -> str:
        """Start the episode that `seed` stands for.

        Args:
            seed: Non-negative integer. The same seed and actions give the same episode, on every machine (where
                the task has `spec.repeatable`, with those options).

        Returns:
            The first observation.

        Raises:
            TypeError: The seed is not an integer.
            ValueError: The seed is negative.
            EpisodeError: Something outside the task failed.
        """
        self._check_seed(seed)
        self._playing, self._finished, self._waiting = True, False, False
        return self._reset(random.Random(seed))

    def begin(self, seed: int, named: Mapping[str, Any] | None = None) -> str | Pending[str]:
        """Like `reset`, as far as it goes without waiting for another machine.

        Args:
            seed: As in `reset`.
            named: What records that are kept elsewhere call the episode: `split`, `index`, `policy`.
        """
        return self.reset(seed)

    def step(self, action: str) -> Step:
        """Play one action. Any string is allowed; one that the task does not understand costs what it says.

        Args:
            action: Text; one trailing newline, the terminator of the plain rendering, is taken off.

        Raises:
            TypeError: The action is not a string.
            RuntimeError: `reset` was not called, or the episode is over.
            EpisodeError: Something outside the task failed; the episode is over.
        """
        outcome = self.submit(action)
        while not isinstance(outcome, Step):
            if isinstance(outcome, Pending):
                outcome = outcome.wait()
            else:
                assert self.partner is not None, "a task that asks has a partner"
                outcome = self.receive(self.partner.answer([outcome])[0])
        return outcome

    def submit(self, action: str) -> Step | Query | Pending[Step]:
        """Play one action as far as it goes without a partner or another machine. Arguments and errors are as in
        `step`.

        Returns:
            The result; or what `partner` has to be asked, whose answer goes to `receive`; or what is under way.
        """
        self._check_action(action)
        if self._waiting:
            raise RuntimeError(f"{self.spec.id}: the partner has not answered yet; give its answer to receive(answer)")
        return self._keep(lambda: self._step(action.removesuffix("\n")))

    def receive(self, answer: Answer | EpisodeError) -> Step | Query:
        """Go on with an action that waits for the partner.

        Args:
            answer: What `partner.answer` gave for the query.

        Returns:
            The result, or another query.

        Raises:
            RuntimeError: No action waits.
            EpisodeError: The partner failed; the episode is over.
        """
        if not self._waiting:
            raise RuntimeError(f"{self.spec.id}: no action waits for an answer; call submit(action) before")
        if isinstance(answer, EpisodeError):
            self._playing, self._finished, self._waiting = False, True, False
            raise answer
        return self._keep(lambda: self._receive(answer))

    def _keep(self, move: Callable[[], Step | Query]) -> Step | Query:
        """What a move gives, with the books kept."""
        try:
            outcome = move()
        except EpisodeError:
            self._playing, self._finished, self._waiting = False, True, False
            raise
        self._waiting = not isinstance(outcome, Step)
        if isinstance(outcome, Step) and outcome.done:
            self._playing, self._finished = False, True
        return outcome

    def _check_seed(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"{self.spec.id}: the seed is {seed!r}; it must be an integer")
        if seed < 0:
            raise ValueError(f"{self.spec.id}: the seed is {seed}; it must not be negative")

    def _check_action(self, action: str) -> None:
        if not isinstance(action, str):
            raise TypeError(f"{self.spec.id}: the action is {action!r}; it must be a string")
        if not self._playing:
            again = "the episode is over" if self._finished else "there is no episode yet"
            raise RuntimeError(f"{self.spec.id}: {again}; call reset(seed) before step(action)")

    @abstractmethod
    def _reset(self, rng: random.Random) -> str: ...

    @abstractmethod
    def _step(self, action: str) -> Step | Query: ...

    def _receive(self, answer: Answer) -> Step | Query:
        raise NotImplementedError(f"{self.spec.id} asks no partner")

    @property
    def info(self) -> dict[str, Any]:
        """What the environment knows of the episode (JSON values), for records and scripted policies.

        It can hold secrets, so no learned policy may read it. Where start states repeat, `start` names this one.
        """
        return {}

    def draw(self) -> str:
        """A picture of the state for a person at a terminal; empty where the observation says it all."""
        return ""

    def close(self) -> None:
        """Free what the environment holds; it may be called more than once."""
        return None

    def prepare(self) -> None:
        """Find what the episodes need from outside (an engine, a partner), so that a lack is told before a run begins.

        Raises:
            ValueError: It is missing, or cannot do what the options ask of it.
        """
        return None

    def follow(self, trajectory: Trajectory) -> None:
        """From the next `reset` on, take from this record what an opponent or partner did, instead of asking one.

        A record that does not fit the rules raises `EpisodeError` when it is reached.
        """
        return None

    @classmethod
    def running(cls) -> AbstractContextManager[object]:
        """Held while many episodes are played: what they share (engine processes) then outlives the single one."""
        return nullcontext()
