"""Suites: which model plays which task, what the table says, and that one command goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_servers.cli import app
from env_servers.tasks import load_task, task_ids
from eval_harness.eval_suites import SUITES, Contestant, choose, read_contestants, run_suite, to_markdown
from eval_harness.log import EPISODES


def test_the_paper_s_suite_has_all_tasks_with_their_numbers_and_both_decodings() -> None:
    suite = SUITES["paper"]
    assert sorted(suite.tasks) == sorted(task_ids()) and suite.episodes is None
    assert suite.decodings == ("sampled", "greedy")
    assert set(SUITES["games"].tasks) | set(SUITES["dialogue"].tasks) == set(suite.tasks)


def test_the_best_scripted_policy_is_the_100_of_our_scale() -> None:
    names = {task: Contestant("best", "scripted:{best}").on(task) for task in task_ids()}
    assert None not in names.values()
    assert names["maze_po"] == "scripted:best_memory" and names["chess"] == "scripted:stockfish"
    assert all("lmrl" in load_task(task).spec.normalisations for task in names)


def test_a_pattern_is_a_policy_per_task(tmp_path: Path) -> None:
    (tmp_path / "maze" / "bc-0").mkdir(parents=True)
    local = Contestant("BC", f"{tmp_path}/{{task}}/bc-0")
    assert local.on("maze") == f"{tmp_path}/maze/bc-0" and local.on("wordle") is None
    assert Contestant("hub", "org/{task}-bc").on("wordle") == "org/wordle-bc"
    assert Contestant("r", "scripted:random").on("chess") == "scripted:random"
    assert Contestant("n", "scripted:naive").on("maze") is None
    assert read_contestants(["BC=a/{task}", "scripted:random"]) == [
        Contestant("BC", "a/{task}"), Contestant("scripted:random", "scripted:random"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="several models are called"):
        read_contestants(["x=a", "x=b"])


@pytest.mark.parametrize(
    ("name", "tasks", "words"),
    [("papers", None, "unknown suite 'papers'"), ("games", "car_dealer", "unknown task of suite 'games' 'car_dealer'")],
)
def test_what_is_no_suite(name: str, tasks: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        choose(name, tasks, None)


def test_one_command_makes_the_table_and_goes_on(tmp_path: Path) -> None:
    """Two models, three tasks; one of the models has no policy for two of them."""
    words = ["eval", "--suite", "quick", "--task", "maze,wordle,twenty_questions", "--episodes", "4"]
    words += ["--model", "random=scripted:random", "--model", "scripted:naive", "--output", str(tmp_path)]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    text = (tmp_path / "table.md").read_text()
    first, ours, paper = (part for part in text.split("## ")[1:])
    assert "| model | Maze (fully observed) | Wordle | Twenty Questions |" in first
    assert first.count("| scripted:naive | – | – |") == 1 and "[" in first.split("| random |")[1]
    assert "- scripted:naive, maze: it has no policy for this task" in text
    assert "Episodes of each: maze 4, wordle 4, twenty_questions 4." in text
    records = json.loads((tmp_path / "table.json").read_text())
    assert [(r["label"], r["task"], r["run"] is not None) for r in records] == [
        ("random", "maze", True), ("random", "wordle", True), ("random", "twenty_questions", True),
        ("scripted:naive", "maze", False), ("scripted:naive", "wordle", False),
        ("scripted:naive", "twenty_questions", True),
    ]  # fmt: skip
    run = records[0]["run"]
    shown = f"{run['summary']['mean_return']:.2f}"
    assert f"| random | {shown} [" in first and f"| random | {run['normalized']['lmrl']:.1f} |" in ours
    assert f"| random | {run['normalized']['paper']:.1f} |" in paper

    logs = sorted(tmp_path.glob(f"*/*/sampled/{EPISODES}"))
    times = [path.stat().st_mtime_ns for path in logs]
    lines = logs[0].read_bytes().splitlines(keepends=True)
    logs[0].write_bytes(b"".join(lines[:1]))
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0 and (tmp_path / "table.md").read_text() == text
    assert [path.stat().st_mtime_ns for path in logs[1:]] == times[1:], "what is complete is not played again"
    assert logs[0].read_bytes() == b"".join(lines)


def test_a_task_that_cannot_be_played_does_not_stop_the_others(tmp_path: Path) -> None:
    suite = choose("quick", "maze,wordle", 2)
    entries = run_suite(suite, ["nowhere=some/where/there/is/nothing", "scripted:random"], tmp_path, batch=2, seed=0)
    assert [(entry.label, entry.run is None) for entry in entries] == [
        ("nowhere", True), ("nowhere", True), ("scripted:random", False), ("scripted:random", False),
    ]  # fmt: skip
    assert "nothing" in (entries[0].reason or "") and "- nowhere, maze: " in to_markdown(entries)


def test_options_of_one_run_are_refused_with_a_suite(tmp_path: Path) -> None:
    told = CliRunner().invoke(
        app, ["eval", "--suite", "quick", "--model", "scripted:random", "--shard", "1/2", "--output", str(tmp_path)]
    )
    assert isinstance(told.exception, ValueError) and "--shard is for one run" in str(told.exception)
