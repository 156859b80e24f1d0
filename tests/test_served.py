"""Recording what a server plays: nothing that a client was told is lost or doubled, and the result is a dataset.

What talks with the Hub runs in a subprocess, as in test_publish.py: this file is also that script.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hub_server import HubServer, client_environment
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from env_servers import wire
from env_servers.play import episode_starts, play, replay
from env_servers.rooms import Limits, Rooms
from env_servers.seeding import episode_seed
from env_servers.sessions import SERVED, Session
from env_servers.tasks import load_task, make_policy
from env_servers.tasks.wordle import Wordle
from env_servers.trajectory import Trajectory, Turn
from env_servers.wire import WireError
from hub_datasets import served, served_data, shards
from hub_datasets.journal import read_lines
from hub_datasets.manifest import local_options
from hub_datasets.rows import from_row
from hub_datasets.served import CONFIG, WORK, Served, is_named, journals, left_behind, to_record
from hub_datasets.served_data import finish


def episodes(count: int, *, task: str = "wordle", policy: str = "behavior") -> list[Trajectory]:
    """Named test episodes, as a session gives them to the sink."""
    starts = episode_starts(task, "test", range(count))
    played = sorted((p.trajectory for p in play(task, make_policy(task, policy), starts)), key=lambda t: t.index)
    return [replace(t, info={**t.info, SERVED: {"episode_id": f"e{t.index}", "named": True}}) for t in played]


def unnamed(trajectory: Trajectory, policy: str = "remote") -> Trajectory:
    """The same without its client's name for it."""
    info = {**trajectory.info, SERVED: {"episode_id": "x", "named": False}}
    return replace(trajectory, split="train", index=0, behavior_policy=policy, info=info)


def keep(sink: Served, trajectories: Sequence[Trajectory]) -> None:
    """Give episodes to a sink, one after the other, and wait for each."""
    for trajectory in trajectories:
        sink.add(trajectory).result(10)


def stored(folder: Path, *splits: str) -> list[Trajectory]:
    """The episodes that are in Parquet, read without the statistics and without datasets."""
    files = [file for split in splits or ("test",) for file in sorted((folder / CONFIG).glob(f"{split}-*.parquet"))]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [
        from_row({**row, "env_kwargs": json.loads(row["env_kwargs"]), "info": json.loads(row["info"])}) for row in rows
    ]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """No process makes Parquet; what would have been given to one."""
    wanted: list[list[Path]] = []

    def want(_: Any, folders: Iterator[Path]) -> None:
        wanted.extend([found] if (found := list(folders)) else [])

    monkeypatch.setattr(served._Finishing, "want", want)
    return wanted


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No picture and few test starts, which take most of the time."""
    monkeypatch.setattr("hub_datasets.build.draw_histogram", lambda path, manifest: path.touch())
    monkeypatch.setattr(Wordle, "spec", replace(Wordle.spec, test_episodes=4))


# The real server ---------------------------------------------------------------------------------------------------


@contextmanager
def server(record: Path, *options: str, most: int = 5_000) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of `lmrl serve --record`, with journals of `most` episodes, and its address."""
    code = f"import hub_datasets.served as s; s.EPISODES = {most}; from env_servers.cli import main; main()"
    port_file = record.parent / f"port-{time.monotonic_ns()}"
    command = [
        sys.executable,
        "-c",
        code,
        "serve",
        "--port",
        "0",
        "--port-file",
        str(port_file),
        "--record",
        str(record),
    ]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while not port_file.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
        yield process, port_file.read_text().strip().replace("http", "ws")
    finally:
        process.kill()
        process.communicate()


