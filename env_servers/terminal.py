"""An episode at a terminal: played by hand or by a policy, or shown as `lmrl eval` logged it and gone on with."""

from __future__ import annotations

import importlib
import io
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from env_servers.play import replay
from env_servers.policy import Context, Policy
from env_servers.seeding import policy_seed
from env_servers.task import Env
from env_servers.tasks import make_env
from env_servers.trajectory import Trajectory, Turn

LOG = "eval_harness.log"  # of `lmrl eval`, named as text, since this room must not import the rooms that build on it


def play_one(
    env: Env,
    player: Policy | None,
    seed: int,
    given: Sequence[str] | None = None,
    go_on: Callable[[], Env] | None = None,
) -> None:
    """Play an episode, the first actions as given; after them in the environment that `go_on` makes, or not at all."""
    observation, turns, drawn = env.reset(seed), list[Turn](), policy_seed(seed)
    rng = random.Random(drawn)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are no text are a bad action, not the end
    print(f"{env.spec.title}, seed {seed}\n{env.spec.instructions}\n")
    while True:
        print(_visible("\n".join(filter(None, (observation, env.draw())))))
        if given is not None and len(turns) == len(given):
            if go_on is None:
                print(f"the episode was cut here, return {_total(turns):g} in {len(turns)} actions")
                return
            env = go_on()
        if given is not None and len(turns) < len(given):
            action = given[len(turns)]
            print(f"> {_visible(action)}")
        elif player is None:
            try:
                action = input("> ")
            except EOFError:
                so_far = f"return {_total(turns):g} so far"
                print(f"\nleft before the end ({so_far}); the same --seed {seed} begins it again")
                return
            if not sys.stdin.isatty():  # a terminal shows what is typed
                print(action)
        else:
            action = player.act([Context(env.spec, turns, observation, rng, env.info, drawn)])[0].text
            print(f"> {action}")
        step = env.step(action)
        turns.append(Turn(observation, action, step.reward))
        observation = step.observation
        if step.reward or not step.legal:
            print(f"reward {step.reward:g}{'' if step.legal else ' (not an action)'}")
        print()
        if step.done:
            verdict = "success" if step.success else "no success"
            # Where something was hidden, the picture tells it now.
            print(_visible("\n".join(filter(None, (observation, env.draw())))))
            print(f"return {_total(turns):g} in {len(turns)} actions, {verdict} ({step.end_reason})")
            return


def _total(turns: Sequence[Turn]) -> float:
    return sum(turn.reward for turn in turns)


def _visible(text: str) -> str:
    """Text that a terminal shows and never obeys: what a model or a partner wrote can hold control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def read_logged(source: str, task: str | None, seed: int | None) -> Trajectory:
    """The episode that RUN:INDEX names, checked to replay here.

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: The name is none, there is no such episode, it is of another task or seed, or does not replay.
    """
    folder, _, number = source.rpartition(":")
    if not folder or not number.isdecimal():
        raise ValueError(f"--from is {source!r}; it must be a run's folder and an episode, such as runs/maze/bc:12")
    log = importlib.import_module(LOG)
    log.read_header(Path(folder))
    found: Trajectory | None = next(
        (one.trajectory for one in log.read_episodes(Path(folder)) if one.trajectory.index == int(number)), None
    )
    if found is None:
        raise ValueError(f"{folder} holds no episode {number}; its report lists those that it holds")
    for name, given, logged in (("task", task, found.task), ("seed", seed, found.seed)):
        if given not in (None, logged):
            raise ValueError(
                f"the {name} given is {given}, that of episode {number} in {folder} {logged}; leave it out"
            )
    if (difference := replay(found)) is not None:
        raise ValueError(
            f"{folder}: episode {number} does not replay: {difference}; the log was edited, or it was played with "
            "another version of the task"
        )
    return found


def show_logged(trajectory: Trajectory, turn: int | None, player: Policy | None) -> None:
    """Show the actions of a record up to a turn, and go on from there; without a turn, all of them."""
    if turn is not None and not 0 <= turn < trajectory.num_turns:
        raise ValueError(f"--turn is {turn}; the episode has {trajectory.num_turns} actions: 0 to one less are allowed")
    with ExitStack() as held:
        shown = held.enter_context(closing(make_env(trajectory.task, trajectory.env_kwargs)))
        shown.follow(trajectory)
        given = [one.action for one in trajectory.turns[:turn]]
        if turn is None:
            play_one(shown, player, trajectory.seed, given, None)
        else:
            play_one(
                shown, player, trajectory.seed, given, lambda: held.enter_context(closing(_live(trajectory, turn)))
            )


def _live(trajectory: Trajectory, turn: int) -> Env:
    """An environment in the state of a record after so many actions, in which one can go on.

    Raises:
        ValueError: The opponent or partner does not do the same again, or a stranger's log names programs or files.
    """
    env = make_env(trajectory.task, trajectory.env_kwargs)
    begin = f"`lmrl play {trajectory.task} --seed {trajectory.seed}` with the same options begins the episode again"
    for name, allowed in env.guarded.items():
        if trajectory.env_kwargs.get(name, next(iter(allowed), None)) not in allowed:
            raise ValueError(f"option {name} of a log is never followed out of the task, so it ends here; {begin}")
    env.prepare()
    observation = env.reset(trajectory.seed)
    for number, one in enumerate(trajectory.turns[: turn + 1]):
        if observation != one.observation:
            env.close()
            raise ValueError(
                f"after action {number} the environment answers otherwise than in the record, since its opponent or "
                f"partner does not repeat itself, so it can be watched but not gone on with; {begin}"
            )
        if number < turn:
            observation = env.step(one.action).observation
    return env
