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
from hub_datasets import build as build_module
from hub_datasets.build import build, build_part, join
from hub_datasets.journal import read_lines
from hub_datasets.load import load_episodes, load_starts, load_trajectories
from hub_datasets.manifest import file_sha256, read_manifests
from hub_datasets.plan import make_plan, shards, split_episodes
from hub_datasets.shards import write_shard
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


def is_running(process: str) -> bool:
    """Whether there is such a process that has not ended; one that has may still wait to be asked how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_killed_build_resumes_without_playing_finished_shards_again(tmp_path: Path) -> None:
    plan = {"episodes": {"train": 4000, "validation": 10}, "shard_episodes": 100}
    code = (
        "from pathlib import Path\nfrom hub_datasets.build import build\nfrom hub_datasets.plan import make_plan\n"
        f"build(make_plan('maze', **{plan!r}), Path({str(tmp_path / 'killed')!r}), workers=2)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    work = tmp_path / "killed" / ".build" / "episodes"
    while len(list(work.glob("train-*.json"))) < 3:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.02)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(3000):
        if not any(is_running(worker) for worker in workers):
            break
        time.sleep(0.02)
    else:
        pytest.fail("the workers go on without the process that began them")
    number = min(work.glob("train-*.json")).stem
    first = tmp_path / f"killed/episodes/{number}-of-00040.parquet"
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
    from hub_datasets.manifest import write_json
    from hub_datasets.shards import write_shard

    work = tmp_path / "torn/.build/episodes"
    for needed in (work, tmp_path / "torn/episodes", tmp_path / "torn/tasks"):
        needed.mkdir(parents=True)
    write_json(work / "plan.json", json.loads((tmp_path / "whole/episodes/stats.json").read_text())["plan"])
    write_shard(plan, shards(plan)[0], tmp_path / "torn", work, lambda episodes: None)
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


def test_parts_of_several_machines_join_to_the_same_bytes(built: Path, tmp_path: Path) -> None:
    plan = make_plan("maze", episodes=SMALL, shard_episodes=20)
    parts = [tmp_path / name for name in ("a", "b", "c")]
    episodes = [build_part(plan, folder, number, 3, workers=1) for number, folder in enumerate(parts, 1)]
    assert episodes == [20 + 10, 20, 10], "four files in turn: train of 20, 20 and 10 episodes, validation of 10"
    manifest = join([parts[2], parts[0], parts[1]], tmp_path / "whole")
    assert manifest["fingerprint"] == read_manifests(built)[0]["fingerprint"]
    assert contents(tmp_path / "whole") == contents(built)
    assert join(parts, tmp_path / "whole"), "a second join finds the dataset finished"


def test_a_join_without_all_parts_names_what_is_missing_and_goes_on_later(built: Path, tmp_path: Path) -> None:
    plan = make_plan("maze", episodes=SMALL, shard_episodes=20)
    for number in (1, 2):
        build_part(plan, tmp_path / str(number), number, 2, workers=1)
    with pytest.raises(FileNotFoundError, match=r"2 files are in none of the 1 parts \(episodes/train-00001-of-00003"):
        join([tmp_path / "1"], tmp_path / "whole")
    join([tmp_path / "2"], tmp_path / "whole")
    assert contents(tmp_path / "whole") == contents(built)


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    plan = make_plan("maze", episodes=SMALL, shard_episodes=20)
    build_part(plan, tmp_path / "1", 1, 2, workers=1)
    build_part(make_plan("maze", episodes={"train": 51, "validation": 10}, shard_episodes=20), tmp_path / "2", 2, 2)
    with pytest.raises(
        ValueError, match=r"parts of different datasets: episodes is \{'train': 50, .* and \{'train': 51"
    ):
        join([tmp_path / "1", tmp_path / "2"], tmp_path / "whole")
    with pytest.raises(FileNotFoundError, match="holds no part of a dataset"):
        join([tmp_path], tmp_path / "whole")
    with pytest.raises(ValueError, match=r"shard 3/2 is none: the parts of 2 are 1/2 to 2/2"):
        build_part(plan, tmp_path / "3", 3, 2)
    with pytest.raises(ValueError, match="the dataset has 4 files, too few for 5 parts"):
        build_part(plan, tmp_path / "3", 1, 5)


def test_any_number_of_workers_records_and_replays_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a card shows besides has no part in this, and takes long.
    score = build_module.reference_score
    monkeypatch.setattr(build_module, "reference_score", lambda task, policy, _, kwargs: score(task, policy, 2, kwargs))
    monkeypatch.setattr(build_module, "draw_histogram", lambda path, manifest: path.write_bytes(b""))
    numbers = {"episodes": {"train": 20, "validation": 4}, "shard_episodes": 8}
    build(make_plan("guess_my_city", **numbers), tmp_path / "first", workers=1, record=tmp_path / "asked")
    assert sorted(contents(tmp_path / "asked")) == [
        "guess_my_city-episodes-train-00000-of-00003.jsonl",
        "guess_my_city-episodes-train-00001-of-00003.jsonl",
        "guess_my_city-episodes-train-00002-of-00003.jsonl",
        "guess_my_city-episodes-validation-00000-of-00001.jsonl",
    ]
    (tmp_path / "asked/guess_my_city-episodes-train-00001-of-00003.jsonl").unlink()
    by = {"partner": f"replay:{tmp_path / 'asked'}", "partner_options": {"fallback": "knowledge"}}
    plan = make_plan("guess_my_city", env_kwargs=by, **numbers)
    for workers in (1, 2):
        build(plan, tmp_path / f"again{workers}", workers=workers, record=tmp_path / f"new{workers}")
    assert contents(tmp_path / "again1") == contents(tmp_path / "again2")
    new = contents(tmp_path / "new1")
    assert new == contents(tmp_path / "new2")
    assert [name for name, lines in new.items() if lines] == ["guess_my_city-episodes-train-00001-of-00003.jsonl"]
    for split in numbers["episodes"]:
        first, again = (list(load_trajectories(str(tmp_path / name), split)) for name in ("first", "again1"))
        assert [(one.turns, one.final_observation, one.end_reason) for one in again] == [
            (one.turns, one.final_observation, one.end_reason) for one in first
        ]
    (manifest,) = read_manifests(tmp_path / "again1")
    assert manifest["reference"] == {}, "another partner is asked for the data alone"


def test_what_a_build_cannot_record_is_told_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text("")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("words")
    for task, record, message in [
        ("maze", tmp_path / "new", "maze has no partner, so there is nothing to record; leave --record out"),
        ("guess_my_city", tmp_path / "asked.jsonl", "is a file, but several processes record here"),
        ("guess_my_city", tmp_path / "notes", r"holds other files \(a\.txt\)"),
    ]:
        with pytest.raises((ValueError, FileExistsError), match=message):
            build(make_plan(task, episodes={"train": 2}), tmp_path / "out", record=record)
        with pytest.raises((ValueError, FileExistsError), match=message):
            build_part(make_plan(task, episodes={"train": 2}), tmp_path / "out", 1, 1, record=record)
    assert not (tmp_path / "out").exists() and not (tmp_path / "new").exists()


def test_a_total_is_divided_as_the_default_numbers_are() -> None:
    assert split_episodes("maze", 1240) == {"train": 1116, "validation": 124}
    assert split_episodes("maze", 101) == {"train": 91, "validation": 10}
    with pytest.raises(ValueError, match="4 episodes do not give each of train, validation one"):
        split_episodes("maze", 4)


def test_streamed_episodes_survive_a_kill_and_are_not_played_again(tmp_path: Path) -> None:
    """One shard of 120 games is killed in the middle; the journal's games are kept, the bytes come out the same."""
    plan = {"episodes": {"train": 120}, "policy": "random", "env_kwargs": {"opponent": "random", "max_moves": 40}}
    code = (
        "from pathlib import Path\nfrom hub_datasets.build import build\nfrom hub_datasets.plan import make_plan\n"
        f"build(make_plan('chess', **{plan!r}), Path({str(tmp_path / 'killed')!r}), workers=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    journal = tmp_path / "killed/.build/episodes/train-00000.jsonl"
    while not journal.exists() or journal.stat().st_size < 100_000:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = [line.record["index"] for line in read_lines(journal)]
    assert 0 < len(kept) < 120
    with journal.open("ab") as file:
        file.write(b'{"index": 3, torn')
    shard, again = shards(make_plan("chess", **plan))[0], []
    write_shard(make_plan("chess", **plan), shard, tmp_path / "killed", journal.parent, again.append)
    assert again[0] == len(kept) and sum(again) == 120
    whole = prepared(tmp_path / "whole")
    write_shard(make_plan("chess", **plan), shard, whole, whole / ".build", lambda episodes: None)
    path = shard.path("episodes")
    assert (tmp_path / "killed" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()
    assert not journal.exists()


def prepared(folder: Path) -> Path:
    for name in ("episodes", ".build"):
        (folder / name).mkdir(parents=True)
    return folder
