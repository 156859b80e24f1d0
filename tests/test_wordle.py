"""Wordle against recorded episodes of the reference, a slow second implementation, and known scores."""

from __future__ import annotations

import importlib.util
import math
import random
import subprocess
import sys
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from env_servers.play import Start, episode_starts, play, replay
from env_servers.policy import Context, ScriptedPolicy
from env_servers.scores import Summary, summarize
from env_servers.task import Env
from env_servers.tasks import make_env, make_policy
from env_servers.tasks.wordle import MARKS, RULES, TRIES, Lexicon, Wordle, lexicon
from env_servers.trajectory import Trajectory, Turn

ASSETS = resources.files("env_servers.tasks") / "assets"
COMMON = (ASSETS / "wordle_common.txt").read_text().split()


def paper_marks(guess: str, hidden: str) -> str:
    """The paper's rule, one letter at a time."""
    return "".join("g" if a == b else "y" if a in hidden else "b" for a, b in zip(guess, hidden, strict=True))


def standard_marks(guess: str, hidden: str) -> str:
    """The newspaper's rule: take the green letters out of a bag of the hidden word's, then the yellow ones."""
    marks, bag = ["b"] * 5, Counter(hidden)
    for mark in "gy":
        for place, letter in enumerate(guess):
            if marks[place] == "b" and bag[letter] and (mark == "y" or hidden[place] == letter):
                marks[place] = mark
                bag[letter] -= 1
    return "".join(marks)


SLOW = {"paper": paper_marks, "standard": standard_marks}


def word_file(folder: Path, *words: str) -> str:
    path = folder / "words.txt"
    path.write_text("\n".join(words) + "\n")
    return str(path)


def playing(word: str, **options: Any) -> Env:
    """An environment at the start of an episode with that hidden word."""
    env = make_env("wordle", options)
    for seed in range(20_000):
        env.reset(seed)
        if env.info["word"] == word:
            return env
    raise AssertionError(f"no seed draws {word}")


def start_of_each_word(**options: Any) -> list[Start]:
    """One start per hidden word of the list."""
    env, seeds = make_env("wordle", options), dict[str, int]()
    for seed in range(10_000):
        env.reset(seed)
        seeds.setdefault(env.info["word"], seed)
    return [Start("test", index, seed, options) for index, seed in enumerate(seeds.values())]


def trajectories(policy: str, starts: Any) -> list[Trajectory]:
    return [played.trajectory for played in play("wordle", make_policy("wordle", policy), starts)]


def scores(policy: str, episodes: int, **options: Any) -> Summary:
    return summarize(trajectories(policy, episode_starts("wordle", "train", range(episodes), options)))


def word_of(action: str) -> str:
    """The word that an action spells; the invalid ones of these tests spell none of the list."""
    return action.replace(" ", "").lower() if action.isascii() else action


def assert_consistent(trajectory: Trajectory) -> None:
    """Each valid guess would have given all feedback before it, had it been the hidden word."""
    slow = SLOW[trajectory.info["feedback"]]
    guesses = [word_of(turn.action) for turn in trajectory.turns]
    answers = [turn.observation.replace(" ", "") for turn in trajectory.turns[1:]]
    for number, word in enumerate(guesses):
        for guess, answer in zip(guesses[:number], answers, strict=False):
            assert word not in COMMON or guess not in COMMON or slow(guess, word) == answer


# The game ----------------------------------------------------------------------------------------------------------
def test_golden_transcript_of_a_consistent_game(tmp_path: Path) -> None:
    """Reference episode `consistent_policy_seed0`."""
    env = playing("skull", vocab=word_file(tmp_path, "aroma", "gully", "skull"))
    texts = [env.reset(next(seed for seed in range(99) if env.reset(seed) and env.info["word"] == "skull"))]
    for action, reward in [("a r o m a", -1.0), ("g u l l y", -1.0), ("s k u l l\n", 0.0)]:
        step = env.step(action)
        assert step.reward == reward
        texts += [action.strip(), step.observation]
    assert texts == [
        "Wordle:",
        "a r o m a",
        "b b b b b",
        "g u l l y",
        "b y y g b",
        "s k u l l",
        "g g g g g",
    ]
    assert (step.terminated, step.truncated, step.end_reason, step.success) == (True, False, "solved", True)


