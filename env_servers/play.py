"""`play`, the only loop of environment and policy: generation, evaluation and online training all run it.

A fixed number of slots is kept full: when one episode ends, the next one starts in its place, so the batch that
a language model answers never drains. Every episode has its own environment and its own generator, so what
happens in it does not depend on how many slots there are or who plays beside it.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from env_servers.partners import Answer, Query
from env_servers.policy import Action, Context, Policy
from env_servers.seeding import episode_seed, policy_seed
from env_servers.task import Env, EpisodeError, Pending, Step
from env_servers.tasks import load_task, make_env
from env_servers.trajectory import Trajectory, Turn

Stop = Callable[[Context], str | None]

# Seconds that episodes which have begun wait for those that are still beginning, on a server that has no room, say.
PATIENCE = 5.0


@dataclass(frozen=True)
class Start:
    """Where one episode begins: its place in a split, its seed and its environment's options."""

    split: str
    index: int
    seed: int
    env_kwargs: Mapping[str, Any]


class Played(NamedTuple):
    """A finished episode, and for each turn the action as the policy gave it, tokens included, and its legality."""

    trajectory: Trajectory
    actions: tuple[Action, ...]
    legal: tuple[bool, ...]


class Failure(NamedTuple):
    """An episode that something outside the task kept from being finished."""

    start: Start
    error: EpisodeError


def episode_starts(
    task: str, split: str, indices: Iterable[int], env_kwargs: Mapping[str, Any] | None = None
) -> Iterator[Start]:
    """The starts of a split's episodes.

    Test episodes go through the task's `test_starts` in turn, so that each start state is played equally often;
    an option given in `env_kwargs` takes precedence.
    """
    spec = load_task(task).spec
    for index in indices:
        given = spec.test_starts[index % len(spec.test_starts)] if split == "test" else {}
        seed = episode_seed(task, spec.version, split, index)
        yield Start(split, index, seed, {**given, **(env_kwargs or {})})


def play(
    task: str,
    policy: Policy,
    starts: Iterable[Start],
    *,
    slots: int = 32,
    run_seed: int = 0,
    stop: Stop | None = None,
    on_failure: Callable[[Failure], None] | None = None,
    env_maker: Callable[[str, Mapping[str, Any]], Env] = make_env,
) -> Iterator[Played]:
    """Play episodes, and yield each as it ends.

    Args:
        task: Task id.
        policy: Answers a batch of up to `slots` contexts per round.
        starts: Read only as slots get free, so it may be long or endless.
        slots: Number of episodes at the same time. It changes speed, never what a scripted policy does.
        run_seed: Gives the policy other random numbers on the same episodes.
        stop: Asked before each action; a reason it returns cuts the episode there (truncated). At least one
            action is played.
        on_failure: Told of each episode that something outside the task kept from being finished; the others go
            on. None lets the first such error end the run.
        env_maker: Builds an environment from task id and options.

    Yields:
        Finished episodes, in the order in which they end.

    Raises:
        ValueError: `slots` is below 1, or the policy did not give one action per context.
        EpisodeError: Something outside the task failed, and there is no `on_failure`.
    """
    if slots < 1:
        raise ValueError(f"slots is {slots}; at least 1 episode must be playing")
    queue = iter(starts)
    playing: list[_Slot] = []
    with load_task(task).running():
        try:
            while True:
                late = any(slot.late for slot in playing)
                while len(playing) < slots and not late:
                    if (start := next(queue, None)) is None:
                        break
                    slot = _Slot(task, start, env_maker(task, start.env_kwargs), run_seed)
                    playing.append(slot)
                    slot.begin(policy.name)
                if not playing:
                    return
                _await_beginnings(playing)
                active = [slot for slot in playing if slot.error is None and slot.beginning is None]
                contexts = [slot.context() for slot in active]
                actions = policy.act(contexts) if contexts else []
                if len(actions) != len(contexts):
                    raise ValueError(f"policy {policy.name!r} gave {len(actions)} actions for {len(contexts)} contexts")
                for slot, action in zip(active, actions, strict=True):
                    slot.submit(action)
                for slot in active:
                    slot.await_step()
                _ask_partners(active)
                for slot in active:
                    slot.settle(stop)
                left = [slot for slot in playing if slot.over]
                playing = [slot for slot in playing if not slot.over]
                for slot in left:
                    slot.env.close()
                    if slot.error is None:
                        yield slot.played(policy.name)
                    elif on_failure is None:
                        raise slot.error
                    else:
                        on_failure(Failure(slot.start, slot.error))
        finally:
            for slot in playing:
                slot.env.close()


