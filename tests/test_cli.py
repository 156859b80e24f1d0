"""The command line as a person meets it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from env_servers.cli import ROOMS, parse_options
from trainers.alarms import TrainingCollapsed

LMRL = str(Path(sys.executable).parent / "lmrl")
COMMANDS = [
    ["tasks"],
    ["play"],
    ["data", "build"],
    ["data", "import"],
    ["data", "interactions"],
    ["data", "publish"],
    ["data", "load"],
    ["data", "verify"],
    ["data", "card"],
    ["train", "bc"],
    ["eval"],
    ["report"],
    ["demo"],
]


def lmrl(*arguments: str, input: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LMRL, *arguments], capture_output=True, text=True, input=input, cwd=cwd)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    done = lmrl(*command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Example:" in done.stdout and f"lmrl {' '.join(command)}" in done.stdout.replace("\n", " ")


def test_help_names_every_command() -> None:
    done = lmrl("--help")
    for name in ["tasks", "play", *ROOMS]:
        assert f"│ {name} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evla"], "Did you mean 'eval'?"),
        (["data", "biuld"], "Did you mean 'build'?"),
        (["play", "mase"], "lmrl: unknown task 'mase'; did you mean 'maze'?"),
        (["play", "maze", "--policy", "optimum"], "did you mean 'optimal'?"),
        (["play", "maze", "--option", "start"], "is not of the form NAME=VALUE"),
        (["data", "verify", "nowhere/at/all"], "is no folder and no repository"),
        (["data", "build", "maze", "--train", "-1"], "lmrl: train is -1; at least 1 episode is needed"),
        (["report", "no/such/run"], "lmrl: "),
        (["eval", "--model", "scripted:optmal", "--task", "maze"], "did you mean 'optimal'?"),
    ],
)
def test_mistakes_are_answered_with_one_message(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = lmrl(*arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_tasks_lists_all_policies() -> None:
    done = lmrl("tasks")
    assert "maze_po" in done.stdout and "best_memory" in done.stdout


def test_a_person_plays_the_maze() -> None:
    done = lmrl("play", "maze", "--option", "start=[6,6]", "--seed", "1", input="move down\nup please\nmove down\n")
    assert done.returncode == 0
    assert "██████████████G" not in done.stdout and "G " in done.stdout and "@ " in done.stdout
    assert "reward -4 (not an action)" in done.stdout
    assert done.stdout.rstrip().endswith("return -5 in 3 actions, success (goal)")


def test_a_person_is_shown_at_the_end_what_was_hidden() -> None:
    done = lmrl("play", "guess_my_city", "--seed", "3", input="Is it in Oceania?\nIs it Sydney?\n")
    assert "Yes, it is.\n(19 questions left)\n> " in done.stdout and "reward -1\n" in done.stdout
    assert done.stdout.count("Australia") == 1 and "reward 0" not in done.stdout
    assert done.stdout.endswith(
        "Yes, it is.\nThe city was Sydney, Australia.\nreturn -1 in 2 actions, success (guessed)\n"
    )


def test_leaving_in_the_middle_is_no_error() -> None:
    done = lmrl("play", "maze", "--seed", "1", input="move up\n")
    assert done.returncode == 0 and "> move up\nreward -1\n" in done.stdout, "what was not typed is shown"
    assert done.stdout.endswith("left before the end (return -1 so far); the same --seed 1 begins it again\n")


def test_what_is_no_text_is_a_bad_action_and_an_unrecorded_question_the_end(tmp_path: Path) -> None:
    words, asked = b"Is it \xff\xfe alive?\n\n", tmp_path / "asked.jsonl"
    utf8 = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"}
    command = [LMRL, "play", "twenty_questions", "--seed", "3"]
    done = subprocess.run([*command, "--record", asked], input=words, capture_output=True, env=utf8)
    assert done.returncode == 0 and done.stdout.count(b"(not an action)") == 1, done.stderr
    assert "> Is it \ufffd\ufffd alive?\nreward -1\n" in done.stdout.decode()
    again = [*command, "--partner", f"replay:{asked}"]
    done = subprocess.run(again, input=words + b"Can it fly?\n", capture_output=True, env=utf8)
    assert done.returncode == 1 and done.stdout.endswith(b"> Can it fly?\n")
    assert done.stderr.startswith(b"lmrl: replay:asked.jsonl has no recorded answer to 'Can it fly?'")


def test_watching_a_policy() -> None:
    done = lmrl("play", "maze", "--policy", "optimal", "--option", "start=[1,1]")
    assert "return -11 in 12 actions, success (goal)" in done.stdout


def test_build_load_verify_card(tmp_path: Path) -> None:
    built = lmrl("data", "build", "maze", "--train", "20", "--validation", "5", "--workers", "1", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert "the paper's (Table 1)" in built.stdout and "0.110" in built.stdout and "-19.70" in built.stdout
    loaded = lmrl("data", "load", "data/maze", "--split", "validation", "--rows", "2", cwd=tmp_path)
    assert loaded.stdout.count("Trajectory(maze-behavior-validation-") == 2
    verified = lmrl("data", "verify", "data/maze", cwd=tmp_path)
    assert "data/maze: 25 episodes replay exactly, 800 test starts are right" in verified.stdout
    card = lmrl("data", "card", "data/maze", "--to", "me/maze", cwd=tmp_path)
    assert 'load_dataset("me/maze"' in card.stdout
    with (tmp_path / "data/maze/episodes/train-00000-of-00001.parquet").open("ab") as file:
        file.write(b"x")
    broken = lmrl("data", "verify", "data/maze", cwd=tmp_path)
    assert broken.returncode == 1 and "is not the file that was built" in broken.stderr


def test_options_are_json_where_they_can_be() -> None:
    assert parse_options(["start=[1,2]", "maze=umaze", "n=3", "on=true"]) == {
        "start": [1, 2],
        "maze": "umaze",
        "n": 3,
        "on": True,
    }


def test_a_launched_training_tells_its_errors_as_lmrl_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m trainers`, which torchrun and accelerate launch start: a message, and no traceback."""

    def stopped() -> None:
        raise TrainingCollapsed("training was stopped in round 3: ...")

    monkeypatch.setattr("trainers.cli.app", stopped)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("trainers", run_name="__main__")
    assert ended.value.code == 1 and capsys.readouterr().err == "lmrl: training was stopped in round 3: ...\n"
    monkeypatch.setenv("LMRL_DEBUG", "1")
    with pytest.raises(TrainingCollapsed):
        runpy.run_module("trainers", run_name="__main__")
