"""Build: the same bytes with any number of workers, resumable, and as the Hub wants its Parquet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from datasets import get_dataset_config_names, load_dataset

from dataset_cards.figures import histogram
from env_servers.scores import summarize
from hub_datasets.build import build, make_plan, shards
from hub_datasets.load import load_episodes, load_starts, load_trajectories
from hub_datasets.manifest import file_sha256, read_manifests
from hub_datasets.verify import verify

SMALL = {"train": 50, "validation": 10}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build(make_plan("maze", episodes=SMALL, shard_episodes=20), folder, workers=1)
    return folder


def test_bytes_do_not_depend_on_the_number_of_workers(built: Path, tmp_path: Path) -> None:
    build(make_plan("maze", episodes=SMALL, shard_episodes=20), tmp_path, workers=3)
    assert contents(tmp_path) == contents(built)
    assert sorted(contents(built)) == [
        "README.md",
        "episodes/returns.png",
        "episodes/stats.json",
        "episodes/train-00000-of-00003.parquet",
        "episodes/train-00001-of-00003.parquet",
        "episodes/train-00002-of-00003.parquet",
        "episodes/validation-00000-of-00001.parquet",
        "tasks/test-00000-of-00001.parquet",
    ]


def test_the_split_into_shards_does_not_change_the_episodes(built: Path, tmp_path: Path) -> None:
    build(make_plan("maze", episodes=SMALL, shard_episodes=1000), tmp_path, workers=1)
    assert list(load_trajectories(str(tmp_path))) == list(load_trajectories(str(built)))


def test_parquet_has_page_index_content_defined_chunks_and_features(built: Path) -> None:
    metadata = pq.read_metadata(built / "episodes/train-00000-of-00003.parquet")
    assert b"content_defined_chunking" in metadata.metadata
    assert b'"_type": "Json"' in metadata.metadata[b"huggingface"]
    column = metadata.row_group(0).column(0)
    assert column.has_offset_index and column.has_column_index


def test_plain_load_dataset_reads_the_folder(built: Path) -> None:
    assert get_dataset_config_names(str(built)) == ["episodes", "tasks"]
    episodes = load_dataset(str(built))  # the default configuration
    assert {split: rows.num_rows for split, rows in episodes.items()} == SMALL
    assert load_dataset(str(built), "tasks", split="test").num_rows == 800
    streamed = list(load_episodes(str(built), "validation", streaming=True))
    assert streamed == list(load_episodes(str(built), "validation"))
    assert len(load_starts(str(built))) == 800


def test_statistics_are_those_of_the_rows(built: Path) -> None:
    (manifest,) = read_manifests(built)
    everything = [*load_trajectories(str(built)), *load_trajectories(str(built), "validation")]
    summary = summarize(everything)
    assert manifest["summary"]["mean_return"] == summary.mean_return
    assert manifest["summary"]["success_rate"] == summary.success_rate
    assert manifest["summary"]["std_length"] == summary.std_length
    reasons = [t.end_reason for t in everything]
    counted = {r: sum(p["end_reasons"].get(r, 0) for p in manifest["splits"].values()) for r in set(reasons)}
    assert counted == {reason: reasons.count(reason) for reason in set(reasons)}
    assert manifest["reference"]["optimal"]["mean_return"] == -6.84
    assert sum(manifest["splits"]["train"]["histogram"]["counts"]) == 50


def test_episodes_stay_in_their_sub_maze(built: Path) -> None:
    from env_servers.tasks.maze import sub_maze

    for trajectory in load_trajectories(str(built)):
        start = sub_maze(tuple(trajectory.info["start"]))
        end = sub_maze(tuple(trajectory.info["position"]))
        assert trajectory.success == (trajectory.end_reason == "goal")
        assert not (start != "stem" and trajectory.success)
        assert end == ("stem" if trajectory.end_reason in ("goal", "left_sub_maze") else start)


def test_a_finished_build_is_left_alone_and_another_plan_is_refused(built: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*.parquet")}
    build(make_plan("maze", episodes=SMALL, shard_episodes=20), built, workers=1)
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*.parquet")} == before
    with pytest.raises(FileExistsError, match="built from another plan or changed since"):
        build(make_plan("maze", episodes={"train": 5}), built, workers=1)


def test_overwrite_replaces_and_another_configuration_is_added(tmp_path: Path) -> None:
    build(make_plan("maze", episodes={"train": 8}), tmp_path, workers=1)
    build(make_plan("maze", episodes={"train": 6}), tmp_path, workers=1, overwrite=True)
    assert len(list(load_trajectories(str(tmp_path)))) == 6
    build(make_plan("maze", config="expert", policy="optimal", episodes={"train": 4}), tmp_path, workers=1)
    assert get_dataset_config_names(str(tmp_path)) == ["episodes", "expert", "tasks"]
    assert [t.behavior_policy for t in load_trajectories(str(tmp_path), config="expert")] == ["optimal"] * 4
    assert verify(str(tmp_path)).problem is None
    with pytest.raises(ValueError, match=r"Unknown split|Bad split"):
        load_episodes(str(tmp_path), "dev")


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="is not empty and holds no dataset"):
        build(make_plan("maze", episodes={"train": 2}), tmp_path, workers=1, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_killed_build_resumes_without_playing_finished_shards_again(tmp_path: Path) -> None:
    plan = {"episodes": {"train": 4000, "validation": 10}, "shard_episodes": 100}
    code = (
        "from pathlib import Path\nfrom hub_datasets.build import *\n"
        f"build(make_plan('maze', **{plan!r}), Path({str(tmp_path / 'killed')!r}), workers=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    work = tmp_path / "killed" / ".build" / "episodes"
    while len(list(work.glob("train-*.json"))) < 3:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    first = tmp_path / "killed/episodes/train-00000-of-00040.parquet"
    written = first.stat().st_mtime_ns
    other = make_plan("maze", episodes={"train": 7})
    with pytest.raises(FileExistsError, match="unfinished build of 'episodes' from another plan"):
        build(other, tmp_path / "killed", workers=1)
    build(make_plan("maze", **plan), tmp_path / "killed", workers=2)
    assert first.stat().st_mtime_ns == written
    build(make_plan("maze", **plan), tmp_path / "whole", workers=2)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_damaged_shard_of_an_unfinished_build_is_made_again(tmp_path: Path) -> None:
    plan = make_plan("maze", episodes={"train": 6}, shard_episodes=3)
    build(plan, tmp_path / "whole", workers=1)
    from hub_datasets.build import write_json, write_shard

    work = tmp_path / "torn/.build/episodes"
    for needed in (work, tmp_path / "torn/episodes", tmp_path / "torn/tasks"):
        needed.mkdir(parents=True)
    write_json(work / "plan.json", json.loads((tmp_path / "whole/episodes/stats.json").read_text())["plan"])
    write_shard(plan, shards(plan)[0], tmp_path / "torn", work)
    shard = tmp_path / "torn" / shards(plan)[0].path("episodes")
    shard.write_bytes(shard.read_bytes()[:100])
    build(plan, tmp_path / "torn", workers=1)
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "optimum"}, "did you mean 'optimal'"),
        ({"episodes": {"train": 0}}, "train is 0; at least 1"),
        ({"episodes": {"test": 5}}, r"unknown splits \['test'\]"),
        ({"env_kwargs": {"maze": "big"}}, "maze is 'big'"),
        ({"config": "tasks"}, "config is 'tasks'"),
        ({"config": "../x"}, r"config is '\.\./x'"),
    ],
)
def test_impossible_plans_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plan("maze", **arguments)  # type: ignore[arg-type]


def test_histogram_by_hand() -> None:
    assert histogram([0, 0, -2]) == {"edges": [-3, -1, 1], "counts": [1, 2]}
    assert histogram([5, 5]) == {"edges": [4.5, 5.5], "counts": [2]}
    whole = histogram([float(n) for n in range(-60, 1)])  # 61 numbers, at most 30 bars: 3 numbers a bar
    assert whole["counts"] == [3] * 20 + [1]
    assert (whole["edges"][0], whole["edges"][1], whole["edges"][-1]) == (-60.5, -57.5, 2.5)
    parts = histogram([n / 61 for n in range(62)])
    assert (
        sum(parts["counts"]) == 62
        and len(parts["counts"]) == 30
        and parts["edges"][-1] == pytest.approx(62 / 61 - 1 / 61)
    )


def test_folders_of_one_name_do_not_share_a_cache_entry(built: Path, tmp_path: Path) -> None:
    """datasets' cache knows a folder by its name, README and files' names; these have all of them in common."""
    from datasets import Dataset

    from hub_datasets.rows import EPISODE_FEATURES, to_row

    trajectories = list(load_trajectories(str(built), "validation"))
    for place, part in (("a", trajectories[:5]), ("b", trajectories[5:])):
        folder = tmp_path / place / "data"
        (folder / "episodes").mkdir(parents=True)
        (folder / "README.md").write_text(
            "---\nconfigs:\n- config_name: episodes\n  data_files:\n  - {split: train, path: episodes/*.parquet}\n---\n"
        )
        rows = Dataset.from_list([to_row(t) for t in part], features=EPISODE_FEATURES)
        rows.to_parquet(folder / "episodes/train.parquet")
    assert list(load_trajectories(str(tmp_path / "a/data"))) == trajectories[:5]
    assert list(load_trajectories(str(tmp_path / "b/data"))) == trajectories[5:]
    rows.select([0]).to_parquet(tmp_path / "b/data/episodes/train.parquet")
    assert list(load_trajectories(str(tmp_path / "b/data"))) == trajectories[5:6]


def test_verify_prints_the_first_difference(built: Path, tmp_path: Path) -> None:
    assert verify(str(built)).problem is None
    assert verify(str(built))[1:3] == (60, 800)
    from datasets import Dataset

    from hub_datasets.rows import EPISODE_FEATURES, to_row

    def rows_with(change: dict[str, object], number: int = 3) -> Path:
        rows = [to_row(t) for t in load_trajectories(str(built), "validation")]
        rows[number] |= change
        folder = tmp_path / f"changed{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        Dataset.from_list(rows, features=EPISODE_FEATURES).to_parquet(folder / "train.parquet")
        return folder

    trajectory = list(load_trajectories(str(built), "validation"))[3]
    lied = to_row(replace(trajectory, turns=(*trajectory.turns[:-1], trajectory.turns[-1]._replace(reward=7.0))))
    from hub_datasets.verify import _check_episode

    assert "does not replay: turn" in str(_check_episode(lied)[1])
    assert "seed is 5, expected" in str(_check_episode(to_row(replace(trajectory, seed=5)))[1])
    assert "end_reason is 'bored', known are goal, turn_limit, left_sub_maze" in str(
        _check_episode(to_row(replace(trajectory, end_reason="bored")))[1]
    )
    assert "was played under version 0.1" in str(_check_episode(to_row(replace(trajectory, task_version="0.1")))[1])
    shard = built / "episodes/validation-00000-of-00001.parquet"
    copy = tmp_path / "copy"
    for name, data in contents(built).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    changed = rows_with({"success": not trajectory.success}) / "train.parquet"
    (copy / shard.relative_to(built)).write_bytes(changed.read_bytes())
    assert "is not the file that was built" in str(verify(str(copy)).problem)
    stats = copy / "episodes/stats.json"
    old, new = (file_sha256(root / shard.relative_to(built)) for root in (built, copy))
    stats.write_text(stats.read_text().replace(old, new))
    assert str(verify(str(copy)).problem).startswith(
        "configuration 'episodes', split 'validation', row 3: maze-behavior-validation-0000003 does not replay: turn "
    )
