"""Scores against values by hand and, for the quantiles, scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from env_servers.scores import (
    EpisodeScore,
    Normalisation,
    mean_interval,
    normalize,
    summarize,
    t_quantile,
    wilson_interval,
)


def test_summary_by_hand() -> None:
    episodes = [EpisodeScore(-2.0, True, 2, 0), EpisodeScore(-4.0, False, 3, 1), EpisodeScore(-6.0, False, 5, 2)]
    summary = summarize(episodes)
    assert summary.episodes == 3
    assert summary.mean_return == -4.0
    assert summary.std_return == 2.0
    assert (summary.min_return, summary.max_return) == (-6.0, -2.0)
    assert summary.success_rate == 1 / 3
    assert summary.mean_length == pytest.approx(10 / 3)
    assert summary.invalid_rate == 3 / 10
    half = 4.30265272974946 * 2 / math.sqrt(3)  # t quantile of a table, 2 degrees
    assert summary.return_interval == pytest.approx((-4 - half, -4 + half), abs=1e-6)


@pytest.mark.parametrize("degrees", [1, 2, 5, 24, 99, 799, 5000])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.995])
def test_t_quantile_agrees_with_scipy(degrees: int, probability: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-5)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (3, 17), (500, 1000)])
def test_wilson_agrees_with_scipy(successes: int, trials: int) -> None:
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_one_episode_has_no_interval_and_none_is_an_error() -> None:
    assert all(math.isnan(end) for end in mean_interval([1.0]))
    assert math.isnan(summarize([EpisodeScore(1.0, True, 1, 0)]).std_return)
    with pytest.raises(ValueError, match="no episodes"):
        summarize([])


def test_normalisation_is_the_papers_and_never_clipped() -> None:
    """Table 5 on Table 4's raw returns: -37.7 is 79.7 and -6.97 is 99.9."""
    maze = Normalisation(-101, -83, -6.84, "")
    assert round(normalize(-37.7, maze), 1) == 79.7
    assert round(normalize(-6.97, maze), 1) == 99.9
    assert normalize(-92, maze) == 25
    assert normalize(-401, maze) == pytest.approx(-833.33, abs=0.01)
    assert normalize(0, maze) > 100
