"""An `openenv` server of one of our tasks, for `serve.py` to compare with: `create_app` around the same environment.

    python benchmarks/serve_openenv.py maze 8001 --loop asyncio

It runs where openenv is installed, see `make conformance`. What it does besides the environment's own work is what
openenv asks for: an action, an observation and a state of its types.
"""

from __future__ import annotations

import argparse
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app

from env_servers.task import Step
from env_servers.tasks import make_env


class TextAction(Action):
    """What the agent says."""

    text: str


class TextObservation(Observation):
    """The fields of our own observation."""

    text: str
    messages: list[dict[str, str]] | None = None
    terminated: bool
    truncated: bool
    end_reason: str | None
    success: bool
    legal: bool


def environment(task: str, messages: bool) -> type[Environment]:
    """A class of openenv's around a task, with the messages so far in each observation or without."""

    class TextEnvironment(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._env, self._state, self._messages = make_env(task), State(step_count=0), list[dict[str, str]]()

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> TextObservation:
            self._state, self._messages = State(episode_id=episode_id, step_count=0), []
            return self._observe(Step.ongoing(self._env.reset(seed or 0), 0.0))

        def step(self, action: TextAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
            self._state.step_count += 1
            self._messages.append({"role": "assistant", "content": action.text})
            return self._observe(self._env.step(action.text))

        def _observe(self, step: Step) -> TextObservation:
            self._messages.append({"role": "user", "content": step.observation})
            return TextObservation(
                text=step.observation, messages=self._messages if messages else None, reward=step.reward,
                done=step.done, terminated=step.terminated, truncated=step.truncated, end_reason=step.end_reason,
                success=step.success, legal=step.legal,
            )  # fmt: skip

        @property
        def state(self) -> State:
            return self._state

    return TextEnvironment


def main() -> None:
    """As a command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task")
    parser.add_argument("port", type=int)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--messages", action="store_true")
    arguments = parser.parse_args()
    app = create_app(
        environment(arguments.task, arguments.messages), TextAction, TextObservation, max_concurrent_envs=2048
    )
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="critical", loop=arguments.loop)


if __name__ == "__main__":
    main()
