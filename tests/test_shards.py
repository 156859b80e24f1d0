"""A run in parts: shards that are merged, processes that are launched together, episodes that are played again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_servers.cli import app
from eval_harness.log import EPISODES, HEADER, RESULTS, read_header
from eval_harness.merge import merge, parse_shard
from eval_harness.run import default_folder, evaluate_policy, retry, run


def play(folder: Path, shard: tuple[int, int] | None = None, *, task: str = "maze", seed: int = 0) -> Path:
    return run(
        task, "scripted:random", episodes=7, seed=seed, output=folder, shard=shard, progress=False
    ).folder  # fmt: skip


def comparable(folder: Path) -> dict[str, object]:
    """What a run's folder says, without the clock."""
    header = json.loads((folder / HEADER).read_text())
    results = json.loads((folder / RESULTS).read_text())
    for record in (header, results["header"]):
        record.pop("created")
    return {"episodes": (folder / EPISODES).read_bytes(), "header": header, "results": results}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("whole") / "run")


def test_merged_shards_are_the_run_of_one_process(whole: Path, tmp_path: Path) -> None:
    """Seven episodes in three parts: three, two and two."""
    parts = [play(tmp_path / str(number), (number, 3)) for number in (3, 1, 2)]
    assert sorted(read_header(part).episodes for part in parts) == [2, 2, 3]
    scored = merge(parts, tmp_path / "merged")
    assert scored.complete and scored.summary.episodes == 7
    assert comparable(tmp_path / "merged") == comparable(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3", "merged"]


def test_what_does_not_belong_together_is_not_merged(whole: Path, tmp_path: Path) -> None:
    first, second = (play(tmp_path / str(number), (number, 2)) for number in (1, 2))
    other = play(tmp_path / "other", (2, 2), seed=1)
    thirds = play(tmp_path / "thirds", (2, 3))
    out = tmp_path / "out"
    for folders, words in [
        ([first, other], r"shards of different runs:\n  seed: 0 and 1"),
        ([first, thirds], "one of 2 shards and .* one of 3"),
        ([first, whole], "is a whole run and no shard"),
        ([first], "shard 2/2 is not there; finish them and merge again, or merge with --partial"),
    ]:
        with pytest.raises(ValueError, match=words):
            merge(folders, out)
        assert not out.exists()
    lines = (second / EPISODES).read_bytes().splitlines(keepends=True)
    (second / EPISODES).write_bytes(lines[0])
    with pytest.raises(ValueError, match=r"2 has 1 of 3 episodes"):
        merge([first, second], out)
    with pytest.raises(ValueError, match="is not empty"):
        merge([first, second], whole)


def test_a_partial_merge_is_completed_by_retry(whole: Path, tmp_path: Path) -> None:
    first = play(tmp_path / "1", (1, 2))
    scored = merge([first], tmp_path / "merged", partial=True)
    assert not scored.complete and scored.summary.episodes == 4
    assert retry(tmp_path / "merged").scored.complete
    assert comparable(tmp_path / "merged") == comparable(whole)


def test_retry_plays_what_is_missing_with_the_run_s_own_settings(tmp_path: Path) -> None:
    settings = {"episodes": 5, "seed": 3, "env_kwargs": {"start": [1, 1]}, "batch": 2}
    folder = run("maze", "scripted:random", output=tmp_path / "r", progress=False, **settings).folder  # type: ignore[arg-type]
    before = comparable(folder)
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    (folder / EPISODES).write_bytes(b"".join(lines[1::2]))
    told = CliRunner().invoke(app, ["eval", "retry", str(folder)])
    assert told.exit_code == 0, told.output
    assert comparable(folder) == before

    from env_servers.tasks import make_policy

    nameless = evaluate_policy("maze", make_policy("maze", "random"), episodes=1, output=tmp_path / "p", progress=False)
    with pytest.raises(ValueError, match="does not say how it was begun"):
        retry(nameless.folder)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(ValueError, match="it must be I/N"):
        parse_shard(text)


def test_a_shard_has_a_folder_of_its_own() -> None:
    assert parse_shard("2/3") == (2, 3)
    assert default_folder("maze", "a/b", 1, (2, 3)) == Path("runs/maze/a-b-seed1-2-of-3")
    with pytest.raises(ValueError, match="too few"):
        run("maze", "scripted:random", episodes=1, shard=(2, 2), progress=False)


def test_launched_processes_make_the_run_of_one(whole: Path, tmp_path: Path) -> None:
    """Stopped in the middle, the same command goes on with the shards that are there."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "eval_harness"]
    options = ["--model", "scripted:random", "--task", "maze", "--episodes", "7", "--output", str(tmp_path / "run")]
    shards = tmp_path / "run.shards"
    play(shards / "1-of-2", (1, 2))
    lines = (shards / "1-of-2" / EPISODES).read_bytes().splitlines(keepends=True)
    (shards / "1-of-2" / EPISODES).write_bytes(b"".join(lines[:2]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words, *options], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("log: ") == 1
    assert comparable(tmp_path / "run") == comparable(whole) and not shards.exists()