def test_golden_transcript_with_invalid_guesses_where_ours_takes_capitals(tmp_path: Path) -> None:
    """Reference episode `invalid_guesses_bad_reward_-1`, but for the last guess, which the reference calls invalid."""
    env = playing("rajah", vocab=word_file(tmp_path, "rajah", "shire"))
    expected = [
        ("s h i r e\n", "b y b y b", True),
        ("shire\n", "b y b y b", True),
        ("s h i r\n", "", False),
        ("x x x x x\n", "", False),
        ("\n", "", False),
        ("S H I R E\n", "b y b y b", True),
    ]
    steps = [env.step(action) for action, _, _ in expected]
    assert [(step.observation, step.legal) for step in steps] == [tuple(row[1:]) for row in expected]
    assert [step.reward for step in steps] == [-1.0] * 6
    assert [step.done for step in steps] == [False] * 5 + [True]
    last = steps[-1]
    assert (last.terminated, last.truncated, last.end_reason, last.success) == (True, False, "out_of_tries", False)


def test_golden_rewards_of_the_papers_training(tmp_path: Path) -> None:
    """Reference episode `invalid_guesses_bad_reward_-10`: an invalid guess ends the game at the sixth try too."""
    env = playing("humor", vocab=word_file(tmp_path, "humor", "solar"), invalid_reward=-10)
    steps = [env.step(action) for action in ["zzzzz", "s o l a r", "zzzzz", "zzzzz", "zzzzz", "zzzzz"]]
    assert [step.observation for step in steps] == ["", "b y b b g", "", "", "", ""]
    assert [step.reward for step in steps] == [-10.0, -1.0, -10.0, -10.0, -10.0, -10.0]
    assert sum(step.reward for step in steps) == -51.0
    assert (steps[-1].end_reason, steps[-1].legal) == ("out_of_tries", False)


@pytest.mark.parametrize(
    ("guess", "hidden", "marks", "turned_round"),
    [  # the third column is the reference's, the last is by hand where the reference has no recording
        ("speed", "abide", "b b y y y", "b b b y y"),
        ("abbey", "kebab", "y y g y b", "b y g y y"),
        ("erase", "speed", "y b b y y", "y b y y b"),
        ("aaaaa", "abate", "g y g y y", "g b g b b"),
        ("trash", "snare", "b y g y b", "y b g y b"),
        ("solar", "solar", "g g g g g", "g g g g g"),
    ],
)
def test_feedback_by_the_papers_rule(tmp_path: Path, guess: str, hidden: str, marks: str, turned_round: str) -> None:
    vocab = word_file(tmp_path, *dict.fromkeys([guess, hidden]))
    assert playing(hidden, vocab=vocab).step(guess).observation == marks
    assert playing(guess, vocab=vocab).step(hidden).observation == turned_round


@pytest.mark.parametrize(
    ("guess", "hidden", "marks"),
    [
        ("speed", "abide", "bbyby"),  # one e in abide: the first copy only
        ("aaaaa", "abate", "gbgbb"),
        ("error", "order", "ygbyg"),  # both r's are green already
        ("abbey", "kebab", "yygyb"),
        ("geese", "these", "bbggg"),  # green ones first, so that none is left for the first e
    ],
)
def test_feedback_by_the_newspapers_rule(tmp_path: Path, guess: str, hidden: str, marks: str) -> None:
    env = playing(hidden, vocab=word_file(tmp_path, guess, hidden), feedback="standard", spaced=False)
    assert env.step(guess).observation == marks


@pytest.mark.parametrize("rule", RULES)
def test_the_table_agrees_with_a_slow_implementation_for_all_pairs(rule: str) -> None:
    book = lexicon("common", rule)
    for guess, answers in zip(book.words, book.answers, strict=True):
        assert [MARKS[code] for code in answers] == [SLOW[rule](guess, hidden) for hidden in book.words]


