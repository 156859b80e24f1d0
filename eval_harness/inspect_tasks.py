"""The tasks for users of Inspect (`inspect eval lmrl/maze --model ...`): each test episode is a sample.

Inspect brings the model and keeps the log; the environment, its seeds and its rewards are this project's. What a model
is shown is what a chat model is shown here: the task's instructions as system message, and of the past as much as the
task has policies see (`TaskSpec.memory`). Installed with the package as an entry point of Inspect's; needs nothing but
`inspect_ai` and what the task itself needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import anyio.to_thread
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from env_servers.play import Start, episode_starts
from env_servers.task import Env, TaskSpec
from env_servers.tasks import load_task, make_env, task_ids

NAMESPACE = "lmrl"
ROOM = 2  # times the longest legal action, in tokens of another tokenizer than the budget was counted with


def build(task_id: str, *, episodes: int | None, split: str, options: dict[str, Any]) -> Task:
    """A task of Inspect's.

    Args:
        task_id: Task id.
        episodes: How many of the split's; None is the task's own number.
        split: Split of the episodes' seeds.
        options: Of the environment.

    Raises:
        ValueError: An option or the number is not allowed.
        FileNotFoundError: The task lacks its engine.
    """
    spec = load_task(task_id).spec
    count = spec.test_episodes if episodes is None else episodes
    if count < 1:
        raise ValueError(f"episodes is {count}; at least 1 must be played")
    starts = list(episode_starts(task_id, split, range(count), options))
    with closing(make_env(task_id, starts[0].env_kwargs)) as one:
        one.prepare()
    return Task(
        dataset=MemoryDataset([_sample(spec, start) for start in starts], name=f"{NAMESPACE}/{task_id}"),
        solver=play_episode(task_id),
        scorer=episode_score(),
        config=GenerateConfig(max_tokens=ROOM * spec.max_action_tokens),
        version=spec.version,
        # An engine or a partner that fails says nothing about the model: such samples are errors, counted apart.
        fail_on_error=False,
        metadata={"task_version": spec.version, "options": options, "split": split},
    )


def _sample(spec: TaskSpec, start: Start) -> Sample:
    about = {"split": start.split, "index": start.index, "seed": str(start.seed), "env_kwargs": dict(start.env_kwargs)}
    return Sample(input=spec.instructions, id=f"{start.split}-{start.index}", metadata=about)


@solver  # type: ignore[untyped-decorator]  # Inspect is in an environment of its own
def play_episode(task_id: str) -> Solver:
    """Plays one episode: observation and action in turn, until the environment ends it."""
    spec = load_task(task_id).spec

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        env = make_env(task_id, state.metadata["env_kwargs"])
        with closing(env):
            await _play(env, int(state.metadata["seed"]), state)
        return state

    async def _play(env: Env, seed: int, state: TaskState) -> None:
        model = get_model()
        observation = await anyio.to_thread.run_sync(env.reset, seed)
        state.messages = [ChatMessageSystem(content=spec.instructions), ChatMessageUser(content=observation)]
        total, turns, invalid = 0.0, 0, 0
        while True:
            state.output = await model.generate(_seen(spec, state.messages))
            action = state.output.completion.strip()
            state.messages.append(ChatMessageAssistant(content=action, model=state.output.model, source="generate"))
            step = await anyio.to_thread.run_sync(env.step, action)
            total, turns, invalid = total + step.reward, turns + 1, invalid + (not step.legal)
            if step.observation:
                state.messages.append(ChatMessageUser(content=step.observation))
            if step.done:
                break
        state.completed = True
        state.metadata["episode"] = {
            "return": total,
            "success": float(step.success),
            "length": float(turns),
            "invalid": invalid / turns,
            "end_reason": step.end_reason,
        }

    return solve


def _seen(spec: TaskSpec, messages: list[ChatMessage]) -> list[ChatMessage]:
    """The messages that a policy of the task reads: all, or the last `memory` turns and the newest observation."""
    system, *said = messages
    return messages if spec.memory is None else [system, *said[-(2 * spec.memory + 1) :]]


@scorer(metrics={"*": [mean(), stderr()]})  # type: ignore[untyped-decorator]
def episode_score() -> Scorer:
    """Return (undiscounted), success (0 or 1), length (actions) and the share of invalid actions of an episode."""

    async def score(state: TaskState, target: Target) -> Score:
        episode = dict(state.metadata["episode"])
        return Score(explanation=f"ended by {episode.pop('end_reason')}", value=episode)

    return score


def _register(task_id: str) -> Callable[..., Task]:
    """The task under the name `lmrl/<id>`. Inspect would call it by the folder that this file is in, so it is not told
    of a module."""

    def made(episodes: int | None = None, split: str = "test", **options: Any) -> Task:
        return build(task_id, episodes=episodes, split=split, options=options)

    made.__name__ = made.__qualname__ = task_id
    made.__doc__ = load_task(task_id).spec.summary
    made.__module__ = NAMESPACE
    registered: Callable[..., Task] = task(name=f"{NAMESPACE}/{task_id}")(made)
    return registered


def _all() -> Iterator[tuple[str, Callable[..., Task]]]:
    for task_id in task_ids():
        yield task_id, _register(task_id)


TASKS = dict(_all())
