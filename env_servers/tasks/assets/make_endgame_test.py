"""Writes the test list of the chess endgames, chess_endgames_test.csv, beside this file.

Run by hand, from the top of the repository with the package installed; it takes some seconds and needs no network:

    python env_servers/tasks/assets/make_endgame_test.py

The paper (LMRL-Gym, arXiv 2311.18232) tests on 645 positions that are long to mate and calls mates in 1 to 4 moves
trivial. Its list is the output of an engine. Ours is exact and made by this rule:

- 645 positions, 162 of kQK and 161 of each of kRK, kQRK and kRRK; White to move, valid, White wins.
- White mates in 5 or more of its moves (9 or more plies) with the best play of both sides.
- No two are equal, turned or mirrored.
- Within a set each length of mate gets the same number of positions. Lengths with fewer positions give all they have
  and the others share the rest; what does not divide goes one by one to the rarest lengths first, and among lengths
  with enough positions to the longest first.
- Inside a length the positions are drawn uniformly, with a generator seeded by the set's name.
- The order in the file takes the sets in turn, shuffled within each set, so that the first positions are balanced.

This gives, as length of mate in White's moves: positions,

    kQK   5: 32, 6: 32, 7: 32, 8: 32, 9: 33, 10: 1 (the only one there is)
    kRK   5 to 11: 13 each, 12 to 16: 14 each
    kQRK  5: 155, 6: 6 (all there are; no mate is longer)
    kRRK  5: 53, 6: 54, 7: 54 (no mate is longer)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

import chess
import numpy as np

from env_servers.tasks.endgame_distances import table
from env_servers.tasks.endgame_positions import PIECE_SETS, canonical_placement

COUNTS = dict(zip(PIECE_SETS, (162, 161, 161, 161), strict=True))
SHORTEST_PLIES = 9
TARGET = Path(__file__).with_name("chess_endgames_test.csv")


def positions(pieces: str, plies: int, rng: random.Random) -> Iterator[str]:
    """FENs of the set's positions at that distance, White to move, in random order and unique up to symmetry."""
    white = table(pieces).white
    candidates = np.flatnonzero(white == plies)
    seen = set()
    for choice in rng.sample(range(len(candidates)), len(candidates)):
        squares = np.unravel_index(candidates[choice], white.shape)
        board = chess.Board(None)
        for symbol, square in zip(pieces[1:] + pieces[0], squares, strict=True):
            board.set_piece_at(int(square), chess.Piece.from_symbol(symbol))
        placement = canonical_placement(board.board_fen())
        if placement not in seen:
            seen.add(placement)
            yield board.fen()


def quotas(available: dict[int, int], total: int) -> dict[int, int]:
    """How many positions to take of each distance, by the rule above."""
    taken: dict[int, int] = {}
    for plies in sorted(available, key=lambda distance: (available[distance], -distance)):
        share = -(-(total - sum(taken.values())) // (len(available) - len(taken)))
        taken[plies] = min(available[plies], share)
    return taken


def lines(pieces: str) -> list[str]:
    """The set's lines of the file."""
    rng = random.Random(f"chess_endgames test positions {pieces}")
    count, longest = COUNTS[pieces], int(table(pieces).white.max())
    drawn = {}
    for plies in range(SHORTEST_PLIES, longest + 1, 2):
        drawn[plies] = [fen for _, fen in zip(range(count), positions(pieces, plies, rng), strict=False)]
    taken = quotas({plies: len(fens) for plies, fens in drawn.items()}, count)
    rows = [f"{pieces},{fen},{plies}" for plies, fens in drawn.items() for fen in fens[: taken[plies]]]
    return rng.sample(rows, len(rows))


def text() -> str:
    """The whole file."""
    in_turn = chain.from_iterable(zip_longest(*(lines(pieces) for pieces in PIECE_SETS)))
    return "\n".join(["pieces,fen,plies", *filter(None, in_turn)]) + "\n"


def main() -> None:
    """Writes the file."""
    unfinished = TARGET.with_suffix(".unfinished")
    unfinished.write_text(text(), encoding="utf-8")
    unfinished.replace(TARGET)


if __name__ == "__main__":
    main()