class Client:
    """Plays one episode after the other, and notes those whose end it was told."""

    def __init__(self) -> None:
        self.ended: dict[str, tuple[int, list[Turn]]] = {}

    @contextmanager
    def at(self, url: str) -> Iterator[None]:
        with connect(f"{url}/ws", ping_interval=None, open_timeout=30) as self.socket:
            yield

    def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        self.socket.send(json.dumps({"type": kind, "data": data}))
        reply = json.loads(self.socket.recv(30))
        assert reply["type"] == "observation", reply
        found: dict[str, Any] = reply["data"]
        return found

    def play(self, words: Sequence[str], reset: dict[str, Any]) -> list[Turn]:
        """An episode of Wordle with these guesses, the last one again and again."""
        reply, turns = self.ask("reset", {"task": "wordle", **reset}), list[Turn]()
        guesses = itertools.chain(words, itertools.repeat(words[-1]))
        while not reply["done"]:
            before, word = reply["observation"]["text"], next(guesses)
            reply = self.ask("step", {"text": word})
            turns.append(Turn(before, word, reply["reward"]))
        return turns

    def play_named(self, policy: str, index: int, words: Sequence[str]) -> None:
        start = next(episode_starts("wordle", "test", [index]))
        name = {"split": "test", "index": index, "policy": policy}
        turns = self.play(words, {"seed": start.seed, "metadata": name})
        self.ended[f"wordle-{policy}-test-{index:07d}"] = start.seed, turns


