"""What both checks do with openenv's client: play known episodes again, and see mistakes refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from env_servers.play import Start, play
from env_servers.tasks import load_task, make_policy
from env_servers.trajectory import Trajectory


def expected_episodes(task: str, starts: Sequence[Start]) -> list[Trajectory]:
    """Episodes that a scripted policy plays in this process, in order."""
    policies = load_task(task).policies
    name = "random" if "random" in policies else next(iter(policies))
    played = play(task, make_policy(task, name), starts)
    return sorted((one.trajectory for one in played), key=lambda episode: episode.index)


async def play_again(client: Any, episode: Trajectory, options: dict[str, Any], rng: random.Random) -> None:
    """Play an episode's actions through openenv's client, and compare all that comes back."""
    result = await client.reset(seed=episode.seed, episode_id=episode.episode_id, **options)
    assert result.reward is None and result.done is False
    messages = [{"role": "user", "content": result.observation["text"]}]
    for number, turn in enumerate(episode.turns):
        seen = result.observation
        assert seen["text"] == turn.observation and seen["messages"] == messages, (number, seen)
        await asyncio.sleep(rng.random() * 0.002)
        result = await client.step({"text": turn.action})
        assert result.reward == turn.reward, (number, result)
        assert result.done is (number == episode.num_turns - 1), (number, result)
        messages.append({"role": "assistant", "content": turn.action})
        if result.observation["text"] or not result.done:
            messages.append({"role": "user", "content": result.observation["text"]})
    seen = result.observation
    told = [seen[name] for name in ("terminated", "truncated", "end_reason", "success")]
    assert told == [episode.terminated, episode.truncated, episode.end_reason, episode.success], told
    assert (seen["text"] or None) == episode.final_observation and "info" in seen["metadata"]
    state = await client.state()
    assert (state["episode_id"], state["step_count"]) == (episode.episode_id, episode.num_turns), state


async def refused(what: Any, *words: str) -> None:
    """Await what has to fail with these words."""
    try:
        result = await what
    except RuntimeError as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError(f"expected an error with {words}, got {result}")
