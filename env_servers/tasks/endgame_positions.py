"""Positions of the chess endgames: the fixed test list, what counts as one of it, and random positions.

A set of pieces is a name such as `kQRK`: one letter per piece, the lower-case k is Black's lone king. The test list
is `assets/chess_endgames_test.csv`, written by `assets/make_endgame_test.py`, whose docstring has the rule.
The paper (LMRL-Gym, arXiv 2311.18232) starts its endgames from random positions of the same four sets.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from importlib.resources import files

import chess

PIECE_SETS = ("kQK", "kRK", "kQRK", "kRRK")

# Where each of the board's eight symmetries takes a square: a turn or a mirror image of a game without pawns and
# castling is the same game. The first is the identity.
_MIRRORED = tuple(chess.square(7 - chess.square_file(s), chess.square_rank(s)) for s in chess.SQUARES)
_TURNED = tuple(chess.square(chess.square_rank(s), 7 - chess.square_file(s)) for s in chess.SQUARES)


def _all_symmetries() -> tuple[tuple[int, ...], ...]:
    turns = [tuple(chess.SQUARES)]
    for _ in range(3):
        turns.append(tuple(_TURNED[square] for square in turns[-1]))
    return (*turns, *(tuple(_MIRRORED[square] for square in turn) for turn in turns))


SYMMETRIES = _all_symmetries()

# Pieces with their squares in ascending order, the least of its eight images.
Placement = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class TestPosition:
    """A position of the test list, White to move and winning.

    Attributes:
        fen: The position.
        pieces: Its set, one of `PIECE_SETS`.
        plies: Half-moves to mate with the best play of both sides.
    """

    __test__ = False  # not a class of tests, for pytest

    fen: str
    pieces: str
    plies: int


@functools.cache
def test_positions() -> tuple[TestPosition, ...]:
    """The test list in its fixed order, which takes the four sets in turn; read at the first call."""
    table = files("env_servers.tasks").joinpath("assets", "chess_endgames_test.csv").read_text(encoding="utf-8")
    rows = (line.split(",") for line in table.splitlines()[1:])
    return tuple(TestPosition(fen, pieces, int(plies)) for pieces, fen, plies in rows)


# A test module may import it by name without pytest taking it for a test.
test_positions.__test__ = False  # type: ignore[attr-defined]


def canonical_placement(board_fen: str) -> Placement:
    """The same value for all eight turns and mirror images of a position, and for no other position.

    Args:
        board_fen: Where the pieces stand, the first field of a FEN; further fields are ignored.

    Raises:
        ValueError: The field is not one of a FEN.
    """
    pieces = [(s, piece.symbol()) for s, piece in chess.BaseBoard(board_fen.split(" ")[0]).piece_map().items()]
    return min(tuple(sorted((image[square], symbol) for square, symbol in pieces)) for image in SYMMETRIES)


@functools.cache
def _test_placements() -> frozenset[Placement]:
    return frozenset(canonical_placement(position.fen) for position in test_positions())


def is_test_position(board_fen: str) -> bool:
    """Whether a position, or a turn or mirror image of it, is in the test list, whoever is to move.

    Args:
        board_fen: Where the pieces stand, the first field of a FEN; further fields are ignored.

    Raises:
        ValueError: The field is not one of a FEN.
    """
    return canonical_placement(board_fen) in _test_placements()


def random_position(rng: random.Random, pieces: str) -> chess.Board:
    """A random position with White to move, FEN fields `w - - 0 1`.

    Each piece is put on a square drawn uniformly from the free ones; the whole draw is repeated until the position
    is valid: kings apart and Black not in check. White is not in check either, as only the black king could check.

    Args:
        rng: Where the squares are drawn from.
        pieces: One of `PIECE_SETS`.

    Raises:
        ValueError: There is no such set.
    """
    if pieces not in PIECE_SETS:
        raise ValueError(f"pieces is {pieces!r}; allowed: {', '.join(PIECE_SETS)}")
    while True:
        board = chess.Board(None)
        for symbol in pieces:
            free = [square for square in chess.SQUARES if board.piece_type_at(square) is None]
            board.set_piece_at(rng.choice(free), chess.Piece.from_symbol(symbol))
        if board.is_valid():
            return board