@pytest.mark.parametrize(
    ("action", "legal"),
    [
        ("k n o w n", True),
        ("known", True),
        ("KNOWN", True),
        ("K n O w N", True),
        ("  kno wn \t", True),
        ("known\n", True),
        ("", False),
        ("k n o w", False),
        ("knowns", False),
        ("k-n-o-w-n", False),
        ("k\tn\to\tw\tn", False),
        ("known known", False),
        ("known\nknown", False),
        ("zzzzz", False),
        ("\u212anown", False),  # the Kelvin sign, whose lower case is k
        ("\uff4b\uff4e\uff4f\uff57\uff4e", False),  # full-width letters
        ("\u017fhare", False),  # the long s, whose upper case is S
    ],
)
@pytest.mark.parametrize("spaced", [True, False])
def test_the_parser_takes_both_spellings_in_both_modes(action: str, legal: bool, spaced: bool) -> None:
    env = playing("known", spaced=spaced)
    step = env.step(action)
    assert (step.legal, step.success) == (legal, legal)
    assert step.observation == ("" if not legal else "g g g g g" if spaced else "ggggg")


def test_an_invalid_guess_changes_nothing_but_the_number_of_tries() -> None:
    plain, disturbed = playing("house"), playing("house", invalid_reward=0.5)
    assert disturbed.step("no such word") == ("", 0.5, False, False, False, None, False)
    guesses = ["mouse", "horse", "those", "worse", "other"]
    assert [disturbed.step(guess).observation for guess in guesses] == [plain.step(g).observation for g in guesses]
    assert plain.step("house").end_reason == "solved", "the sixth try still counts"
    with pytest.raises(RuntimeError, match="the episode is over"):
        disturbed.step("house")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab": "comon"}, "vocab is 'comon', which is no file; allowed: common, or the path of a file with one"),
        ({"vocab": "."}, "vocab is '.', which is no file"),
        ({"vocab": 400}, "vocab is 400; allowed: common, or the path of a file"),
        ({"feedback": "nyt"}, "feedback is 'nyt'; allowed: paper, standard"),
        ({"spaced": "yes"}, "spaced is 'yes'; allowed: true, false"),
        ({"invalid_reward": math.nan}, "invalid_reward is nan; allowed is any finite number, such as -10"),
        ({"invalid_reward": -math.inf}, "invalid_reward is -inf"),
        ({"invalid_reward": "-10"}, "invalid_reward is '-10'"),
        ({"invalid_reward": True}, "invalid_reward is True"),
        ({"invalid_reward": 10**400}, "invalid_reward is 1000"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"wordle: {message}"):
        make_env("wordle", options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; it must have at least one word of five letters a-z"),
        (b"house\nhouses\n", "line 2 of vocab .* is 'houses'; a line must be one word of five letters a-z"),
        (b"house\n\nmouse\n", "line 2 of vocab .* is ''"),
        (b"House\n", "line 1 of vocab .* is 'House'"),
        ("mañas\n".encode(), "line 1 of vocab .* is 'mañas'"),
        (b"ma\xf1as\n", "line 1 of vocab .* is 'ma.as'"),
        (b"house\nmouse\nhouse\n", "line 3 of vocab .* is 'house', as is line 1; a word may stand there once"),
    ],
)
def test_a_bad_word_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        make_env("wordle", {"vocab": str(path)})


def test_every_word_is_drawn_about_as_often() -> None:
    env, counts = make_env("wordle"), Counter[str]()
    for seed in range(422 * 50):
        env.reset(seed)
        counts[env.info["word"]] += 1
    assert sorted(counts) == COMMON
    statistic = sum((count - 50) ** 2 / 50 for count in counts.values())
    assert abs(statistic - 421) < 4 * math.sqrt(2 * 421), "chi-square with 421 degrees of freedom"


def test_a_person_sees_the_guesses_and_no_secret() -> None:
    env = playing("women")
    for action in ["cross", "nonsense", "TOKEN"]:
        env.step(action)
    assert env.draw().splitlines() == [
        "1  C R O S S",
        "   b b y b b",
        "2  (not in the list)",
        "3  T O K E N",
        "   b g b g g",
        "4  . . . . .",
        "5  . . . . .",
        "6  . . . . .",
    ]