def test_a_killed_server_loses_and_doubles_no_episode_whose_end_was_told(tmp_path: Path) -> None:
    clients = [Client() for _ in range(4)]

    def traffic(client: Client, number: int) -> None:
        with contextlib.suppress(ConnectionClosed, OSError), client.at(url):
            for index in itertools.count(number, 4):
                client.play_named("p", index, ["a b o u t"] if index % 2 else ["w o r l d", "a b o u t"])

    # Twelve episodes a journal, so that Parquet is being made while the server is killed.
    with server(tmp_path / "record", "--tasks", "wordle,maze", most=12) as (process, url):
        threads = [threading.Thread(target=traffic, args=(c, n)) for n, c in enumerate(clients)]
        for thread in threads:
            thread.start()
        while sum(len(client.ended) for client in clients) < 80:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join(30)
    folder = tmp_path / "record" / "wordle"
    done = finish(folder)
    assert (done.recording, left_behind(folder), journals(folder)) == (0, False, [])
    found = {t.episode_id: t for t in stored(folder)}
    told = {name: ended for client in clients for name, ended in client.ended.items()}
    assert done.manifest is not None and done.manifest["summary"]["episodes"] == len(found) == len(stored(folder))
    assert len(told) >= 80 and told.keys() <= found.keys()
    assert len(found) - len(told) <= 4, "at most the one that each client was waiting for"
    assert len(list((folder / CONFIG).glob("*.parquet"))) == -(-len(found) // 12)
    for name, (seed, turns) in told.items():
        assert (found[name].seed, list(found[name].turns)) == (seed, turns)
    assert finish(tmp_path / "record" / "maze").manifest is None, "nothing was played there"


def test_two_workers_end_with_a_whole_dataset(tmp_path: Path) -> None:
    with server(tmp_path / "record", "--tasks", "wordle", "--workers", "2") as (process, url):
        for number, client in enumerate([Client() for _ in range(6)]):
            with client.at(url):
                client.play(["a b o u t"], {"seed": 5, "invalid_reward": -2})
                client.play_named("p", number, ["a b o u t"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None and process.stderr.read() == ""
    folder = tmp_path / "record" / "wordle"
    assert journals(folder) == [], "the last worker leaves none, and no command was needed"
    without, named = stored(folder, "train"), stored(folder, "test")
    assert sorted(t.index for t in without) == list(range(6))
    assert {(t.seed, t.behavior_policy, t.env_kwargs["invalid_reward"]) for t in without} == {(5, "remote", -2)}
    assert sorted(t.index for t in named) == list(range(6)) and all(t.behavior_policy == "p" for t in named)
    assert [replay(t) for t in (*without, *named)] == [None] * 12
    assert "12 in all" in (folder / "README.md").read_text()


def _app() -> Any:
    from hub_datasets.cli import app

    return app


# The sink ----------------------------------------------------------------------------------------------------------


def test_full_journals_are_closed_and_living_ones_left_alone(
    tmp_path: Path, quiet: list[list[Path]], plain: None
) -> None:
    one, two = Served(tmp_path, ["wordle"], most=3), Served(tmp_path, ["wordle"], most=3)
    folder, played = tmp_path / "wordle", episodes(9)
    keep(one, played[:7])
    keep(two, played[7:])
    assert [len(list(read_lines(path))) for path in journals(folder)].count(3) == 2
    assert quiet == [[folder]] * 2, "after each full journal, and not before"
    assert finish(folder)[1:] == (6, 2)
    assert stored(folder) == played[:6]
    one.close()
    assert finish(folder)[1:] == (1, 1)
    assert sorted(t.index for t in stored(folder)) == list(range(7))
    two.close()
    assert finish(folder)[1:] == (2, 0)
    assert sorted(stored(folder), key=lambda t: t.index) == played
    again = (folder / CONFIG / "stats.json").stat().st_mtime_ns
    assert finish(folder)[1:] == (0, 0) and (folder / CONFIG / "stats.json").stat().st_mtime_ns == again


def test_episodes_that_end_together_share_one_fsync_and_wait_for_it(
    tmp_path: Path, quiet: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, played = Served(tmp_path, ["wordle"]), episodes(20)
    keep(sink, played[:1])
    (journal,) = journals(tmp_path / "wordle")
    inside, go_on, calls = threading.Event(), threading.Event(), list[int]()
    real = os.fsync

    def fsync(file: int) -> None:
        calls.append(len(list(read_lines(journal))))
        inside.set()
        assert go_on.wait(10)
        real(file)

    monkeypatch.setattr("os.fsync", fsync)
    first = sink.add(played[1])
    assert inside.wait(10)
    others = [sink.add(one) for one in played[2:]]
    assert not first.done() and not any(one.done() for one in others), "nobody is told before it is on the disk"
    go_on.set()
    for one in (first, *others):
        one.result(10)
    assert calls == [2, 20], "one for the first, one for the eighteen that came meanwhile"
    sink.close()


def test_what_cannot_be_kept_is_told_and_spoils_nothing(
    tmp_path: Path, quiet: list[list[Path]], plain: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, played = Served(tmp_path, ["wordle"]), episodes(5)
    keep(sink, played[:2])
    real = os.write

    def write(file: int, data: Any) -> int:
        monkeypatch.setattr("os.write", real)
        real(file, bytes(data)[:40])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", write)
    with pytest.raises(OSError, match="No space left"):
        sink.add(played[2]).result(10)
    for wrong, message in [
        (replace(played[3], turns=(Turn("\ud800", "a", 0.0),)), "half of a surrogate pair"),
        (replace(played[3], env_kwargs={"x": [2**63]}), "more than 64 bits"),
        (replace(played[3], info={"x": float("nan")}), "not JSON compliant"),
    ]:
        with pytest.raises(ValueError, match=message):
            sink.add(wrong).result(10)
    keep(sink, played[3:])
    sink.close()
    with pytest.raises(RuntimeError, match="the recording is closed"):
        sink.add(played[0]).result(10)
    assert finish(tmp_path / "wordle").added == 4
    assert sorted(stored(tmp_path / "wordle"), key=lambda t: t.index) == [*played[:2], *played[3:]]


def test_numbers_go_on_and_equal_names_are_told_apart(tmp_path: Path, quiet: list[list[Path]], plain: None) -> None:
    folder, played = tmp_path / "wordle", episodes(2)
    rounds = [
        [unnamed(played[0]), played[0], unnamed(played[1]), unnamed(played[1], "web")],
        [played[1], unnamed(played[0]), played[0], played[0]],
        [played[0], unnamed(played[0], "web")],
    ]
    for given in rounds:  # a server each
        sink = Served(tmp_path, ["wordle"])
        keep(sink, given)
        sink.close()
        finish(folder)
    ids = sorted(t.episode_id for t in stored(folder, "train", "test"))
    assert ids == [
        "wordle-behavior#2-test-0000000",
        "wordle-behavior#3-test-0000000",
        "wordle-behavior#4-test-0000000",
        "wordle-behavior-test-0000000",
        "wordle-behavior-test-0000001",
        "wordle-remote-train-0000000",
        "wordle-remote-train-0000001",
        "wordle-remote-train-0000003",
        "wordle-web-train-0000002",
        "wordle-web-train-0000004",
    ]
    facts = json.loads((folder / CONFIG / "stats.json").read_text())["served"]
    assert (facts["unnamed"], facts["again"]) == (5, 3)
    assert facts["policies"] == [["behavior", 5], ["remote", 3], ["web", 2]]
    card = (folder / "README.md").read_text()
    assert (
        "| `behavior` | 5 |" in card
        and "and so on. 3 are such." in card
        and "5 are test episodes" in card
        and "Made by `lmrl serve" in card
    )


def test_an_interrupted_finish_is_done_again_with_the_same_result(
    tmp_path: Path, quiet: list[list[Path]], plain: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before each of its steps in turn: nothing is lost, nothing is there twice, numbers stay."""
    played = episodes(2)
    sink = Served(tmp_path, ["wordle"])
    keep(sink, [played[0], unnamed(played[0])])
    sink.close()
    finish(tmp_path / "wordle")
    sink = Served(tmp_path, ["wordle"])
    keep(sink, [played[1], unnamed(played[1]), played[0]])
    sink.close()
    steps = 0

    def fused(function: Callable[..., Any], last: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == last:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    for last in itertools.count(1):
        folder, steps = Path(shutil.copytree(tmp_path / "wordle", tmp_path / f"{last}")), 0
        with monkeypatch.context() as patch:
            # A file, its note, their way to the disk, the end of the journal, the statistics, the note on these.
            patch.setattr("hub_datasets.shards.write_parquet", fused(shards.write_parquet, last))
            patch.setattr("hub_datasets.shards.write_json", fused(shards.write_json, last))
            for name in ("to_disk", "describe", "write_json"):
                patch.setattr(served_data, name, fused(getattr(served_data, name), last))
            patch.setattr(Path, "unlink", fused(Path.unlink, last))
            with contextlib.suppress(KeyboardInterrupt):
                finish(folder)
        if steps < last:
            break
        done = finish(folder)
        assert done.manifest is not None and done.manifest["summary"]["episodes"] == 5
        assert journals(folder) == []
        assert [t.episode_id for t in stored(folder, "train", "test")] == [
            "wordle-remote-train-0000000",
            "wordle-remote-train-0000001",
            "wordle-behavior-test-0000000",
            "wordle-behavior-test-0000001",
            "wordle-behavior#2-test-0000000",
        ]
    assert last == 11, "the steps of this journal, ten, were all tried"


def test_a_damaged_journal_is_told_and_the_others_are_in(tmp_path: Path, quiet: list[list[Path]], plain: None) -> None:
    folder, played = tmp_path / "wordle", episodes(4)
    for given in (played[:2], played[2:]):
        sink = Served(tmp_path, ["wordle"])
        keep(sink, given)
        sink.close()
    bad = journals(folder)[0]
    bad.write_bytes(bad.read_bytes().replace(b"out_of_tries", b"out_of_tears").replace(b"solved", b"sloved"))
    lines = bad.read_bytes().splitlines(keepends=True)
    bad.write_bytes(lines[0] + Served.__module__.encode() + b"\n" + b"".join(_good(played[1])))
    with pytest.raises(ValueError, match=f"{bad.name}, line 1 is damaged"):
        finish(folder)
    assert journals(folder) == [bad]
    assert len(stored(folder)) == 2


def _good(trajectory: Trajectory) -> list[bytes]:
    from hub_datasets.journal import encode_line

    return [encode_line(to_record(trajectory))]


def test_folders_that_do_not_fit_are_refused(tmp_path: Path, quiet: list[list[Path]]) -> None:
    Served(tmp_path, ["wordle"]).close()
    head = tmp_path / "wordle" / WORK / "recording.json"
    head.write_text(json.dumps({**json.loads(head.read_text()), "task_version": "0.9"}))
    with pytest.raises(
        ValueError, match=r"was recorded with task_version '0.9', here it is '1.0'; record into another"
    ):
        Served(tmp_path, ["maze", "wordle"])
    with pytest.raises(ValueError, match=r"was recorded with task_version '0.9'"):
        finish(tmp_path / "wordle")
    (tmp_path / "copy" / "maze" / CONFIG).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"has a configuration 'served', and no \.serving"):
        Served(tmp_path / "copy", ["maze"])
    with pytest.raises(FileNotFoundError, match="holds no recording"):
        finish(tmp_path)


# Sessions ----------------------------------------------------------------------------------------------------------


def answers(sink: Any, *frames: tuple[str, dict[str, Any]]) -> tuple[list[Any], Rooms]:
    """What a session answers, errors included, with this sink behind it."""

    async def run() -> tuple[list[Any], Rooms]:
        rooms, replies = Rooms({"wordle": {"spaced": False}}, Limits(), sink=sink), list[Any]()
        rooms.start()
        session = await Session.open(rooms, "me", None)
        for kind, data in frames:
            try:
                reply = await session.answer(json.dumps({"type": kind, "data": data}))
                replies.append(reply and json.loads(reply))
            except WireError as problem:
                replies.append(problem)
        rooms.stop()
        return replies, rooms

    return asyncio.run(run())


def test_a_name_is_taken_if_the_seed_is_the_one_of_the_name(
    tmp_path: Path, quiet: list[list[Path]], plain: None
) -> None:
    seed = episode_seed("wordle", load_task("wordle").spec.version, "validation", 7)
    name = {"split": "validation", "index": 7, "policy": "org/model@v1"}
    steps = [("step", {"text": "about\n"})] * 6
    resets = [
        {"seed": seed, "episode_id": "mine", "metadata": name},
        {"seed": 8, "metadata": name},
        {"seed": seed, "metadata": {"split": "validation"}, "invalid_reward": -3},
        {},
    ]
    sink = Served(tmp_path, ["wordle"])
    replies, _ = answers(sink, *(frame for reset in resets for frame in [("reset", reset), *steps]))
    assert [reply["data"]["done"] for reply in replies[6::7]] == [True] * 4
    sink.close()
    finish(tmp_path / "wordle")
    (named,) = stored(tmp_path / "wordle", "validation")
    assert (named.index, named.seed, named.behavior_policy) == (7, seed, "org/model@v1")
    assert named.info[SERVED] == {"episode_id": "mine", "named": True} and is_named(named.info)
    assert [turn.action for turn in named.turns] == ["about"] * 6
    others = stored(tmp_path / "wordle", "train")
    assert [t.index for t in others] == [0, 1, 2] and not any(is_named(t.info) for t in others)
    assert [t.seed for t in others[:2]] == [8, seed]
    assert [t.behavior_policy for t in others] == ["org/model@v1", "remote", "remote"]
    assert [t.env_kwargs for t in others] == [
        {"spaced": False}, {"spaced": False, "invalid_reward": -3}, {"spaced": False}
    ]  # fmt: skip
    assert [replay(t) for t in (named, *others)] == [None] * 4


def test_a_client_is_told_when_its_episode_could_not_be_recorded(tmp_path: Path, quiet: list[list[Path]]) -> None:
    sink = Served(tmp_path, ["wordle"])
    sink.close()
    replies, rooms = answers(sink, ("reset", {}), *[("step", {"text": "about"})] * 6)
    assert isinstance(replies[-1], WireError) and replies[-1].fatal
    assert replies[-1].message == "the episode could not be recorded; it is lost"
    assert dict(rooms.counts.lost) == {("wordle", "record"): 1} and not rooms.counts.episodes


@pytest.mark.parametrize(
    "metadata",
    [
        {"split": "dev"}, {"split": ["train"]}, {"index": -1}, {"index": True}, {"index": 2**63}, {"index": "1"},
        {"policy": 3}, {"policy": "x" * 201}, {"policy": "\ud800"}, {"policy": "two\nlines"},
    ],
)  # fmt: skip
def test_names_that_no_row_could_hold_are_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=next(iter(metadata))):
        wire.parse_reset({"metadata": metadata})


# As a dataset ------------------------------------------------------------------------------------------------------


def test_commands_finish_what_a_dead_server_left(tmp_path: Path, quiet: list[list[Path]]) -> None:
    folder, played = tmp_path / "twenty_questions", episodes(3, task="twenty_questions")
    sink = Served(tmp_path, ["twenty_questions"])
    keep(sink, [*played, unnamed(played[0])])
    sink.close()
    runner, app = CliRunner(), _app()
    loaded = runner.invoke(app, ["load", str(folder), "--config", CONFIG, "--split", "test"])
    assert loaded.exit_code == 0 and "4 episodes came out of journals into Parquet" in loaded.stderr, loaded.output
    assert repr(played[0]) in loaded.stdout
    made = runner.invoke(app, ["interactions", str(folder), "--config", CONFIG, "--output", str(folder)])
    assert made.exit_code == 0 and f"{sum(t.num_turns for t in (*played, played[0]))} answers" in made.output, (
        made.output
    )
    shown = runner.invoke(app, ["card", str(folder), "--to", "me/mine"])
    assert shown.exit_code == 0 and "## A partner's recorded answers" in shown.output
    assert "recorded from a server, see below" in shown.output and "| `knowledge` |" in shown.output
    verified = runner.invoke(app, ["verify", str(folder)])
    assert verified.exit_code == 0 and "4 episodes replay exactly" in verified.output.replace("\n", " ")


def test_options_that_name_a_file_of_this_machine(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    assert local_options("wordle", {"vocab": str(words), "spaced": False}) == [f"vocab={words}"]
    assert local_options("wordle", {"vocab": "common", "invalid_reward": -2.0}) == []
    assert local_options("twenty_questions", {"partner": "replay:lmrl/twenty_questions@v1"}) == []
    assert local_options("twenty_questions", {"partner": "openai:m@http://h/v1"}) == []
    assert local_options(
        "twenty_questions", {"partner": "model:org/m", "partner_options": {"fallback": f"replay:{tmp_path}"}}
    ) == [f"fallback={tmp_path}"]


def flow_publish(folder: Path) -> Any:
    """Published, grown and published again, with a file of the host's in the options at last."""
    from huggingface_hub import HfApi

    from hub_datasets import build
    from hub_datasets.load import load_trajectories
    from hub_datasets.publish import publish

    Wordle.spec = replace(Wordle.spec, test_episodes=4)
    build.draw_histogram = lambda path, manifest: path.touch()

    def add(name: str) -> None:
        sink = Served(folder, ["wordle"])
        keep(sink, [served.from_record(line.record) for line in read_lines(folder / name)])
        sink.close()

    served._Finishing.want = lambda self, folders: None  # type: ignore[method-assign]
    add("one")
    first = publish(folder / "wordle", "lmrl/wordle", tag="v1")
    add("two")
    second = publish(folder / "wordle", "lmrl/wordle")
    local = list(load_trajectories(str(folder / "wordle"), "test", config=CONFIG))
    loaded = list(load_trajectories("lmrl/wordle", "test", config=CONFIG, revision=second.revision))
    tagged = list(load_trajectories("lmrl/wordle", "test", config=CONFIG, revision="v1"))
    add("three")
    try:
        publish(folder / "wordle", "lmrl/wordle")
        refused = ""
    except ValueError as error:
        refused = str(error)
    return {
        "changed": [first.changed, second.changed],
        "equal": [loaded == local, tagged == local[:2]],
        "indices": [t.index for t in local],
        "refused": refused,
        "files": HfApi().list_repo_files("lmrl/wordle", repo_type="dataset"),
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps(flow_publish(Path(sys.argv[1]))))
    sys.exit()


def test_a_recording_is_published_grows_and_loads_back_equal(tmp_path: Path) -> None:
    played, words = episodes(5), tmp_path / "words.txt"
    words.write_text("about\nworld\n")
    own = replace(played[4], env_kwargs={"vocab": str(words)})
    for name, part in {"one": played[:2], "two": played[2:4], "three": [own]}.items():
        (tmp_path / name).write_bytes(b"".join(line for one in part for line in _good(one)))
    with HubServer(tmp_path / "hub") as hub:
        environment = client_environment(hub, tmp_path / "home", xet=False)
        done = subprocess.run(
            [sys.executable, __file__, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr[-3000:]
    saw = json.loads(done.stdout.partition("RESULT ")[2])
    assert saw["changed"] == [True, True]
    assert saw["equal"] == [True, True] and saw["indices"] == [0, 1, 2, 3]
    assert f"vocab={words}" in saw["refused"] and "pass --force" in saw["refused"]
    assert {path.partition("/")[0] for path in saw["files"]} == {".gitattributes", CONFIG, "tasks", "README.md"}
