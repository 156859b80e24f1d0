"""Speed of Wordle's data generation against a plain implementation in the way of the paper's code, in one run.

    python benchmarks/wordle_generation.py --episodes 5000
    python benchmarks/wordle_generation.py --vocab my_words.txt --episodes 5000 --repeats 5
    python benchmarks/wordle_generation.py --statistics --vocab my_words.txt

The baseline is written here: what is known of each letter at each place, and a hidden word that is drawn anew, from
all words that agree with it, at every guess. So it looks at every word of the list, letter by letter, once before a
guess (the policy, which reads the texts again) and once after it (the game). The second row spares the policy's look
where the guess is a random one. Both play the same mixture of guesses and keep the texts and rewards; they are slow,
so they play one episode for every 50. Every row runs in one process, so a rate is a core's. Times are the best of
`--repeats` rounds, which take turns so that a slow moment of the machine hits all of them.

`--statistics` prints what the scripted policies score instead: drawn ones over `--episodes` (default 100,000),
`near_optimal`, which draws nothing, once over every hidden word.
"""

from __future__ import annotations

import argparse
import functools
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from env_servers.play import episode_starts, play
from env_servers.policy import Context
from env_servers.scores import EpisodeScore, Summary, summarize
from env_servers.tasks import make_policy
from env_servers.tasks.wordle import RANDOM_SHARE, TRIES, Wordle, lexicon
from env_servers.trajectory import Turn
from hub_datasets.build import build
from hub_datasets.plan import make_plan

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
OPEN, NOT_HERE, HERE = range(3)
# For each letter, what is known of it at each of the five places. A letter that is nowhere is not in the word.
Knowledge = dict[str, list[int]]


def nothing_known() -> Knowledge:
    """The knowledge before the first guess."""
    return {letter: [OPEN] * 5 for letter in ALPHABET}


def learn(known: Knowledge, guess: str, marks: str) -> None:
    """Add what a guess and its feedback tell."""
    for place, (letter, mark) in enumerate(zip(guess, marks, strict=True)):
        if mark == "b":
            known[letter] = [NOT_HERE] * 5
        else:
            known[letter][place] = HERE if mark == "g" else NOT_HERE


def agrees(word: str, known: Knowledge) -> bool:
    """Whether a word agrees with all that is known."""
    for letter, places in known.items():
        if all(place == OPEN for place in places):
            continue
        if all(place == NOT_HERE for place in places):
            if letter in word:
                return False
            continue
        if letter not in word:
            return False
        for at, place in zip(word, places, strict=True):
            if (place == HERE and at != letter) or (place == NOT_HERE and at == letter):
                return False
    return True


def mark(guess: str, hidden: str) -> str:
    """The feedback by the paper's rule."""
    return "".join(
        "g" if letter == right else "y" if letter in hidden else "b"
        for letter, right in zip(guess, hidden, strict=True)
    )


def plain_episode(words: list[str], rng: random.Random, thrifty: bool) -> list[Turn]:
    """One episode of the behaviour mixture, without any table; `thrifty` looks only where a guess needs it."""
    known, turns, observation = nothing_known(), list[Turn](), "Wordle:"
    possible = words
    while len(turns) < TRIES:
        consistent = rng.random() >= RANDOM_SHARE
        choices = words
        if consistent or not thrifty:
            read = nothing_known()
            for turn, answer in zip(turns, [*[turn.observation for turn in turns], observation][1:], strict=True):
                learn(read, turn.action.replace(" ", ""), answer.replace(" ", ""))
            choices = [word for word in words if agrees(word, read)]
        guess = rng.choice(choices if consistent else words)
        marks = mark(guess, rng.choice(possible))
        turns.append(Turn(observation, " ".join(guess), 0.0 if marks == "ggggg" else -1.0))
        if marks == "ggggg":
            break
        learn(known, guess, marks)
        possible = [word for word in words if agrees(word, known)]
        observation = " ".join(marks)
    return turns


def plain(vocab: str, episodes: int, thrifty: bool = False) -> None:
    """The baseline."""
    words = list(lexicon(vocab, "paper").words)
    for index in range(episodes):
        plain_episode(words, random.Random(index), thrifty)


