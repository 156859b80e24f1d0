"""`play`, the only loop of environment and policy: generation, evaluation and online training all run it.

A fixed number of slots is kept full: when one episode ends, the next one starts in its place, so the batch that
a language model answers never drains. Every episode has its own environment and its own generator, so what
happens in it does not depend on how many slots there are or who plays beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from env_servers.policy import Action, Context, Policy
from env_servers.seeding import episode_seed, policy_rng
from env_servers.task import Env, Step
from env_servers.tasks import load_task, make_env
from env_servers.trajectory import Trajectory, Turn

Stop = Callable[[Context], str | None]


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
        env_maker: Builds an environment from task id and options.

    Yields:
        Finished episodes, in the order in which they end.

    Raises:
        ValueError: `slots` is below 1, or the policy did not give one action per context.
    """
    if slots < 1:
        raise ValueError(f"slots is {slots}; at least 1 episode must be playing")
    queue = iter(starts)
    playing: list[_Slot] = []
    try:
        while True:
            while len(playing) < slots and (start := next(queue, None)) is not None:
                playing.append(_Slot(task, start, env_maker(task, start.env_kwargs), policy_rng(start.seed, run_seed)))
            if not playing:
                return
            contexts = [slot.context() for slot in playing]
            actions = policy.act(contexts)
            if len(actions) != len(contexts):
                raise ValueError(f"policy {policy.name!r} gave {len(actions)} actions for {len(contexts)} contexts")
            finished = [s for s, action in zip(playing, actions, strict=True) if s.step(action, stop)]
            playing = [slot for slot in playing if slot.end is None]
            for slot in finished:
                slot.env.close()
                yield slot.played(policy.name)
    finally:
        for slot in playing:
            slot.env.close()


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
    rng: random.Random
    turns: list[Turn] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    legal: list[bool] = field(default_factory=list)
    end: _End | None = None

    def __post_init__(self) -> None:
        self.observation = self.env.reset(self.start.seed)

    def context(self) -> Context:
        return Context(self.env.spec, self.turns, self.observation, self.rng, self.env.info)

    def step(self, action: Action, stop: Stop | None) -> bool:
        """Play the action; whether the episode is over."""
        step: Step = self.env.step(action.text)
        self.turns.append(Turn(self.observation, action.text.removesuffix("\n"), step.reward))
        self.actions.append(action)
        self.legal.append(step.legal)
        self.observation = step.observation
        if step.done:
            assert step.end_reason is not None, "a task ends an episode with Step.end, which has a reason"
            self.end = _End(step.terminated, step.end_reason, step.success)
        elif stop is not None and (reason := stop(self.context())) is not None:
            self.end = _End(False, reason, False)
        return self.end is not None

    def played(self, policy_name: str) -> Played:
        assert self.end is not None
        spec, start = self.env.spec, self.start
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
            info=self.env.info,
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
    """Play a record's actions again; None if every observation, reward and the end are the same."""
    env = env_maker(trajectory.task, trajectory.env_kwargs)
    try:
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
