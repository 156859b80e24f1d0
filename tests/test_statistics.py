"""Intervals, tests and aggregates: against enumeration, against scipy, and against the truth in simulated runs."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from env_servers.cli import app
from env_servers.scores import (
    Interval,
    clustered_interval,
    mcnemar,
    mean_interval,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
    worst_mean,
)
from eval_harness.comparison import aggregate, compare, method_of, pass_rates, repeats
from eval_harness.log import read_episodes
from eval_harness.report import to_json, to_markdown
from eval_harness.run import run
from eval_harness.score import ScoredRun, score, to_record
from eval_harness.sections import statistics_sections
from eval_harness.statistics import (
    bootstrap_interval,
    iqm,
    optimality_gap,
    performance_profile,
    sign_flip,
    stratified_bootstrap,
)
from hub_datasets.journal import encode_line, read_lines

RUNS = 1_000


def covered(intervals: Sequence[Interval], truth: float) -> float:
    """The share of the intervals that hold the truth."""
    return sum(low <= truth <= high for low, high in intervals) / len(intervals)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ScoredRun]:
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for name, seed, count in (("behavior", 0, 64), ("behavior", 1, 64), ("optimal", 0, 64), ("optimal", 1, 50)):
        output = folder / f"{name}-{seed}"
        found[output.name] = run(
            "maze", f"scripted:{name}", seed=seed, episodes=count, output=output, progress=False
        ).scored
    return found


# Values ------------------------------------------------------------------------------------------------------------
def test_bootstrap_is_that_of_all_resamples() -> None:
    """At 50 % and n = 3 the expanded level is Phi(-sqrt(3/2) * 0.8165) = Phi(-1): in 27 resamples, the 5th."""
    values = (0.0, 1.0, 5.0)
    means = sorted(sum(sample) / 3 for sample in itertools.product(values, repeat=3))
    assert math.sqrt(1.5) * stats.t.ppf(0.75, 2) == pytest.approx(1)
    # 0 1 1 1 2 2 2 3 ... in thirds: 0.1587 * 27 = 4.3, the 5th lowest, and 22.7, the 23rd.
    low, high = bootstrap_interval(values, random.Random(0), confidence=0.5)
    assert (low, high) == pytest.approx((means[4], means[22]))
    clustered = bootstrap_interval([0, 0, 0.5, 1.5, 5, 5], random.Random(0), clusters="aabbcc", confidence=0.5)
    assert clustered == pytest.approx((low, high))


def test_bootstrap_draws_clusters_of_any_size() -> None:
    """Two clusters of 1 and 3 values give means 4 (twice the first), 1 (both) and 0 (twice the second)."""
    low, high = bootstrap_interval([4, 0, 0, 0], random.Random(1), clusters=[1, 2, 2, 2])
    assert (low, high) == (0, 4)
    assert bootstrap_interval([4, 0, 0, 0], random.Random(1), clusters=[1, 2, 2, 2]) == (low, high)
    assert all(map(math.isnan, bootstrap_interval([1.0, 2.0], random.Random(0), clusters=[1, 1])))
    with pytest.raises(ValueError, match="2 values and 1 clusters"):
        bootstrap_interval([1.0, 2.0], random.Random(0), clusters=[1])


def test_clustered_interval() -> None:
    """Clusters {1, 3} and {5, 7}: mean 4, residual sums -4 and 4, error sqrt(2 * 32) / 4 = 2, t(1) = 12.706."""
    assert clustered_interval([1, 3, 5, 7], "aabb") == pytest.approx((4 - 25.4124, 4 + 25.4124), abs=1e-3)
    values = [0.3, 2.0, -1.0, 4.0]
    assert clustered_interval(values, range(4)) == pytest.approx(mean_interval(values))
    assert all(map(math.isnan, clustered_interval(values, "aaaa")))
    with pytest.raises(ValueError, match="cluster of each"):
        clustered_interval(values, "ab")


def test_sign_flips_of_four_pairs() -> None:
    """Of 16 sums of +-1 +-2 +-3 +-4, those as far from 0 as 1 + 2 + 3 + 4: two. Fewer flips
    for clusters: 3 and 7 have four sums. All zero, or zero but for rounding: p is 1."""
    assert sign_flip([1, 2, 3, 4], random.Random(0)) == 2 / 16
    sums = [
        sum(s * v for s, v in zip(signs, (1, 2, 3, 4), strict=True)) for signs in itertools.product((1, -1), repeat=4)
    ]
    assert sign_flip([1, 2, -3, 4], random.Random(0)) == sum(abs(total) >= 4 for total in sums) / 16
    assert sign_flip([1, 2, 3, 4], random.Random(0), clusters="aabb") == 2 / 4
    assert sign_flip([0, 0, 0], random.Random(0)) == 1
    assert sign_flip([0.1, 0.2, -0.3], random.Random(0)) == 1  # a sum of 5e-17 is 0
    drawn = sign_flip(list(range(1, 9)), random.Random(0), resamples=255)
    assert 1 / 256 <= drawn < 0.05  # exactly 2 / 256


def test_repeats_by_enumeration() -> None:
    for attempts, successes, k in ((5, 2, 1), (5, 2, 3), (5, 5, 2), (4, 0, 4), (6, 3, 4)):
        subsets = list(itertools.combinations([True] * successes + [False] * (attempts - successes), k))
        assert pass_at_k(attempts, successes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
        assert pass_hat_k(attempts, successes, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))
    with pytest.raises(ValueError, match="k is 6"):
        pass_at_k(5, 2, 6)
    with pytest.raises(ValueError, match="6 successes in 5"):
        pass_hat_k(5, 6, 2)


def test_mcnemar_is_the_binomial_test() -> None:
    for first, second in ((0, 9), (3, 5), (4, 4), (0, 0), (700, 800)):
        expected = stats.binomtest(first, first + second).pvalue if first + second else 1
        assert mcnemar(first, second) == pytest.approx(expected)


def test_worst_mean() -> None:
    assert worst_mean(-10, 3, 1, -50) == -20


def test_aggregates_by_hand() -> None:
    """Scores 0 to 140 in steps of 20: IQM is the mean of 40, 60, 80, 100; above 100 nothing is made up for."""
    matrix = np.array([[0, 20, 140, 120], [60, 40, 80, 100]])
    assert iqm(matrix) == 70 == stats.trim_mean(matrix, 0.25, axis=None)
    assert optimality_gap(matrix) == (100 + 80 + 60 + 40 + 20) / 8
    assert performance_profile(matrix, [-1, 0, 100, 140]).tolist() == [1, 7 / 8, 2 / 8, 0]
    stacked = np.stack([matrix, matrix + 10])
    assert iqm(stacked).tolist() == [70, 80] and performance_profile(stacked, [0, 100]).shape == (2, 2)


def test_stratified_bootstrap_is_that_of_all_resamples() -> None:
    """Two runs of two tasks: each task has its own 4 resamples, so there are 16 matrices."""
    matrix = np.array([[0.0, 10.0], [4.0, 20.0]])
    means = [
        (sum(a) + sum(b)) / 4
        for a in itertools.product((0, 4), repeat=2)
        for b in itertools.product((10, 20), repeat=2)
    ]
    ends = stratified_bootstrap(matrix, lambda m: m.mean(axis=(-2, -1)), random.Random(0), confidence=0.8)
    assert ends.tolist() == np.quantile(means, (0.1, 0.9), method="inverted_cdf").tolist()
    assert np.isnan(stratified_bootstrap(matrix[:1], iqm, random.Random(0))).all()
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        stratified_bootstrap([1, 2], iqm, random.Random(0))


# Coverage ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_intervals_of_independent_returns_cover(shape: str) -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(3, 2, (RUNS, 64)) if shape == "normal" else draw.gamma(2, 1.5, (RUNS, 64))
    ends = [mean_interval(row) for row in values.tolist()]
    assert 0.93 <= covered(ends, 3) <= 0.97
    rng = random.Random(0)
    ends = [bootstrap_interval(row, rng, resamples=800) for row in values.tolist()]
    assert 0.93 <= covered(ends, 3) <= 0.97


def test_intervals_of_clustered_returns_cover_where_the_plain_one_does_not() -> None:
    """25 starts with an effect of their own, 8 episodes from each: as Maze has them, with fewer episodes."""
    draw, clusters = np.random.default_rng(2), [number // 8 for number in range(200)]
    values = (draw.normal(0, 1, (RUNS, 25, 1)) + draw.normal(0, 1, (RUNS, 25, 8))).reshape(RUNS, 200)
    rows, rng = values.tolist(), random.Random(0)
    assert 0.93 <= covered([clustered_interval(row, clusters) for row in rows], 0) <= 0.97
    ends = [bootstrap_interval(row, rng, clusters=clusters, resamples=800) for row in rows]
    assert 0.93 <= covered(ends, 0) <= 0.97
    assert covered([mean_interval(row) for row in rows], 0) < 0.75


def test_wilson_covers_at_a_small_share() -> None:
    """1,000 runs of 200 episodes; and exactly, by the binomial distribution, for several numbers of episodes. The
    coverage steps with the number of episodes, as successes are whole: at 64 it is 96.7 %, at 100 93.6 %."""
    for episodes in (64, 100, 200, 800):
        ends = np.array([wilson_interval(number, episodes) for number in range(episodes + 1)])
        chances = stats.binom.pmf(range(episodes + 1), episodes, 0.1)
        assert 0.93 <= chances[(ends[:, 0] <= 0.1) & (ends[:, 1] >= 0.1)].sum() <= 0.97
    successes = np.random.default_rng(3).binomial(200, 0.1, RUNS)
    assert 0.93 <= covered([wilson_interval(int(number), 200) for number in successes], 0.1) <= 0.97


def test_the_paired_test_and_interval_keep_their_level() -> None:
    """Skewed returns of two equal policies on common episodes: an effect of the episode in both cancels."""
    draw, rng = np.random.default_rng(4), random.Random(0)
    episode = draw.gamma(2, 5, (RUNS, 64))
    differences = ((episode + draw.gamma(2, 1, (RUNS, 64))) - (episode + draw.gamma(2, 1, (RUNS, 64)))).tolist()
    assert 0.93 <= covered([mean_interval(row) for row in differences], 0) <= 0.97
    p_values = np.array([sign_flip(row, rng, resamples=800) for row in differences])
    assert 0.03 <= np.mean(p_values <= 0.05) <= 0.07


# Runs --------------------------------------------------------------------------------------------------------------
def test_the_better_policy_is_found(runs: dict[str, ScoredRun]) -> None:
    first, second = runs["behavior-0"], runs["optimal-0"]
    found = compare(first.folder, second.folder)
    assert (found.pairs, found.starts) == (64, 25)
    assert found.difference == pytest.approx(first.summary.mean_return - second.summary.mean_return)
    returns = [[e.trajectory.episode_return for e in read_episodes(r.folder)] for r in (first, second)]
    differences = np.array(returns[0]) - np.array(returns[1])
    assert (found.wins, found.ties, found.losses) == tuple(
        int(np.sum(np.sign(differences) == sign)) for sign in (1, 0, -1)
    )
    assert found.improvement == pytest.approx((found.wins + found.ties / 2) / 64)
    assert found.t_interval.high < 0 and found.bootstrap.high < 0 and found.p_value < 0.001
    assert found.episode_interval == pytest.approx(
        stats.t.interval(0.95, 63, differences.mean(), stats.sem(differences))
    )
    back = compare(second.folder, first.folder)
    assert back.difference == -found.difference and back.improvement == pytest.approx(1 - found.improvement)
    same = compare(first.folder, first.folder)
    assert (same.difference, same.p_value, same.improvement) == (0, 1, 0.5)
    assert "same model and seed" in same.notes[0]


def test_other_numbers_of_episodes_are_paired_where_they_meet(runs: dict[str, ScoredRun]) -> None:
    found = compare(runs["behavior-0"].folder, runs["optimal-1"].folder)
    assert (found.pairs, found.unpaired) == (50, (14, 0))
    assert "different starts (64 and 50 episodes)" in found.notes[0]


def test_what_cannot_be_paired_is_refused(runs: dict[str, ScoredRun], tmp_path: Path) -> None:
    other = run("maze_po", "scripted:random", episodes=2, output=tmp_path / "po", progress=False).folder
    with pytest.raises(ValueError, match="differ in task: 'maze'"):
        compare(runs["behavior-0"].folder, other)
    source, edited = runs["optimal-0"].folder, tmp_path / "edited"
    edited.mkdir()
    (edited / "header.json").write_bytes((source / "header.json").read_bytes())
    records = [line.record for line in read_lines(source / "episodes.jsonl")]
    for record in records:
        record["seed"] += 1
    (edited / "episodes.jsonl").write_bytes(b"".join(encode_line(record) for record in records))
    with pytest.raises(ValueError, match="episode test 0 is another one"):
        compare(runs["behavior-0"].folder, edited)
    (edited / "episodes.jsonl").write_bytes(b"")
    with pytest.raises(ValueError, match="no finished episode in common"):
        compare(runs["behavior-0"].folder, edited)


def test_failed_episodes_are_no_losses_and_bound_the_mean(runs: dict[str, ScoredRun], tmp_path: Path) -> None:
    source = runs["optimal-0"].folder
    (tmp_path / "header.json").write_bytes((source / "header.json").read_bytes())
    lines = (source / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "episodes.jsonl").write_bytes(b"".join(lines[:60]))
    failures = [{"split": "test", "index": number, "error": "it died"} for number in (60, 61, 2)]  # 2 was played since
    (tmp_path / "failures.jsonl").write_bytes(b"".join(map(encode_line, failures)))
    scored = score(tmp_path)
    assert (scored.summary.episodes, scored.failed) == (60, 2)
    assert scored.worst_return == pytest.approx((60 * scored.summary.mean_return - 2 * 401) / 62)
    assert "| 2 | " in to_markdown([scored]) and "At worst" in to_markdown([scored])
    assert score(source).worst_return is None
    found = compare(source, tmp_path)
    assert (found.pairs, found.ties, found.failed, found.unpaired) == (60, 60, (0, 2), (4, 0))


def test_repeated_starts(runs: dict[str, ScoredRun]) -> None:
    """64 episodes are 2 or 3 from each of 25 starts; another seed doubles that. pass@1 and pass^1 are the mean rate."""
    one, two = runs["behavior-0"], runs["behavior-1"]
    assert one.by_start is not None and one.by_start.starts == 25
    tried: dict[str, list[bool]] = {}
    for each in (one, two):
        for episode in read_episodes(each.folder):
            tried.setdefault(str(episode.trajectory.info["start"]), []).append(episode.trajectory.success)
    rates = pass_rates([one.folder, two.folder])
    assert rates is not None
    assert (rates.starts, rates.attempts, list(rates.all)) == (25, 4, [1, 2, 4])
    assert rates.all[1] == rates.at_least_one[1] == pytest.approx(np.mean([np.mean(t) for t in tried.values()]))
    pairs = [list(itertools.combinations(t, 2)) for t in tried.values()]
    assert rates.all[2] == pytest.approx(np.mean([np.mean([all(p) for p in each]) for each in pairs]))
    assert rates.at_least_one[2] == pytest.approx(np.mean([np.mean([any(p) for p in each]) for each in pairs]))
    assert repeats([one, two, one]) == [("maze", "scripted:behavior", rates)]  # the same run is no other attempt


def test_one_episode_per_start_has_no_repeats(tmp_path: Path) -> None:
    scored = run("maze", "scripted:random", episodes=5, output=tmp_path / "r", progress=False).scored
    assert scored.by_start is None and pass_rates([scored.folder]) is None
    assert aggregate([scored]) is None and statistics_sections([scored]) == []
    assert to_record(scored)["by_start"] is None


def test_aggregate_of_runs(runs: dict[str, ScoredRun]) -> None:
    found = aggregate([*runs.values(), runs["optimal-0"]])
    assert found is not None
    assert [(m.method, m.runs) for m in found.methods] == [("scripted:behavior", 2), ("scripted:optimal", 2)]
    scores = [runs[f"behavior-{seed}"].normalized["lmrl"] for seed in (0, 1)]
    behavior, optimal = found.methods
    assert behavior.iqm.value == pytest.approx(np.mean(scores))
    assert behavior.iqm.interval == pytest.approx((min(scores), max(scores)))
    assert optimal.profile[found.thresholds.index(0)].value == 1
    assert "1 repeated another run's" in found.notes[0]
    record = json.loads(to_json(list(runs.values())))
    assert record["aggregates"]["lmrl"]["methods"][0]["iqm"]["value"] == behavior.iqm.value
    assert record["repeats"][0]["attempts"] == 4
    assert "## Over tasks and runs: score\n" in to_markdown(list(runs.values()))
    uneven = aggregate([runs["behavior-0"], runs["behavior-1"], runs["optimal-0"]])
    assert uneven is not None and [m.runs for m in uneven.methods] == [2, 1]
    assert math.isnan(uneven.methods[1].iqm.interval.low)


def test_scores_above_the_scale_stay(runs: dict[str, ScoredRun]) -> None:
    scored = runs["optimal-0"]
    raised = scored.__class__(**{**vars(scored), "normalized": {"lmrl": 130.0}})
    found = aggregate([raised, runs["optimal-1"]])
    assert found is not None and found.methods[0].mean.value > 110
    assert found.methods[0].profile[found.thresholds.index(100)].value >= 0.5


def test_checkpoints_of_several_seeds_are_one_method(runs: dict[str, ScoredRun]) -> None:
    scored = runs["optimal-0"]

    def named(name: str, **sampling: float) -> str:
        model = {"name": name, "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **sampling}}
        return method_of(scored.__class__(**{**vars(scored), "header": scored.header.__class__(
            **{**vars(scored.header), "model": model})}))  # fmt: skip

    assert named("out/maze/bc-0") == named("out/maze/bc-12/") == "bc" != named("out/maze/filtered_bc-0")
    assert named("me/gpt2-seed1") == "gpt2" and named("me/smol-135") == "smol-135"
    assert named("bc-0", temperature=0.0) == "bc (temperature 0.0)"


def test_the_command(runs: dict[str, ScoredRun], tmp_path: Path) -> None:
    folders = [str(runs[name].folder) for name in ("behavior-0", "optimal-0")]
    told = CliRunner().invoke(app, ["compare", *folders, "--json", str(tmp_path / "c.json")])
    assert told.exit_code == 0, told.output
    words = " ".join(told.output.split())
    assert f"{folders[0]} is worse than {folders[1]}, by" in words and "64 paired episodes" in words
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["difference"] == compare(*folders).difference and len(record["t_interval"]) == 2
    table = CliRunner().invoke(app, ["compare", *folders, "--markdown"])
    assert "| probability of improvement | 0." in table.output
    same = CliRunner().invoke(app, ["compare", folders[0], folders[0]])
    assert "have the same mean return" in " ".join(same.output.split())
    report = CliRunner().invoke(app, ["report", *folders])
    assert report.exit_code == 0 and "pass^k" in report.output