def with_play(vocab: str, episodes: int) -> None:
    """`play`, with everything it records."""
    starts = episode_starts("wordle", "train", range(episodes), {"vocab": vocab})
    for _ in play("wordle", make_policy("wordle", "behavior"), starts):
        pass


def with_build(vocab: str, episodes: int) -> None:
    """A whole build in this process: play, rows, Parquet, statistics, card."""
    with tempfile.TemporaryDirectory() as folder:
        build(make_plan("wordle", episodes={"train": episodes}, env_kwargs={"vocab": vocab}), Path(folder), workers=1)


def speed(vocab: str, episodes: int, repeats: int) -> None:
    """Measure and print the table of rates."""
    runs: dict[str, tuple[Callable[[str, int], None], int]] = {
        "plain (baseline)": (plain, max(1, episodes // 50)),
        "plain, thrifty": (functools.partial(plain, thrifty=True), max(1, episodes // 50)),
        "play, behavior": (with_play, episodes),
        "build, 1 process": (with_build, episodes),
    }
    rates = dict.fromkeys(runs, 0.0)
    with_play(vocab, 1)  # the table of feedbacks is made once per process
    for _ in range(repeats):
        for name, (run, count) in runs.items():
            begin = time.perf_counter()
            run(vocab, count)
            rates[name] = max(rates[name], count / (time.perf_counter() - begin))
    print(f"wordle, vocab {vocab}, {len(lexicon(vocab, 'paper').words)} words, best of {repeats}")
    print(f"{'':20}{'episodes':>10}{'episodes/s':>12}{'to baseline':>13}{'to thrifty':>12}")
    for name, (_, count) in runs.items():
        ratios = [rates[name] / rates[other] for other in ("plain (baseline)", "plain, thrifty")]
        print(f"{name:20}{count:>10,}{rates[name]:>12,.1f}{ratios[0]:>13.1f}{ratios[1]:>12.1f}")


def every_word(vocab: str, policy_name: str) -> Summary:
    """What a policy that draws nothing scores, once over every hidden word."""
    policy, env, words = make_policy("wordle", policy_name), Wordle(vocab=vocab), lexicon(vocab, "paper").words
    seeds, scores, seed = set[str](), list[EpisodeScore](), 0
    while len(seeds) < len(words):
        observation, turns, done = env.reset(seed), list[Turn](), False
        seed += 1
        if env.info["word"] in seeds:
            continue
        seeds.add(env.info["word"])
        while not done:
            context = Context(env.spec, turns, observation, random.Random(0), env.info)
            action = policy.act([context])[0].text
            step = env.step(action)
            turns.append(Turn(observation, action, step.reward))
            observation, done = step.observation, step.done
        scores.append(EpisodeScore(sum(turn.reward for turn in turns), step.success, len(turns), 0))
    return summarize(scores)


def statistics(vocab: str, episodes: int) -> None:
    """Print the table of policies."""
    print(f"wordle, vocab {vocab}, {len(lexicon(vocab, 'paper').words)} words")
    print(f"{'policy':14}{'episodes':>10}{'mean return':>13}{'std':>7}{'length':>8}{'std':>7}{'success':>9}")
    for name in Wordle.policies:
        if name == "near_optimal":
            score = every_word(vocab, name)
        else:
            starts = episode_starts("wordle", "train", range(episodes), {"vocab": vocab})
            score = summarize(played.trajectory for played in play("wordle", make_policy("wordle", name), starts))
        print(
            f"{name:14}{score.episodes:>10,}{score.mean_return:>13.3f}{score.std_return:>7.2f}"
            f"{score.mean_length:>8.3f}{score.std_length:>7.2f}{score.success_rate:>9.3f}"
        )


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", default="common", help="a bundled list or a file with one word per line")
    parser.add_argument("--episodes", type=int, help="default 5,000, with --statistics 100,000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--statistics", action="store_true", help="score the policies instead of timing them")
    arguments = parser.parse_args()
    if arguments.statistics:
        statistics(arguments.vocab, arguments.episodes or 100_000)
    else:
        speed(arguments.vocab, arguments.episodes or 5_000, arguments.repeats)


if __name__ == "__main__":
    main()
