"""A task for those who run servers of the `openenv` package: its `Environment`, `Action`, `Observation` and `State`.

`lmrl serve` speaks OpenEnv's protocol without that package. This is for a task in a server that is made with it:

    from openenv.core.env_server import create_app

    parts = to_openenv_environment("wordle")
    app = create_app(parts.environment, parts.action, parts.observation, state_cls=parts.state, max_concurrent_envs=64)

What a reset may ask for and what an observation says are the same here as there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from env_servers import wire
from env_servers.partners import KNOWLEDGE
from env_servers.rooms import Limits, Rooms
from env_servers.task import Env, Step
from env_servers.tasks import load_task, make_env


class OpenEnvParts(NamedTuple):
    """What `create_app` takes.

    Attributes:
        environment: A class without arguments, of which each session has an instance.
        action: One required field, `text`.
        observation: `text`, `messages`, `terminated`, `truncated`, `end_reason`, `success`, `legal`, and OpenEnv's
            `done`, `reward`, `metadata`.
        state: `episode_id`, `step_count`, `task`.
    """

    environment: type[Any]
    action: type[Any]
    observation: type[Any]
    state: type[Any]


def to_openenv_environment(task: str, env_kwargs: Mapping[str, Any] | None = None) -> OpenEnvParts:
    """A task as classes of the `openenv` package.

    Args:
        task: Task id.
        env_kwargs: Options of the environment that a client cannot change; it may choose others in its reset, as far
            as the task lets strangers do so.

    Raises:
        ModuleNotFoundError: The package is not installed.
        ValueError: No such task or option.
        OSError: An engine or a file that the task needs is missing.
    """
    try:
        from openenv.core.env_server.interfaces import Environment
        from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
        from pydantic import Field
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"to_openenv_environment needs {error.name}, which is not installed: pip install openenv, best in a "
            "virtual environment of its own. `lmrl serve` speaks OpenEnv's protocol without it",
            name=error.name,
        ) from error

    served = _Served(task, Rooms({task: env_kwargs or {}}, Limits()))

    class TextAction(Action):  # type: ignore[misc]
        text: str = Field(description="What the agent says or does.")

    class TextObservation(Observation):  # type: ignore[misc]
        text: str = Field(description="The newest observation.")
        messages: list[dict[str, str]] = Field(
            description="All messages so far: user is the environment, assistant the agent."
        )
        terminated: bool = Field(description="The task ended by its own rules.")
        truncated: bool = Field(description="A limit cut the episode.")
        end_reason: str | None = Field(description="Why it ended; null while it goes on.")
        success: bool = Field(description="The task's own predicate.")
        legal: bool = Field(description="False where the action was not understood or not allowed.")

    class EpisodeState(State):  # type: ignore[misc]
        task: str | None = Field(default=None, description="Task id.")

    name = "".join(word.title() for word in task.split("_"))
    types = {"_Observation": TextObservation, "_State": EpisodeState, "_Metadata": EnvironmentMetadata}
    environment = type(name, (_Sessions, Environment), {"_served": served, **types})
    return OpenEnvParts(environment, TextAction, TextObservation, EpisodeState)


class _Served:
    """What all sessions of a task share."""

    def __init__(self, task: str, rooms: Rooms) -> None:
        self.task, self.rooms, self.kind = task, rooms, load_task(task)
        rooms.prepare()
        # Each session has a thread of its own there, and a partner that is a model or an endpoint is one for all.
        alone = rooms.partners.get(task, {"name": KNOWLEDGE})["name"] == KNOWLEDGE
        self.turn: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if alone else threading.Lock()


class _Sessions:
    """The half of an environment that knows nothing of openenv; an instance is one client's stream of episodes."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    _served: ClassVar[_Served]
    _Observation: ClassVar[type[Any]]
    _State: ClassVar[type[Any]]
    _Metadata: ClassVar[type[Any]]

    def __init__(self) -> None:
        super().__init__()
        self._held = contextlib.ExitStack()
        self._held.enter_context(self._served.kind.running())
        self._env: Env | None = None
        self._options: Mapping[str, Any] = {}
        self._messages: list[dict[str, str]] = []
        self._progress: Any = self._State(task=self._served.task)

    def reset(self, seed: Any = None, episode_id: Any = None, **asked: Any) -> Any:
        """Begin an episode; what may be asked for is what a reset of `lmrl serve` may ask for."""
        task, rooms = self._served.task, self._served.rooms
        wanted = wire.parse_reset({"seed": seed, "episode_id": episode_id, **asked})
        rooms.which(wanted.task, task)
        options = rooms.options(task, wanted.options)
        if self._env is None or self._options != options:
            self._drop()
            self._env, self._options = make_env(task, options), options
        drawn = secrets.randbits(62) if wanted.seed is None else wanted.seed
        with self._served.turn:
            observation = self._env.reset(drawn)
        self._progress = self._State(episode_id=wanted.episode_id or secrets.token_hex(8), task=task)
        self._messages = [{"role": "user", "content": observation}]
        version = self._served.kind.spec.version
        about = {"seed": drawn, "episode_id": self._progress.episode_id, "task": task, "version": version}
        return self._observe(Step.ongoing(observation, 0.0), None, wanted.metadata, about)

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        """Play an action."""
        env = self._env
        if env is None:
            raise RuntimeError(f"{self._served.task}: there is no episode yet; send reset before step")
        with self._served.turn:
            step = env.step(action.text)
        self._progress.step_count += 1
        self._messages.append({"role": "assistant", "content": action.text.removesuffix("\n")})
        if step.observation or not step.done:
            self._messages.append({"role": "user", "content": step.observation})
        hidden = self._served.rooms.hidden(self._served.task)
        info = {name: value for name, value in env.info.items() if name not in hidden or hidden[name] != value}
        return self._observe(step, step.reward, action.metadata, {"info": info} if step.done else {})

    def _observe(self, step: Step, reward: float | None, given: Mapping[str, Any], about: dict[str, Any]) -> Any:
        if "request_id" in given:
            about["request_id"] = given["request_id"]
        return self._Observation(
            text=step.observation,
            messages=list(self._messages),
            terminated=step.terminated,
            truncated=step.truncated,
            end_reason=step.end_reason,
            success=step.success,
            legal=step.legal,
            done=step.done,
            reward=reward,
            metadata=about,
        )

    @property
    def state(self) -> Any:
        """Which episode, and how far."""
        return self._progress

    def get_metadata(self) -> Any:
        """What `/metadata` tells."""
        spec = self._served.kind.spec
        return self._Metadata(name=spec.id, description=spec.summary, version=spec.version, author="LMRL on the Hub")

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Buttons of openenv's page, for tasks with a fixed set of actions."""
        return [(text, {"text": text}) for text in self._served.kind.spec.actions]

    def close(self) -> None:
        """Free what the session holds; it may be called more than once."""
        self._drop()
        self._held.close()

    def _drop(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()
