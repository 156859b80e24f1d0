"""Evaluation runs: what the log holds, that nothing stops it from being finished, and who may write it.

This file is also the script that the tests kill: `python test_eval_run.py <folder> <seconds per round>`.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from env_servers.play import Start, episode_starts, play
from env_servers.policy import Action, Context, ScriptedPolicy
from env_servers.scores import summarize
from env_servers.task import EpisodeError, Step
from env_servers.tasks import load_task, make_policy
from env_servers.tasks.maze import Maze
from eval_harness.cli import eval_app, report_app
from eval_harness.log import (
    Header,
    RunLog,
    conflicts,
    hash_starts,
    read_episodes,
    read_header,
    read_rows,
)
from eval_harness.run import default_folder, evaluate_policy, run
from hub_datasets.journal import decode_line, encode_line
from hub_datasets.rows import EPISODE_FEATURES, from_row

EPISODES = 12
IDENTITY = {"kind": "scripted", "name": "scripted:random", "revision": None}


class Slow:
    """The random policy, taking its time."""

    name = "random"

    def __init__(self, seconds: float) -> None:
        self._policy, self._seconds = make_policy("maze", "random"), seconds

    def act(self, contexts: Sequence[Context]) -> Sequence[Action]:
        time.sleep(self._seconds)
        return self._policy.act(contexts)


def play_slowly(folder: Path, seconds: float) -> None:
    evaluate_policy("maze", Slow(seconds), identity=IDENTITY, episodes=EPISODES, batch=3, output=folder, progress=False)


if __name__ == "__main__":
    play_slowly(Path(sys.argv[1]), float(sys.argv[2]))
    sys.exit()


def start_slowly(folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(folder), str(seconds)], stderr=subprocess.PIPE)


def wait_for_lines(path: Path, count: int) -> None:
    for _ in range(6000):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.005)
    raise AssertionError(f"{path} never had {count} lines")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    play_slowly(folder, 0)
    return folder


# What a log holds --------------------------------------------------------------------------------------------------


def test_the_log_is_the_episodes_that_play_gives(whole: Path) -> None:
    spec = load_task("maze").spec
    starts = list(episode_starts("maze", "test", range(EPISODES)))
    expected = [played.trajectory for played in play("maze", make_policy("maze", "random"), starts, slots=1)]
    logged = list(read_episodes(whole))
    assert [episode.trajectory for episode in logged] == expected
    assert [list(row) for row in read_rows(whole)] == [list(EPISODE_FEATURES)] * EPISODES
    assert [from_row(row) for row in read_rows(whole)] == expected
    assert all(len(actions) == trajectory.num_turns for trajectory, actions in logged)
    header = read_header(whole)
    assert (header.task, header.task_version, header.split, header.seed) == ("maze", spec.version, "test", 0)
    assert (header.episodes, header.batch, header.model) == (EPISODES, 3, IDENTITY)
    assert header.starts == hash_starts("maze", spec.version, starts)
    assert header.starts_from is None
    assert set(header.versions) == {"lmrl", "python"}
    results = json.loads((whole / "results.json").read_text())
    assert results["summary"]["mean_return"] == summarize(expected).mean_return
    assert results["complete"] is True and results["header"]["starts"] == header.starts


def test_legality_tokens_and_finish_reasons_are_logged_per_action(tmp_path: Path) -> None:
    class Clumsy:
        name = "clumsy"

        def act(self, contexts: Sequence[Context]) -> list[Action]:
            return [self._answer(context) for context in contexts]

        def _answer(self, context: Context) -> Action:
            if len(context.history) % 2 == 0:
                return Action("jump ü \ud800 \u2028", token_ids=(5, 6, 7), finish_reason="length")
            return Action("move down", token_ids=(5,), finish_reason="stop")

    result = evaluate_policy("maze", Clumsy(), episodes=5, batch=2, output=tmp_path / "run", progress=False)
    for trajectory, actions in read_episodes(tmp_path / "run"):
        expected = [turn.action == "move down" for turn in trajectory.turns]
        assert [action.legal for action in actions] == expected
        assert [action.legal for action in actions].count(False) == trajectory.num_invalid > 0
        assert [(action.tokens, action.finish_reason) for action in actions[:2]] == [(3, "length"), (1, "stop")]
        assert trajectory.turns[0].action == "jump ü \ud800 \u2028"
    assert result.scored.cut_actions == 5 * 51  # every second of 101 actions


def test_the_same_command_twice_writes_the_same_episodes_and_another_batch_too(tmp_path: Path) -> None:
    first = run("maze", "scripted:optimal", episodes=30, output=tmp_path / "a", progress=False)
    second = run("maze", "scripted:optimal", episodes=30, output=tmp_path / "b", progress=False)
    third = run("maze", "scripted:optimal", episodes=30, batch=1, output=tmp_path / "c", progress=False)
    files = [(result.folder / "episodes.jsonl").read_bytes() for result in (first, second, third)]
    assert files[0] == files[1] == files[2]
    assert [json.loads(line)["index"] for line in files[0].splitlines()] == list(range(30))


def test_the_seed_of_the_run_changes_the_policy_and_not_the_episodes(tmp_path: Path) -> None:
    folders = [
        run("maze", "scripted:random", episodes=6, seed=seed, output=tmp_path / str(seed), progress=False).folder
        for seed in (0, 1)
    ]
    first, second = ([episode.trajectory for episode in read_episodes(folder)] for folder in folders)
    assert [t.seed for t in first] == [t.seed for t in second]
    assert [t.turns[0].observation for t in first] == [t.turns[0].observation for t in second]
    assert [t.turns for t in first] != [t.turns for t in second]


def test_options_of_the_environment_reach_it_and_the_header(tmp_path: Path) -> None:
    options = {"maze": "umaze", "start": [3, 1]}
    result = run("maze", "scripted:random", episodes=3, env_kwargs=options, output=tmp_path / "r", progress=False)
    assert read_header(result.folder).env_kwargs == options
    assert all(dict(t.env_kwargs) == options for t, _ in read_episodes(result.folder))


def test_starts_from_a_dataset_are_played_and_recorded(tmp_path: Path) -> None:
    from hub_datasets.build import build
    from hub_datasets.plan import make_plan

    build(make_plan("maze", episodes={"train": 2}), tmp_path / "maze", workers=1)
    given = run(
        "maze",
        "scripted:optimal",
        episodes=7,
        starts_from=str(tmp_path / "maze"),
        output=tmp_path / "given",
        progress=False,
    )
    own = run("maze", "scripted:optimal", episodes=7, output=tmp_path / "own", progress=False)
    header = read_header(given.folder)
    assert header.starts_from == {"source": str(tmp_path / "maze"), "revision": None}
    assert header.starts == read_header(own.folder).starts
    assert (given.folder / "episodes.jsonl").read_bytes() == (own.folder / "episodes.jsonl").read_bytes()
    with pytest.raises(ValueError, match="has 800 starts in 'test', fewer than the 801 episodes"):
        run("maze", "scripted:optimal", episodes=801, starts_from=str(tmp_path / "maze"), output=tmp_path / "many")


def test_wrong_numbers_and_names_are_told_before_anything_is_written(tmp_path: Path) -> None:
    for message, arguments in [
        ("episodes is 0", {"episodes": 0}),
        ("batch is 0", {"batch": 0}),
        ("unknown split 'tests'", {"split": "tests"}),
        ("unknown option of task 'maze' 'strt'; did you mean 'start'", {"env_kwargs": {"strt": 1}, "episodes": 1}),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            run("maze", "scripted:optimal", output=tmp_path / "none", progress=False, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown task 'maize'; did you mean 'maze'"):
        run("maize", "scripted:optimal", output=tmp_path / "none")
    assert (
        not (tmp_path / "none" / "episodes.jsonl").exists() or not (tmp_path / "none" / "episodes.jsonl").read_bytes()
    )


def test_the_default_folder_has_no_character_a_file_cannot_have() -> None:
    assert default_folder("maze", "scripted:optimal", 3) == Path("runs/maze/scripted-optimal-seed3")
    assert default_folder("maze", "org/some model@v1", 0) == Path("runs/maze/org-some-model-v1-seed0")
    assert default_folder("maze", "../..", 0) == Path("runs/maze/model-seed0")


# Interruptions -----------------------------------------------------------------------------------------------------


def test_killed_and_run_again_gives_the_bytes_of_an_uninterrupted_run(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    for lines in (3, 6):  # killed twice, at different points
        process = start_slowly(folder, 0.02)
        wait_for_lines(folder / "episodes.jsonl", lines)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert lines <= (folder / "episodes.jsonl").read_bytes().count(b"\n") < EPISODES
        assert not (folder / "results.json").exists()
    play_slowly(folder, 0)
    assert (folder / "episodes.jsonl").read_bytes() == (whole / "episodes.jsonl").read_bytes()
    assert json.loads((folder / "results.json").read_text())["complete"] is True


@pytest.mark.parametrize("keep", [1, 40, -20, -1])
def test_a_torn_last_line_is_dropped_and_its_episode_played_again(whole: Path, tmp_path: Path, keep: int) -> None:
    lines = (whole / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    folder = tmp_path / "torn"
    folder.mkdir()
    (folder / "header.json").write_bytes((whole / "header.json").read_bytes())
    # Not in order, as lines are while a run goes on, and the last one without its end.
    (folder / "episodes.jsonl").write_bytes(lines[4] + lines[0] + lines[7][:keep])
    assert [t.index for t, _ in read_episodes(folder)] == [4, 0]
    play_slowly(folder, 0)
    assert (folder / "episodes.jsonl").read_bytes() == (whole / "episodes.jsonl").read_bytes()


def test_damage_before_the_last_line_is_told_with_its_place(whole: Path, tmp_path: Path) -> None:
    lines = (whole / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "header.json").write_bytes((whole / "header.json").read_bytes())
    broken = lines[1].replace(b"move up", b"move on", 1)
    damaged = lines[0] + broken + lines[2]
    (folder / "episodes.jsonl").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"line 2 is damaged, and it is not the last one"):
        list(read_episodes(folder))
    with pytest.raises(ValueError, match=r"line 2 is damaged"):
        play_slowly(folder, 0)
    assert (folder / "episodes.jsonl").read_bytes() == damaged


def test_an_interrupt_from_the_keyboard_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = 0

    def choose(context: Context) -> str:
        nonlocal rounds
        rounds += 1
        if rounds == 60:
            raise KeyboardInterrupt
        return load_task("maze").policies["optimal"]().act([context])[0].text

    settings: dict[str, Any] = {"identity": {"kind": "scripted", "name": "o", "revision": None}, "episodes": 20}
    with pytest.raises(KeyboardInterrupt):
        evaluate_policy("maze", ScriptedPolicy("o", choose), output=tmp_path / "r", batch=4, **settings)
    told = capsys.readouterr().err
    assert re.search(r"Stopped: \d+ of 20 episodes are in .*; the same command goes on there\.", told)
    done = len(list(read_episodes(tmp_path / "r")))
    assert 0 < done < 20
    result = evaluate_policy("maze", ScriptedPolicy("o", choose), output=tmp_path / "r", batch=4, **settings)
    assert f"Going on: {done} of 20 episodes" in capsys.readouterr().err
    assert result.scored.summary.episodes == 20


def test_a_policy_that_fails_leaves_a_log_that_goes_on(whole: Path, tmp_path: Path) -> None:
    class Failing(Slow):
        rounds = 0

        def act(self, contexts: Sequence[Context]) -> Sequence[Action]:
            self.rounds += 1
            if self.rounds == 150:
                raise RuntimeError("out of memory")
            return super().act(contexts)

    folder = tmp_path / "failed"
    with pytest.raises(RuntimeError, match="out of memory"):
        evaluate_policy(
            "maze", Failing(0), identity=IDENTITY, episodes=EPISODES, batch=3, output=folder, progress=False
        )
    assert 0 < len(list(read_episodes(folder))) < EPISODES
    play_slowly(folder, 0)
    assert (folder / "episodes.jsonl").read_bytes() == (whole / "episodes.jsonl").read_bytes()


def test_a_complete_run_is_not_played_again(whole: Path) -> None:
    class Never:
        name = "random"

        def act(self, contexts: Sequence[Context]) -> list[Action]:
            raise AssertionError("nothing is left to play")

    result = evaluate_policy(
        "maze", Never(), identity=IDENTITY, episodes=EPISODES, batch=3, output=whole, progress=False
    )
    assert result.scored.complete


# Who may write -----------------------------------------------------------------------------------------------------


def test_two_processes_on_one_log_refuse_each_other_and_a_dead_one_locks_nothing(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    process = start_slowly(folder, 0.1)  # longer than the second one takes to begin
    wait_for_lines(folder / "episodes.jsonl", 1)
    for overwrite in (False, True):
        with pytest.raises(RuntimeError, match=f"is being written by another process .id {process.pid}.; wait"):
            evaluate_policy("maze", Slow(0), identity=IDENTITY, episodes=1, output=folder, overwrite=overwrite)
    second = start_slowly(folder, 0)
    _, told = second.communicate()
    assert second.returncode == 1 and b"is being written by another process" in told
    process.kill()
    process.communicate()
    play_slowly(folder, 0)
    assert (folder / "episodes.jsonl").read_bytes() == (whole / "episodes.jsonl").read_bytes()


def header(**changes: Any) -> Header:
    model = {
        "kind": "language model",
        "name": "org/model",
        "revision": "a" * 40,
        "sampling": {"temperature": 1.0, "top_k": 0},
    }
    base = Header(
        task="maze", task_version="1.0", env_kwargs={}, model=model, split="test", episodes=4, seed=0, batch=32,
        starts="f" * 64, starts_from=None, versions={"lmrl": "0.1.0", "python": "3.11.0", "torch": "2.9.0"},
        created="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return replace(base, **changes)


def test_a_log_of_other_settings_is_refused_with_every_difference(tmp_path: Path) -> None:
    RunLog(tmp_path / "r", header()).close()
    (tmp_path / "r/episodes.jsonl").write_bytes(
        encode_line({"split": "test", "index": 0, "episode_return": 0.0, "num_turns": 1, "num_invalid": 0}) + b"{"
    )
    model = {**header().model, "revision": "b" * 40, "sampling": {"temperature": 0.0, "top_k": 0}}
    before = sorted((p.name, p.read_bytes()) for p in (tmp_path / "r").iterdir())
    with pytest.raises(ValueError) as refused:
        RunLog(tmp_path / "r", header(model=model, seed=5, batch=8, env_kwargs={"start": [1, 1]}))
    message = str(refused.value)
    assert f"model.revision: '{'a' * 40}' in the log, '{'b' * 40}' now" in message
    assert "model.sampling.temperature: 1.0 in the log, 0.0 now" in message
    assert "seed: 0 in the log, 5 now" in message
    assert "batch: 32 in the log, 8 now" in message
    assert "env_kwargs.start: None in the log, [1, 1] now" in message
    assert "--output" in message and "--overwrite" in message
    assert "top_k" not in message and "created" not in message
    assert sorted((p.name, p.read_bytes()) for p in (tmp_path / "r").iterdir()) == before


def test_what_does_not_change_results_is_no_conflict() -> None:
    versions = {"lmrl": "0.1.0", "python": "3.12.1", "torch": "2.10.0"}
    assert conflicts(header(), header(created="2027-01-01T00:00:00+00:00", versions=versions)) == []
    scripted = header(model=IDENTITY)
    assert conflicts(scripted, header(model=IDENTITY, batch=1)) == []
    assert [c.setting for c in conflicts(header(), header(batch=1))] == ["batch"]
    assert [c.setting for c in conflicts(header(), header(versions={"lmrl": "0.2.0"}))] == ["versions.lmrl"]
    started = header(starts_from={"source": "lmrl/maze", "revision": "c" * 40})
    assert [c.setting for c in conflicts(header(), started)] == ["starts_from.source", "starts_from.revision"]


def test_overwrite_moves_the_old_log_aside_and_deletes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run("maze", "scripted:random", episodes=2, output=folder, progress=False)
    old = (folder / "episodes.jsonl").read_bytes()
    for number in (1, 2):
        run("maze", "scripted:random", episodes=2, seed=number, output=folder, overwrite=True, progress=False)
        assert (tmp_path / f"r.old-{number}" / "results.json").exists()
    assert (tmp_path / "r.old-1" / "episodes.jsonl").read_bytes() == old
    assert read_header(folder).seed == 2


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("words")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"holds no run but other files \(thesis\.tex\)"):
            run("maze", "scripted:random", episodes=1, output=tmp_path, overwrite=overwrite, progress=False)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(ValueError, match="is a file"):
        run("maze", "scripted:random", episodes=1, output=tmp_path / "thesis.tex", progress=False)


def test_a_header_of_another_format_is_refused(whole: Path, tmp_path: Path) -> None:
    record = json.loads((whole / "header.json").read_text())
    (tmp_path / "header.json").write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(ValueError, match="has format 99; this version of lmrl reads format 1"):
        read_header(tmp_path)
    (tmp_path / "header.json").write_text(json.dumps({"format": 1, "task": "maze"}))
    with pytest.raises(ValueError, match="lacks task_version, "):
        read_header(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no run"):
        read_header(tmp_path / "nowhere")


# Lines -------------------------------------------------------------------------------------------------------------


def test_a_line_is_json_with_the_checksum_of_what_precedes_it() -> None:
    record = {"a": 'x","checksum":"00000000"}\n', "b": [1.5, None, "\u2028ü\ud800"]}
    line = encode_line(record)
    assert line.count(b"\n") == 1 and line.isascii()
    assert decode_line(line) == record
    assert {**record, "checksum": json.loads(line)["checksum"]} == json.loads(line)
    for cut in range(len(line)):
        assert decode_line(line[:cut]) is None
    for place in range(len(line)):
        changed = bytearray(line)
        changed[place] ^= 1
        assert decode_line(bytes(changed)) is None


def test_starts_hash_tells_any_difference() -> None:
    start = Start("test", 0, 7, {"start": [1, 1]})
    hashes = {
        hash_starts("maze", "1.0", starts)
        for starts in (
            [start],
            [start, start],
            [replace(start, seed=8)],
            [replace(start, index=1)],
            [replace(start, env_kwargs={})],
            [],
        )
    }
    assert len(hashes | {hash_starts("maze", "1.1", [start]), hash_starts("maze_po", "1.0", [start])}) == 8


# Command line ------------------------------------------------------------------------------------------------------


def test_the_two_commands_from_run_to_page(tmp_path: Path) -> None:
    runner, folder = CliRunner(), tmp_path / "run"
    arguments = ["--model", "scripted:optimal", "--task", "maze", "--episodes", "25", "--option", "maze=double_t"]
    done = runner.invoke(eval_app, [*arguments, "--output", str(folder), "--report"])
    assert done.exit_code == 0, done.output
    assert "-6.84" in done.output and "100.0 %" in done.output
    assert (folder / "report.html").exists()
    files = {name: tmp_path / name for name in ("page.html", "numbers.json", "table.md")}
    options = [
        "--html",
        str(files["page.html"]),
        "--json",
        str(files["numbers.json"]),
        "--markdown",
        str(files["table.md"]),
    ]
    shown = runner.invoke(report_app, [str(folder), *options, "--replay"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(files["numbers.json"].read_text())["runs"][0]["summary"]["mean_return"] == -6.84
    assert "| scripted:optimal | 25 | -6.84" in files["table.md"].read_text()
    assert "<h1>Evaluation report</h1>" in files["page.html"].read_text()


def test_results_of_a_scripted_policy_need_a_repository_before_anything_is_played(tmp_path: Path) -> None:
    arguments = ["--model", "scripted:optimal", "--task", "maze", "--output", str(tmp_path / "r"), "--push-results"]
    refused = CliRunner().invoke(eval_app, arguments)
    assert isinstance(refused.exception, ValueError) and "--results-repo" in str(refused.exception)
    assert not (tmp_path / "r").exists()


def test_each_command_has_an_example() -> None:
    command: Any = typer.main.get_command(eval_app)
    assert sorted(command.commands) == ["merge", "retry"]
    for name, one in {"": command, **command.commands}.items():
        assert one.epilog.startswith(f"Example: lmrl eval {name}".rstrip())


@pytest.mark.parametrize("app", [report_app])
def test_each_app_is_one_plain_command_with_an_example(app: typer.Typer) -> None:
    command = typer.main.get_command(app)
    assert not hasattr(command, "commands")
    assert (command.epilog or "").startswith("Example: lmrl ")


def test_episodes_that_fail_from_outside_are_counted_apart_and_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three of twelve fail at their third action; the run completes, says so, and the same call plays those three."""
    failing = {2, 5, 11}
    plain = Maze._step

    def step(env: Maze, action: str) -> Step:
        if env._steps == 2 and env.info["start"] in [list(maze_start(index)) for index in failing]:
            raise EpisodeError("the engine died (exit status -9)")
        return plain(env, action)

    def maze_start(index: int) -> list[int]:
        return Maze.spec.test_starts[index]["start"]  # type: ignore[no-any-return]

    policy = ScriptedPolicy("down", lambda context: "move down")
    monkeypatch.setattr(Maze, "_step", step)
    folder, scored = evaluate_policy("maze", policy, episodes=12, output=tmp_path / "run", progress=False)
    assert (scored.summary.episodes, scored.failed, scored.complete) == (9, 3, False)
    assert "3 episodes could not be finished; the first failed with: the engine died" in capsys.readouterr().err
    assert json.loads((folder / "results.json").read_text())["failed"] == 3
    monkeypatch.setattr(Maze, "_step", plain)
    _, scored = evaluate_policy("maze", policy, episodes=12, output=folder, progress=False)
    assert (scored.summary.episodes, scored.failed, scored.complete) == (12, 0, True)
    other, _ = evaluate_policy("maze", policy, episodes=12, output=tmp_path / "undisturbed", progress=False)
    assert (folder / "episodes.jsonl").read_bytes() == (other / "episodes.jsonl").read_bytes()


def test_a_run_of_which_nothing_could_be_finished_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(env: Maze, rng: random.Random) -> str:
        raise EpisodeError("no engine answers")

    monkeypatch.setattr(Maze, "_reset", reset)
    policy = ScriptedPolicy("down", lambda context: "move down")
    with pytest.raises(RuntimeError, match="4 episodes could not be finished; the first failed with: no engine"):
        evaluate_policy("maze", policy, episodes=4, output=tmp_path / "run", progress=False)