def play_through(
    task: str,
    policy: Policy,
    starts: Iterable[Start],
    *,
    attempts: int = 3,
    slots: int = 32,
    stop: Stop | None = None,
    env_maker: Callable[[str, Mapping[str, Any]], Env] = make_env,
) -> Iterator[Played]:
    """Like `play`, but an episode that something outside the task kept from being finished is played again.

    Args:
        task: Task id.
        policy: As in `play`.
        starts: As in `play`.
        attempts: How often an episode may be begun.
        slots: As in `play`.
        stop: As in `play`.
        env_maker: As in `play`.

    Raises:
        EpisodeError: An episode failed in every attempt.
    """
    todo: Iterable[Start] = starts
    for attempt in range(attempts):
        failures: list[Failure] = []
        yield from play(task, policy, todo, slots=slots, stop=stop, on_failure=failures.append, env_maker=env_maker)
        if not failures:
            return
        if attempt == attempts - 1:
            raise failures[0].error
        todo = [failure.start for failure in failures]


def _await_beginnings(slots: Sequence[_Slot]) -> None:
    """Wait for the first observations. Whoever has none for long is late, and left out as long as others can play."""
    until = time.monotonic() + PATIENCE
    for slot in slots:
        slot.await_beginning(0.0 if slot.late else max(until - time.monotonic(), 0.0))
    while all(slot.late for slot in slots):  # until any of them is there, and it need not be the first
        for number, slot in enumerate(slots):
            slot.await_beginning(0.0 if number else 0.01)


def _ask_partners(slots: Sequence[_Slot]) -> None:
    """Ask for all the slots whose action waits for a partner, all that wait for the same one at once."""
    while waiting := [slot for slot in slots if slot.error is None and isinstance(slot.outcome, Query)]:
        groups: dict[int, list[_Slot]] = {}
        for slot in waiting:
            groups.setdefault(id(slot.env.partner), []).append(slot)
        for group in groups.values():
            partner = group[0].env.partner
            assert partner is not None, "a task that asks has a partner"
            queries = [slot.outcome for slot in group if isinstance(slot.outcome, Query)]
            answers = partner.answer(queries)
            if len(answers) != len(queries):
                raise ValueError(f"partner {partner.name!r} gave {len(answers)} answers to {len(queries)} queries")
            for slot, answer in zip(group, answers, strict=True):
                slot.receive(answer)


class _End(NamedTuple):
    terminated: bool
    reason: str
    success: bool