def test_every_action_fits_its_tokens_however_it_is_cut() -> None:
    """No tokenizer that works on bytes needs more than one token for each."""
    assert max(len(f"{text}\n") for text in lexicon("common", "paper").texts[True]) <= Wordle.spec.max_action_tokens


def test_importing_the_task_reads_and_computes_nothing() -> None:
    code = "import env_servers.tasks.wordle as w; print(w.lexicon.cache_info().currsize)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"


# The list ----------------------------------------------------------------------------------------------------------
def test_the_bundled_list() -> None:
    assert len(COMMON) == 422
    assert sorted(set(COMMON)) == COMMON
    assert all(len(word) == 5 and set(word) <= set("abcdefghijklmnopqrstuvwxyz") for word in COMMON)
    assert {"house", "color", "speed", "press"} <= set(COMMON)
    assert not {"games", "flies", "acted", "tried", "colour", "paris"} & set(COMMON)
    notice = (ASSETS / "README.md").read_text()
    assert "Copyright 2000-2018 by Kevin Atkinson" in notice
    assert "Permission to use, copy, modify, distribute and sell these word" in notice


def test_the_script_that_made_the_list(tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location("make_wordle_common", str(ASSETS / "make_wordle_common.py"))
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    (tmp_path / "english-words.10").write_text(
        "fly\nflies\ngame\ngames\nbox\nboxes\nact\nacted\nbase\nbased\ntry\ntried\nspeed\nglass\nhouse\ncan't\nhouses\n"
    )
    (tmp_path / "american-words.10").write_bytes(b"color\ncaf\xe9s\nHenry\n")
    assert script.common_words(tmp_path) == ["color", "glass", "house", "speed"]


# The policies ------------------------------------------------------------------------------------------------------
def test_near_optimal_scores_exactly() -> None:
    """Once over every hidden word: 1215 guesses, so a mean return of 1 - 1215/422."""
    starts = start_of_each_word()
    assert len(starts) == 422
    played = trajectories("near_optimal", starts)
    assert sum(t.num_turns for t in played) == 1215 == lexicon("common", "paper").plan(range(422))[0]
    assert summarize(played).mean_return == -793 / 422
    assert all(t.success for t in played)


def test_the_plan_of_few_words_is_the_best_one_by_trying_everything() -> None:
    """Against an exhaustive search: fewest guesses in total for all sets of four words from eight."""
    words = ("catch", "match", "patch", "watch", "cheap", "teach", "peace", "might")

    def fewest(left: frozenset[str]) -> int:
        if len(left) == 1:
            return 1
        totals = []
        for guess in words:
            groups: dict[str, set[str]] = {}
            for word in left:
                groups.setdefault(paper_marks(guess, word), set()).add(word)
            if len(groups) > 1:
                totals.append(len(left) + sum(fewest(frozenset(g)) for m, g in groups.items() if m != "ggggg"))
        return min(totals)

    book = Lexicon(words, "paper")
    rng = random.Random(0)
    for _ in range(40):
        chosen = sorted(rng.sample(range(8), 4))
        assert book.plan(chosen)[0] == fewest(frozenset(words[number] for number in chosen))


@pytest.mark.parametrize(
    ("policy", "episodes", "mean_return", "length", "success"),
    [  # measured over 100,000 episodes by benchmarks/wordle_generation.py --statistics
        ("random", 2000, -5.953, 5.966, 0.014),
        ("behavior", 6000, -4.096, 4.794, 0.698),
        ("consistent", 4000, -2.347, 3.344, 0.998),
    ],
)
def test_policies_score_as_measured(
    policy: str, episodes: int, mean_return: float, length: float, success: float
) -> None:
    summary = scores(policy, episodes, invalid_reward=-10)
    root = math.sqrt(episodes)
    assert abs(summary.mean_return - mean_return) < 4 * summary.std_return / root
    assert abs(summary.mean_length - length) < 4 * summary.std_length / root
    assert abs(summary.success_rate - success) < 4 * math.sqrt(success * (1 - success)) / root
    assert summary.invalid_rate == 0.0


def test_a_random_guess_wins_as_often_as_by_counting() -> None:
    """Six guesses of 422 words, drawn with replacement: 1 - (421/422)^6."""
    summary = scores("random", 4000)
    exact = 1 - (421 / 422) ** 6
    assert round(exact, 3) == 0.014
    assert abs(summary.success_rate - exact) < 4 * math.sqrt(exact * (1 - exact) / 4000)


def test_behavior_mixes_in_the_stated_shares() -> None:
    """Where one word is left, it is guessed with probability 0.33 + 0.67/422."""
    env = playing("women")
    answers = [env.step(guess).observation for guess in ("cross", "token", "money")]
    turns = [Turn("Wordle:", "c r o s s", -1.0), Turn(answers[0], "t o k e n", -1.0), Turn(answers[1], "money", -1.0)]
    fitting = [w for w in COMMON if all(
        paper_marks(turn.action.replace(" ", ""), w) == answer.replace(" ", "")
        for turn, answer in zip(turns, answers, strict=True)
    )]  # fmt: skip
    assert fitting == ["women"]
    context = Context(Wordle.spec, turns, answers[2], random.Random(1), env.info)
    guesses = Counter(action.text for action in make_policy("wordle", "behavior").act([context] * 200_000))
    assert guesses["w o m e n"] / 200_000 == pytest.approx(0.33 + 0.67 / 422, abs=4 * math.sqrt(0.33 * 0.67 / 200_000))
    assert len(guesses) == 422


@pytest.mark.parametrize("options", [{}, {"feedback": "standard"}, {"spaced": False, "feedback": "standard"}])
def test_consistent_guesses_never_contradict_the_feedback(options: dict[str, Any]) -> None:
    for trajectory in trajectories("consistent", episode_starts("wordle", "validation", range(300), options)):
        assert_consistent(trajectory)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("policy", list(Wordle.policies))
def test_policies_follow_the_options(tmp_path: Path, policy: str, spaced: bool, rule: str) -> None:
    words = random.Random(3).sample(["aaaaa", "babab", "zzzzz", *COMMON], 60)
    options = {"vocab": word_file(tmp_path, *words), "spaced": spaced, "feedback": rule}
    for trajectory in trajectories(policy, episode_starts("wordle", "train", range(40), options)):
        assert trajectory.num_invalid == 0
        assert trajectory.info == {"word": trajectory.info["word"], **options}
        for turn in trajectory.turns:
            word = word_of(turn.action)
            assert word in words
            assert turn.action == (" ".join(word) if spaced else word)
        marks = SLOW[rule](word, trajectory.info["word"])
        assert trajectory.final_observation == (" ".join(marks) if spaced else marks)
        assert replay(trajectory) is None


@pytest.mark.parametrize("name", ["behavior", "consistent", "near_optimal"])
@pytest.mark.parametrize("spaced", [True, False])
def test_policies_go_on_after_other_peoples_invalid_guesses(name: str, spaced: bool) -> None:
    policy = make_policy("wordle", name)

    def choose(context: Context) -> str:
        if len(context.history) in (0, 2):
            return ["", "hopla", "x" * 50, "\u212anown"][context.rng.randrange(4)]
        return policy.act([context])[0].text.upper()

    starts = episode_starts("wordle", "test", range(100), {"spaced": spaced})
    for played in play("wordle", ScriptedPolicy("disturbed", choose), starts):
        trajectory = played.trajectory
        assert trajectory.num_invalid == min(2, sum(number in (0, 2) for number in range(trajectory.num_turns)))
        assert trajectory.num_turns <= TRIES
        if name == "consistent":
            assert_consistent(trajectory)
        if name == "near_optimal":
            assert trajectory.success, "two tries are lost, and it never needs more than four"


def test_policies_keep_no_state_between_episodes() -> None:
    """The same episode is played alike alone, among others, and after others."""
    starts = list(episode_starts("wordle", "train", range(40)))
    for name in Wordle.policies:
        together = {t.index: t for t in trajectories(name, starts)}
        assert trajectories(name, [starts[7]]) == [together[7]]
