"""Speed of chess: the rules against plain python-chess, and what `play` adds to an engine's think time.

    python benchmarks/chess_moves.py --games 200 --engine-games 4

Rules: random moves on both sides. The baseline is python-chess alone: draw a legal move, make it, ask whether the game
is over. `play` does that, reads and writes the spaced texts, and records everything. Both sides' moves are counted.

Engine: the opponent thinks 100 ms (the paper's setting) or searches 5 plies (the default). The baseline is the same
through python-chess's own `SimpleEngine`, in a bare loop. What `play` adds per answer is the time beyond the think
time, White's random move included. Times are the best of `--repeats` rounds, in turns.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import chess
import chess.engine

from env_servers.engines import find_engine
from env_servers.play import episode_starts, play
from env_servers.tasks import make_policy


def plain_rules(games: int) -> int:
    """The baseline of the rules; returns the number of moves of both sides."""
    rng, moves = random.Random(0), 0
    for _ in range(games):
        board = chess.Board()
        while not board.is_game_over() and board.fullmove_number <= 400:
            board.push(rng.choice(list(board.legal_moves)))
            moves += 1
    return moves


def with_play(games: int, slots: int = 16, **options: object) -> int:
    """The same through `play`; returns the number of moves of both sides."""
    starts = episode_starts("chess", "train", range(games), options)
    episodes = (played.trajectory for played in play("chess", make_policy("chess", "random"), starts, slots=slots))
    return sum(episode.num_turns + len(episode.info["opponent_moves"]) for episode in episodes)


def plain_engine(games: int, limit: chess.engine.Limit) -> int:
    """The baseline of the engine; returns the number of moves of both sides."""
    rng, moves = random.Random(0), 0
    with chess.engine.SimpleEngine.popen_uci(find_engine("stockfish")) as engine:
        engine.configure({"UCI_LimitStrength": True, "UCI_Elo": 1350})
        for _ in range(games):
            board = chess.Board()
            while not board.is_game_over():
                white = board.turn == chess.WHITE
                move = rng.choice(list(board.legal_moves)) if white else engine.play(board, limit).move
                assert move is not None
                board.push(move)
                moves += 1
    return moves


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--engine-games", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    games, few = arguments.games, arguments.engine_games
    rules = {
        "python-chess alone (baseline)": lambda: plain_rules(games),
        "play, random opponent": lambda: with_play(games, opponent="random"),
    }
    print(f"random moves on both sides, {games} games, best of {arguments.repeats}")
    print(f"{'':32}{'moves/s':>10}{'ratio':>8}")
    baseline = 0.0
    for name, (moves, seconds) in measure(rules, arguments.repeats).items():
        baseline = baseline or moves / seconds
        print(f"{name:32}{moves / seconds:>10,.0f}{moves / seconds / baseline:>8.2f}")
    engine = {
        "SimpleEngine, 100 ms (baseline)": lambda: plain_engine(few, chess.engine.Limit(time=0.1)),
        "play, 16 slots, 100 ms": lambda: with_play(few, movetime_ms=100),
        "SimpleEngine, depth 5 (baseline)": lambda: plain_engine(10 * few, chess.engine.Limit(depth=5)),
        "play, 16 slots, depth 5": lambda: with_play(10 * few),
    }
    print(f"\nrandom White against Stockfish, {few} games (depth 5: {10 * few}), best of {arguments.repeats}")
    print(f"{'':34}{'ms per answer':>14}{'ratio':>8}{'ms beyond 100':>15}")
    for number, (name, (moves, seconds)) in enumerate(measure(engine, arguments.repeats).items()):
        per_answer = 1000 * seconds / (moves / 2)
        baseline = per_answer if number % 2 == 0 else baseline
        beyond = f"{per_answer - 100:>15.2f}" if "100 ms" in name else ""
        print(f"{name:34}{per_answer:>14.2f}{per_answer / baseline:>8.2f}{beyond}")


def measure(runs: dict[str, Callable[[], int]], repeats: int) -> dict[str, tuple[int, float]]:
    """Each run's moves and seconds in its best round."""
    best: dict[str, tuple[int, float]] = {}
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.perf_counter()
            moves = run()
            seconds = time.perf_counter() - begin
            if name not in best or moves / seconds > best[name][0] / best[name][1]:
                best[name] = moves, seconds
    return best


if __name__ == "__main__":
    main()
