"""The adapter for openenv, with stand-ins for its classes; `tests/conformance/adapter.py` has the real ones."""

from __future__ import annotations

import random
import sys
import threading
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, ClassVar

import pydantic
import pytest

from env_servers import partners
from env_servers import tasks as registry
from env_servers.openenv_adapter import OpenEnvParts, to_openenv_environment
from env_servers.partners import Answer
from env_servers.play import episode_starts, play
from env_servers.task import Env, Step
from env_servers.tasks import load_task, make_policy
from env_servers.wire import ACTION_SCHEMA, OBSERVATION_SCHEMA, WireError


class StandInAction(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    metadata: dict[str, Any] = {}


class StandInObservation(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = {}


class StandInState(pydantic.BaseModel):
    episode_id: str | None = None
    step_count: int = 0


class StandInMetadata(pydantic.BaseModel):
    name: str
    description: str
    version: str
    author: str


class StandInEnvironment(ABC):
    SUPPORTS_CONCURRENT_SESSIONS = False

    def __init__(self, transform: Any = None) -> None:
        self.transform = transform

    @abstractmethod
    def reset(self, seed: Any = None, episode_id: Any = None, **options: Any) -> Any: ...

    @abstractmethod
    def step(self, action: Any, timeout_s: float | None = None, **options: Any) -> Any: ...

    @property
    @abstractmethod
    def state(self) -> Any: ...


@pytest.fixture
def openenv(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that the adapter takes from openenv 0.10."""
    for name in ("openenv", "openenv.core", "openenv.core.env_server"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    interfaces, types = (ModuleType(f"openenv.core.env_server.{name}") for name in ("interfaces", "types"))
    interfaces.Environment = StandInEnvironment  # type: ignore[attr-defined]
    for name in ("Action", "Observation", "State"):
        setattr(types, name, globals()[f"StandIn{name}"])
    types.EnvironmentMetadata = StandInMetadata  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interfaces.__name__, interfaces)
    monkeypatch.setitem(sys.modules, types.__name__, types)


def say(parts: OpenEnvParts, text: str, **metadata: Any) -> Any:
    return parts.action(text=text, metadata=metadata)


def test_without_openenv_the_error_says_what_to_do() -> None:
    assert "openenv" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match=r"needs openenv, which is not installed: pip install openenv"):
        to_openenv_environment("maze")


@pytest.mark.usefixtures("openenv")
def test_fields_are_those_of_our_own_servers() -> None:
    parts = to_openenv_environment("maze")
    action, observation = parts.action.model_json_schema(), parts.observation.model_json_schema()
    assert action["required"] == ACTION_SCHEMA["required"] == ["text"]
    assert observation["properties"].keys() == OBSERVATION_SCHEMA["properties"].keys()
    assert set(OBSERVATION_SCHEMA["required"]) <= set(observation["required"])
    assert parts.environment.SUPPORTS_CONCURRENT_SESSIONS is True
    assert parts.environment.__name__ == "Maze" and issubclass(parts.environment, StandInEnvironment)
    told = parts.environment().get_metadata()
    assert (told.name, told.version) == ("maze", load_task("maze").spec.version)
    assert parts.environment().web_actions({})[0] == ("move left", {"text": "move left"})


@pytest.mark.usefixtures("openenv")
@pytest.mark.parametrize("task", ["maze", "wordle", "twenty_questions"])
def test_an_episode_is_that_of_play(task: str) -> None:
    """Two sessions at once, of different seeds: neither sees the other."""
    parts = to_openenv_environment(task)
    starts = list(episode_starts(task, "train", range(2)))
    episodes = [one.trajectory for one in play(task, make_policy(task, "random"), starts, slots=1)]
    sessions = [parts.environment() for _ in episodes]
    seen = [
        session.reset(seed=episode.seed, episode_id=f"e{episode.index}")
        for session, episode in zip(sessions, episodes, strict=True)
    ]
    for number in range(max(episode.num_turns for episode in episodes)):
        for which, episode in enumerate(episodes):
            if number < episode.num_turns:
                turn = episode.turns[number]
                assert (seen[which].text, seen[which].messages[-1]["content"]) == (turn.observation, turn.observation)
                seen[which] = sessions[which].step(say(parts, turn.action))
                assert (seen[which].reward, seen[which].done) == (turn.reward, number + 1 == episode.num_turns)
    for session, last, episode in zip(sessions, seen, episodes, strict=True):
        assert (last.terminated, last.truncated) == (episode.terminated, episode.truncated)
        assert (last.end_reason, last.success) == (episode.end_reason, episode.success)
        assert last.metadata["info"] == episode.info
        assert (session.state.episode_id, session.state.step_count) == (f"e{episode.index}", episode.num_turns)
        said = [message["content"] for message in last.messages if message["role"] == "assistant"]
        assert said == [turn.action for turn in episode.turns]
        with pytest.raises(RuntimeError, match="the episode is over"):
            session.step(say(parts, "more"))
        session.close()
        session.close()


@pytest.mark.usefixtures("openenv")
def test_seeds_ids_and_what_is_not_legal() -> None:
    parts = to_openenv_environment("maze")
    session = parts.environment()
    with pytest.raises(RuntimeError, match="send reset before step"):
        session.step(say(parts, "move left"))
    first = session.reset()
    assert first.reward is None and not first.done and first.legal
    again = session.reset(seed=first.metadata["seed"], metadata={"request_id": "r1"})
    assert (again.text, again.metadata["request_id"]) == (first.text, "r1")
    assert again.metadata["episode_id"] != first.metadata["episode_id"]
    step = session.step(say(parts, "sing\n", request_id=4))
    assert not step.legal and step.metadata == {"request_id": 4} and step.messages[1]["content"] == "sing"


@pytest.mark.usefixtures("openenv")
def test_options_are_the_hosts_or_what_a_stranger_may_choose() -> None:
    parts = to_openenv_environment("maze", {"start": [1, 1]})
    session = parts.environment()
    assert session.reset(seed=1).text == session.reset(seed=2, start=[1, 1]).text
    session.reset(seed=1)
    free = session.step(say(parts, "sing")).reward
    session.reset(seed=1, reward="illegal_penalty")
    assert session.step(say(parts, "sing")).reward != free
    for asked, words in (
        ({"start": [5, 1]}, "set by the server"),
        ({"no_such": 1}, "unknown option"),
        ({"task": "wordle"}, "plays maze"),
        ({"seed": -1}, "seed is -1"),
        ({"metadata": {"what": 1}}, "unknown metadata"),
    ):
        with pytest.raises((WireError, ValueError), match=words):
            session.reset(**asked)
    with pytest.raises(ValueError, match="unknown option"):
        to_openenv_environment("maze", {"no_such": 1})
    with pytest.raises(ValueError, match="unknown task"):
        to_openenv_environment("mazes")


@pytest.mark.usefixtures("openenv")
class Logged(load_task("maze")):  # type: ignore[misc]
    """Tells when it is made and closed."""

    log: ClassVar[list[str]] = []

    def __init__(self, *, start: list[int] | None = None) -> None:
        self.log.append(f"made {start}")
        super().__init__(start=start)

    def close(self) -> None:
        self.log.append("closed")


@pytest.mark.usefixtures("openenv")
def test_environments_are_kept_for_equal_options_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TASKS", {"maze": f"{__name__}:Logged"})
    session = to_openenv_environment("maze").environment()
    Logged.log.clear()
    session.reset(seed=1)
    session.reset(seed=2)
    session.reset(seed=2, start=[1, 1])
    assert Logged.log == ["made None", "closed", "made [1, 1]"]
    session.close()
    assert Logged.log[3:] == ["closed"]


class Meeting(Env):
    """Answers by a partner that may not be asked by two threads at once."""

    spec: ClassVar = load_task("twenty_questions").spec

    def __init__(self, *, partner: str = "dear:x") -> None:
        self.partner = DEAR

    def _reset(self, rng: random.Random) -> str:
        return "Ask."

    def _step(self, action: str) -> Any:
        return partners.Query("twenty_questions", {}, (), action, 0)

    def _receive(self, answer: Answer) -> Step:
        return Step.ongoing(answer.text, 0.0)


class Dear:
    name, revision = "dear:x", "1"

    def __init__(self) -> None:
        self.inside = threading.Lock()
        self.clashes = 0

    def answer(self, queries: Any) -> list[Answer]:
        free = self.inside.acquire(blocking=False)
        self.clashes += not free
        threading.Event().wait(0.005)
        if free:
            self.inside.release()
        return [Answer("Yes.") for _ in queries]


DEAR = Dear()


@pytest.mark.usefixtures("openenv")
def test_a_shared_partner_is_asked_by_one_session_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TASKS", {"twenty_questions": f"{__name__}:Meeting"})
    parts = to_openenv_environment("twenty_questions")

    def talk() -> None:
        session = parts.environment()
        session.reset(seed=1)
        for _ in range(5):
            session.step(say(parts, "Is it alive?"))

    threads = [threading.Thread(target=talk) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert DEAR.clashes == 0
