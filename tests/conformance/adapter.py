"""`to_openenv_environment` with the real `openenv`: its `create_app` serves every task; its `GenericEnvClient` plays,
and then our own client does.

Run in a virtual environment that has openenv (the tests' own has not), with this checkout on PYTHONPATH:

    python tests/conformance/adapter.py [TASK ...]

Every episode is played in this process first, and has to read and pay the same through openenv.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from openenv import GenericEnvClient
from openenv.core.env_server import create_app
from playing import expected_episodes, play_again, refused

from env_servers.client import remote_envs
from env_servers.openenv_adapter import OpenEnvParts, to_openenv_environment
from env_servers.play import Start, episode_starts, play
from env_servers.policy import ScriptedPolicy
from env_servers.seeding import policy_seed
from env_servers.tasks import load_task, task_ids
from env_servers.trajectory import Trajectory

SESSIONS = 4  # that play one task at the same time


@contextlib.contextmanager
def serving(parts: OpenEnvParts) -> Iterator[str]:
    """A server that openenv makes of the classes, in a thread; its address."""
    app = create_app(
        parts.environment, parts.action, parts.observation, state_cls=parts.state, max_concurrent_envs=SESSIONS + 1
    )
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def starts_of(task: str, options: dict[str, Any]) -> list[Start]:
    """Where an episode for each session begins."""
    return list(episode_starts(task, "train", range(SESSIONS), options))


def our_client_plays(task: str, url: str, options: dict[str, Any], episodes: list[Trajectory]) -> None:
    """The same through `remote_envs`. The policy knows the actions, since a scripted one asks what the server hides."""
    name = episodes[0].behavior_policy
    by_seed = {policy_seed(one.seed): one for one in episodes}
    policy = ScriptedPolicy(name, lambda context: by_seed[context.seed].turns[len(context.history)].action)
    with remote_envs(url) as servers:
        played = play(task, policy, starts_of(task, options), slots=SESSIONS, env_maker=servers)
        assert sorted((one.trajectory for one in played), key=lambda episode: episode.index) == episodes


async def check(task: str, url: str, episodes: list[Trajectory]) -> None:
    """All episodes at once, in sessions of their own; then what has to be an error."""

    async def one(number: int) -> None:
        async with GenericEnvClient(base_url=url) as client:
            for episode in (episodes[number], episodes[0]):  # a session plays one after another
                await play_again(client, episode, {}, random.Random(number))
            await refused(client.step({"text": "x"}), "over")

    await asyncio.gather(*(one(number) for number in range(SESSIONS)))
    async with GenericEnvClient(base_url=url) as client:
        await refused(client.step({"text": "x"}), "reset before step")
        await refused(client.reset(seed=-1), "allowed are integers")
        await refused(client.reset(no_such_option=1), "no_such_option")
        await refused(client.reset(task="nothing"), "nothing")
        await refused(client.step({"words": "x"}), "Invalid message")
        first = await client.reset(episode_id="first")
        about = first.observation["metadata"]
        assert about == {
            "seed": about["seed"], "episode_id": "first", "task": task, "version": load_task(task).spec.version,
        }, about  # fmt: skip
        again = await client.reset(seed=about["seed"])
        assert again.observation["text"] == first.observation["text"]
        step = await client.step({"text": "x", "metadata": {"request_id": 7}})
        assert step.observation["metadata"]["request_id"] == 7


def main(tasks: list[str]) -> None:
    """Check the tasks."""
    for task in tasks or task_ids():
        began = time.monotonic()
        options = dict(load_task(task).spec.repeatable)
        episodes = expected_episodes(task, starts_of(task, options))
        with serving(to_openenv_environment(task, options)) as url:
            asyncio.run(check(task, url, episodes))
            our_client_plays(task, url, options, episodes)
        turns = sum(episode.num_turns for episode in episodes)
        print(
            f"{task}: {SESSIONS} sessions at once, {len(episodes)} episodes of {turns} turns twice, and by our client, "
            f"same as in process "
            f"({time.monotonic() - began:.1f} s)"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
