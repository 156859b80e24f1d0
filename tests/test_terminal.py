"""`lmrl play --from`: a logged episode is shown as it was, and gone on with where the environment repeats itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_servers.cli import app
from env_servers.play import episode_starts, play
from env_servers.policy import ScriptedPolicy
from env_servers.terminal import show_logged
from eval_harness.log import read_episodes
from eval_harness.run import evaluate_policy, run
from hub_datasets.journal import decode_line, encode_line

WORDS = ["move down", "\x1b[2Jclear", "move down"]  # from (6, 6): down, nothing, to the goal at (8, 6)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logged:run")
    policy = ScriptedPolicy("talker", lambda context: WORDS[len(context.history)])
    options = {"start": [6, 6]}
    evaluate_policy("maze", policy, env_kwargs=options, episodes=2, output=folder / "maze", progress=False)
    return folder


def lmrl(*arguments: str, text: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments, input=text)
    return done.exit_code, done.output + (
        str(done.exception) if isinstance(done.exception, ValueError | OSError) else ""
    )


def test_a_logged_episode_is_shown_to_its_end_and_its_control_characters_do_nothing(logged: Path) -> None:
    code, output = lmrl("play", "--from", f"{logged}/maze:1")
    seed = [one.trajectory.seed for one in read_episodes(logged / "maze")][1]
    assert code == 0 and f"seed {seed}\n" in output
    assert [line for line in output.splitlines() if line.startswith(">")] == [
        "> move down", r"> \x1b[2Jclear", "> move down",
    ]  # fmt: skip
    assert output.endswith("return -5 in 3 actions, success (goal)\n") and "\x1b" not in output


def test_a_person_goes_on_after_the_turn_named(logged: Path) -> None:
    code, output = lmrl(
        "play", "maze", "--from", f"{logged}/maze:0", "--turn", "1", text="move up\nmove down\nmove down\n"
    )
    assert code == 0 and "clear" not in output
    assert "position 7, 6" in output and output.endswith("return -3 in 4 actions, success (goal)\n")
    code, output = lmrl("play", "--from", f"{logged}/maze:0", "--turn", "0", "--policy", "optimal")
    assert output.endswith("return -1 in 2 actions, success (goal)\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "{}/maze:7"], "holds no episode 7"),
        (["--from", "{}/maze"], "it must be a run's folder and an episode"),
        (["--from", "{}/none:1"], "holds no run"),
        (["wordle", "--from", "{}/maze:1"], "the task given is wordle, that of episode 1"),
        (["--from", "{}/maze:1", "--seed", "3"], "the seed given is 3"),
        (["--from", "{}/maze:1", "--turn", "3"], "--turn is 3; the episode has 3 actions: 0 to one less are allowed"),
        (["--from", "{}/maze:1", "--option", "start=[1,1]"], "leave out --option"),
        (["maze", "--turn", "1"], "give --from RUN:INDEX, too"),
        ([], "play needs a task"),
    ],
)
def test_mistakes_are_named(logged: Path, arguments: list[str], words: str) -> None:
    code, output = lmrl("play", *(part.format(logged) for part in arguments))
    assert code != 0 and words in output


def test_an_episode_that_was_cut_ends_where_it_was_cut(capsys: pytest.CaptureFixture[str]) -> None:
    policy, starts = ScriptedPolicy("up", lambda context: "move up"), episode_starts("maze", "train", [0])
    (one,) = play("maze", policy, starts, stop=lambda context: "enough" if len(context.history) == 2 else None)
    show_logged(one.trajectory, None, None)
    assert capsys.readouterr().out.endswith("the episode was cut here, return -2 in 2 actions\n")


def test_an_opponent_that_is_no_part_of_the_task_is_not_gone_on_with(tmp_path: Path) -> None:
    options = {"opponent": "random", "max_moves": 3}
    made = run("chess", "scripted:random", episodes=1, env_kwargs=options, output=tmp_path / "c", progress=False)
    assert lmrl("play", "--from", f"{made.folder}:0")[1].count("\n> ") == 4
    assert lmrl("play", "--from", f"{made.folder}:0", "--turn", "2", "--policy", "random")[0] == 0
    # A log from a stranger names a program; it is shown, and not run.
    text = (made.folder / "episodes.jsonl").read_text()
    record = decode_line(text.encode())
    assert record is not None
    record["env_kwargs"]["opponent"] = str(tmp_path / "program")
    (made.folder / "episodes.jsonl").write_bytes(encode_line(record))
    assert lmrl("play", "--from", f"{made.folder}:0")[0] == 0
    code, output = lmrl("play", "--from", f"{made.folder}:0", "--turn", "2")
    assert code != 0 and "option opponent of a log is never followed out of the task" in output
