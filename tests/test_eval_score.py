"""Scoring a log: the numbers of the run, by hand, unfinished, replayed, and wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy import stats

from env_servers.policy import Context, ScriptedPolicy
from env_servers.scores import normalize, summarize
from env_servers.tasks import load_task
from eval_harness.log import read_episodes
from eval_harness.run import evaluate_policy, run
from eval_harness.score import score, to_record
from hub_datasets.journal import decode_line, encode_line

# Three starts of `double_t` below the junction: 3, 2 and 1 cells from the goal at (8, 6).
STARTS = {5: -2.0, 6: -1.0, 7: 0.0}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(
        "maze", "scripted:random", episodes=30, output=tmp_path_factory.mktemp("score") / "r", progress=False
    ).folder


def test_scores_by_hand(tmp_path: Path) -> None:
    """`jump` (-4), then down to the goal: the return is -4 - (distance - 1)."""

    def choose(context: Context) -> str:
        return "jump" if not context.history else "move down"

    for row, expected in STARTS.items():
        folder = tmp_path / str(row)
        policy = ScriptedPolicy("jumper", choose)
        evaluate_policy("maze", policy, episodes=4, env_kwargs={"start": [row, 6]}, output=folder, progress=False)
        scored = score(folder)
        summary = scored.summary
        assert (summary.episodes, summary.mean_return, summary.std_return) == (4, expected - 4, 0.0)
        assert (summary.success_rate, summary.mean_length) == (1.0, 8 - row + 1)
        assert summary.invalid_rate == pytest.approx(1 / (8 - row + 1))
        assert scored.end_reasons == {"goal": 4}
        assert scored.cut_actions == 0 and scored.complete
        # Table 5 of the paper: -83 is 50, -6.84 is 100; a return above -6.84 scores above 100.
        assert scored.normalized["paper"] == pytest.approx(50 + 50 * (expected - 4 + 83) / 76.16)
        assert scored.normalized["paper"] > 100


def test_scoring_again_gives_the_numbers_of_the_run(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    scored = score(finished, replay=True)
    assert to_record(scored) == results
    assert scored.summary == summarize(episode.trajectory for episode in read_episodes(finished))
    returns = [episode.trajectory.episode_return for episode in read_episodes(finished)]
    low, high = stats.t.interval(0.95, 29, loc=sum(returns) / 30, scale=stats.sem(returns))
    assert scored.summary.return_interval == pytest.approx((low, high), rel=1e-6)
    scales = load_task("maze").spec.normalisations
    assert scored.normalized == {name: normalize(sum(returns) / 30, scale) for name, scale in scales.items()}
    assert sum(scored.end_reasons.values()) == 30


def copy_lines(source: Path, target: Path, lines: list[bytes]) -> Path:
    target.mkdir()
    (target / "header.json").write_bytes((source / "header.json").read_bytes())
    (target / "episodes.jsonl").write_bytes(b"".join(lines))
    return target


def test_an_unfinished_run_is_scored_and_says_so(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    scored = score(copy_lines(finished, tmp_path / "r", [*lines[:5], lines[5][:100]]))
    assert (scored.summary.episodes, scored.header.episodes, scored.complete) == (5, 30, False)
    assert to_record(scored)["complete"] is False


def test_what_is_undefined_for_one_episode_is_null_in_json(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    scored = score(copy_lines(finished, tmp_path / "r", lines[:1]))
    assert math.isnan(scored.summary.std_return)
    record = json.loads(json.dumps(to_record(scored), allow_nan=False))
    assert record["summary"]["std_return"] is None
    assert record["summary"]["return_interval"] == [None, None]


def test_nothing_to_score_says_what_to_do(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished episode yet"):
        score(copy_lines(finished, tmp_path / "r", []))
    with pytest.raises(FileNotFoundError, match="holds no run"):
        score(tmp_path)


def test_an_episode_twice_is_refused(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    with pytest.raises(ValueError, match="maze-random-test-0000000 is in the log twice"):
        score(copy_lines(finished, tmp_path / "r", [lines[0], lines[1], lines[0]]))


def test_replay_finds_an_edited_reward_with_a_good_checksum(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    record = decode_line(lines[3])
    assert record is not None
    record["rewards"][1] = 5.0
    record["episode_return"] = math.fsum(record["rewards"])
    folder = copy_lines(finished, tmp_path / "r", [*lines[:3], encode_line(record), *lines[4:]])
    assert score(folder).summary.mean_return == pytest.approx(score(finished).summary.mean_return + 6 / 30)
    with pytest.raises(
        ValueError, match=r"test-0000003 does not replay: turn 1, reward: recorded 5\.0, replayed -1\.0"
    ):
        score(folder, replay=True)