@dataclass
class _Slot:
    """One episode in play."""

    task: str
    start: Start
    env: Env
    run_seed: int
    turns: list[Turn] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    legal: list[bool] = field(default_factory=list)
    observation: str = ""
    action: Action | None = None
    beginning: Pending[str] | None = None
    late: bool = False
    outcome: Step | Query | Pending[Step] | None = None
    usage: Counter[str] = field(default_factory=Counter)
    end: _End | None = None
    error: EpisodeError | None = None

    def __post_init__(self) -> None:
        self.seed = policy_seed(self.start.seed, self.run_seed)
        self.rng = random.Random(self.seed)

    @property
    def over(self) -> bool:
        return self.end is not None or self.error is not None

    def begin(self, policy_name: str) -> None:
        """Reset as far as it goes without waiting for another machine."""
        named = {"split": self.start.split, "index": self.start.index, "policy": policy_name}
        try:
            first = self.env.begin(self.start.seed, named)
        except EpisodeError as error:
            self.error = error
        else:
            self._note(first)

    def await_beginning(self, seconds: float) -> None:
        """Wait for the first observation, where there is none yet."""
        if self.beginning is None:
            return
        try:
            self._note(self.beginning.wait(seconds))
        except TimeoutError:
            self.late = True
        except EpisodeError as error:
            self.error, self.late = error, False

    def _note(self, first: str | Pending[str]) -> None:
        if isinstance(first, Pending):
            self.beginning = first
        else:
            self.observation, self.beginning, self.late = first, None, False

    def context(self) -> Context:
        return Context(self.env.spec, self.turns, self.observation, self.rng, self.env.info, self.seed)

    def submit(self, action: Action) -> None:
        """Play the action as far as it goes without a partner or another machine."""
        self.action = action
        self._go(lambda: self.env.submit(action.text))

    def await_step(self) -> None:
        """Wait for the other machine, where there is one."""
        if isinstance(self.outcome, Pending):
            self._go(self.outcome.wait)

    def receive(self, answer: Answer | EpisodeError) -> None:
        """Go on with the partner's answer."""
        if isinstance(answer, Answer) and answer.usage:
            self.usage.update(answer.usage)
        self._go(lambda: self.env.receive(answer))

    def _go(self, move: Callable[[], Step | Query | Pending[Step]]) -> None:
        self.outcome = None
        try:
            self.outcome = move()
        except EpisodeError as error:
            self.error = error

    def settle(self, stop: Stop | None) -> None:
        """Note what the action led to, and whether the episode is over."""
        if self.error is not None:
            return
        step, action = self.outcome, self.action
        assert action is not None and isinstance(step, Step), "partners are asked until every action has its result"
        self.turns.append(Turn(self.observation, action.text.removesuffix("\n"), step.reward))
        self.actions.append(action)
        self.legal.append(step.legal)
        self.observation = step.observation
        if step.done:
            assert step.end_reason is not None, "a task ends an episode with Step.end, which has a reason"
            self.end = _End(step.terminated, step.end_reason, step.success)
        elif stop is not None and (reason := stop(self.context())) is not None:
            self.end = _End(False, reason, False)

    def played(self, policy_name: str) -> Played:
        assert self.end is not None
        spec, start, info = self.env.spec, self.start, self.env.info
        if any(action.info is not None for action in self.actions):
            info = {**info, "policy": [action.info for action in self.actions]}
        if self.usage:
            info = {**info, "answer_usage": dict(sorted(self.usage.items()))}
        trajectory = Trajectory(
            task=self.task,
            task_version=spec.version,
            env_kwargs=dict(start.env_kwargs),
            split=start.split,
            index=start.index,
            seed=start.seed,
            turns=tuple(self.turns),
            final_observation=self.observation or None,
            terminated=self.end.terminated,
            truncated=not self.end.terminated,
            end_reason=self.end.reason,
            success=self.end.success,
            num_invalid=self.legal.count(False),
            behavior_policy=policy_name,
            info=info,
        )
        return Played(trajectory, tuple(self.actions), tuple(self.legal))


class Difference(NamedTuple):
    """Where a replayed episode first departs from its record."""

    turn: int
    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"turn {self.turn}, {self.what}: recorded {self.recorded!r}, replayed {self.replayed!r}"


def replay(trajectory: Trajectory, env_maker: Callable[[str, Mapping[str, Any]], Env] = make_env) -> Difference | None:
    """Play a record's actions again; None if every observation, reward and the end are the same.

    What an opponent or partner did is taken from the record, too.
    """
    env = env_maker(trajectory.task, trajectory.env_kwargs)
    number = 0
    try:
        env.follow(trajectory)
        observation, step, invalid = env.reset(trajectory.seed), None, 0
        for number, turn in enumerate(trajectory.turns):
            if step is not None and step.done:
                return Difference(number, "end of the episode", "goes on", step.end_reason)
            if observation != turn.observation:
                return Difference(number, "observation", turn.observation, observation)
            step = env.step(turn.action)
            if step.reward != turn.reward:
                return Difference(number, "reward", turn.reward, step.reward)
            observation, invalid = step.observation, invalid + (not step.legal)
        assert step is not None, "a trajectory has at least one turn"
        return _compare_end(trajectory, step, invalid)
    except EpisodeError as error:
        return Difference(number, "episode", "went on", str(error))
    finally:
        env.close()


def _compare_end(trajectory: Trajectory, step: Step, invalid: int) -> Difference | None:
    # An episode that the collector cut has a reason that is none of the task's own; the environment goes on.
    cut_by_collector = trajectory.truncated and trajectory.end_reason not in load_task(trajectory.task).spec.end_reasons
    pairs: Sequence[tuple[str, Any, Any]] = [
        ("final observation", trajectory.final_observation, step.observation or None),
        ("number of invalid actions", trajectory.num_invalid, invalid),
    ]
    if cut_by_collector:
        pairs = [
            *pairs,
            ("end of the episode", trajectory.end_reason, step.end_reason or trajectory.end_reason),
            ("success", trajectory.success, False),
        ]
    else:
        pairs = [
            *pairs,
            ("end of the episode", trajectory.end_reason, step.end_reason),
            ("terminated", trajectory.terminated, step.terminated),
            ("truncated", trajectory.truncated, step.truncated),
            ("success", trajectory.success, step.success),
        ]
    for what, recorded, replayed in pairs:
        if recorded != replayed:
            return Difference(len(trajectory.turns), what, recorded, replayed)
    return None
