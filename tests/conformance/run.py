"""`make conformance`: our server against OpenEnv's own client and validator, and against tools that guess.

    python tests/conformance/run.py [--seconds 60] [--frames 10000]

Run in an environment that has the package with `[server,chess]`, openenv and schemathesis, and where no other server
is needed: it starts its own. Opponents and partners are those that need no engine and no model, so that each episode
can be played in this process first; through the server it has to read and pay the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openenv import GenericEnvClient
from playing import expected_episodes, play_again, refused

from env_servers.play import episode_starts
from env_servers.tasks import load_task, task_ids
from env_servers.trajectory import Trajectory

HERE, BIN = Path(__file__).parent, Path(sys.executable).parent
OPTIONS: dict[str, Any] = {"opponent": "random"}  # of the tasks that have it
EPISODES = 4  # of each task, all at the same time


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, Path]]:
    """`lmrl serve` in a process of its own: its URL, and the file with its log."""
    options = [f"--option={name}={value}" for name, value in OPTIONS.items()]
    with tempfile.TemporaryDirectory() as folder:
        told, log = Path(folder, "url"), Path(folder, "log")
        with log.open("wb") as output:
            server = subprocess.Popen(
                [str(BIN / "lmrl"), "serve", "--port", "0", "--port-file", str(told), *options, *arguments],
                stdout=subprocess.DEVNULL, stderr=output,
            )  # fmt: skip
        try:
            while not told.exists():
                assert server.poll() is None, f"the server did not start:\n{log.read_text()}"
                time.sleep(0.1)
            yield told.read_text().strip(), log
        finally:
            server.terminate()
            server.wait(60)


async def check(task: str, url: str, episodes: Sequence[Trajectory]) -> None:
    """All episodes at once, half of them at the server's own address and half at the task's; then mistakes."""

    async def one(number: int) -> None:
        own, rng = number % 2 == 0, random.Random(number)
        async with GenericEnvClient(base_url=f"{url}/{task}" if own else url) as client:
            for episode in (episodes[number], episodes[0]):
                await play_again(client, episode, {**episode.env_kwargs, **({} if own else {"task": task})}, rng)
            await refused(client.step({"text": "x"}), "the episode is over")

    await asyncio.gather(*(one(number) for number in range(EPISODES)))
    async with GenericEnvClient(base_url=f"{url}/{task}") as client:
        await refused(client.step({"text": "x"}), "send reset before step")
        await refused(client.reset(seed=-1), "allowed are integers")
        await refused(client.reset(no_such_option=1), "no_such_option")
        await refused(client.reset(task="nothing"), "nothing")
        await refused(client.step({"words": "x"}), "unknown field 'words' of an action")
        await client.reset()


def openenv_plays(url: str) -> None:
    """`GenericEnvClient` plays full episodes of every task."""
    for task in task_ids():
        began = time.monotonic()
        starts = list(episode_starts(task, "test", range(EPISODES), load_task(task).spec.repeatable))
        episodes = expected_episodes(task, starts)
        asyncio.run(check(task, url, episodes))
        turns = sum(episode.num_turns for episode in episodes)
        print(
            f"GenericEnvClient, {task}: {EPISODES} sessions at once, {len(episodes)} episodes of {turns} turns, as in "
            f"process ({time.monotonic() - began:.1f} s)",
            flush=True,
        )


def run(*command: str, **more: Any) -> None:
    """Run a command, and stop where it fails."""
    print("$", " ".join(command), flush=True)
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{command[0]} ended with {done.returncode}")
    print("\n".join(done.stdout.strip().splitlines()[-12:]), flush=True)


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="of schemathesis")
    parser.add_argument("--frames", type=int, default=10_000, help="of the websocket fuzz")
    arguments = parser.parse_args()
    with serving() as (url, log):
        openenv_plays(url)
        for target in (url, f"{url}/wordle"):
            run(str(BIN / "openenv"), "validate", "--url", target, "--timeout", "20")
        with tempfile.TemporaryDirectory() as folder:  # it keeps notes where it runs
            run(
                str(BIN / "schemathesis"), "run", f"{url}/openapi.json", "--max-time", str(arguments.seconds),
                "--seed", "0", "--checks", "all", cwd=folder,
            )  # fmt: skip
        run(sys.executable, str(HERE / "fuzz.py"), url, "--frames", str(arguments.frames))
        errors = [line for line in log.read_text().splitlines() if " ERROR " in line or "Traceback" in line]
        assert not errors, "the server's log has errors:\n" + log.read_text()
    run(sys.executable, str(HERE / "adapter.py"))
    print("conformance: all passed")


if __name__ == "__main__":
    main()
