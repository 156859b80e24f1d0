"""Distances to mate and best moves in the endgames kQK, kRK, kQRK and kRRK, exact, by retrograde analysis.

The lower-case k is Black's lone king. The rules of chess hold without the fifty-move rule and without castling;
stalemate and the capture of White's last piece are draws. White to move wins every position of these sets.

How it works: for each placing of White's pieces one 64-bit number holds a set of squares of the black king, so that
one NumPy operation treats all placings and all black kings at once. Black to move is lost at ply 0 where Black is
mated; White to move is won at ply n where a move leads to a loss at ply n - 1; Black to move is lost at ply n where
Black can move and no move leads out of what is won by ply n - 1. A capture leads into the table of the other pieces.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import chess
import numpy as np
import numpy.typing as npt

from env_servers.tasks.endgame_positions import PIECE_SETS

# One number per placing of White's pieces, one axis of 64 squares per piece; bit s: the black king on square s.
Bitboards = npt.NDArray[np.uint64]
Plies = npt.NDArray[np.int8]

_BITS: Bitboards = np.uint64(1) << np.arange(64, dtype=np.uint64)
_ALL = np.uint64(chess.BB_ALL)
_NOT_FILE_A, _NOT_FILE_H = np.uint64(chess.BB_ALL ^ chess.BB_FILE_A), np.uint64(chess.BB_ALL ^ chess.BB_FILE_H)
_ONE, _RANK = np.uint64(1), np.uint64(8)

# Steps (files, ranks) of a piece, and whether it may go on the same way.
_STRAIGHT = ((1, 0), (-1, 0), (0, 1), (0, -1))
_ROUND = (*_STRAIGHT, (1, 1), (1, -1), (-1, 1), (-1, -1))
_STEPS = {"K": (_ROUND, False), "Q": (_ROUND, True), "R": (_STRAIGHT, True)}
_SYMBOLS = frozenset("".join(sorted(pieces)) for pieces in PIECE_SETS)


@dataclass(frozen=True, slots=True)
class Table:
    """The plies to mate of one set of pieces, -1 where White cannot force mate or the position is not valid.

    The last axis is the black king's square, those before it the squares of White's pieces in the order of the set's
    name; shape (64, 64, 64) for three pieces and (64, 64, 64, 64) for four. Squares are numbered as in python-chess.

    Attributes:
        white: White to move.
        black: Black to move.
    """

    white: Plies
    black: Plies


@functools.cache
def table(pieces: str) -> Table:
    """The table of a set, computed at the first call and kept for the life of the process; no file is read.

    The first call takes some hundredths of a second for a set of three pieces and about half a second for one of
    four, which makes the tables of its captures too. A set of three keeps 0.5 MiB, one of four 32 MiB.

    Args:
        pieces: One of `PIECE_SETS`.

    Raises:
        ValueError: There is no such set.
    """
    if pieces not in PIECE_SETS:
        raise ValueError(f"pieces is {pieces!r}; allowed: {', '.join(PIECE_SETS)}")
    letters = pieces[1:]
    shape, axes = (64,) * len(letters), range(len(letters))
    # What is left when Black takes the piece of an axis; a piece without a table is the last, or the king.
    after_capture = [(axis, "k" + letters[:axis] + letters[axis + 1 :]) for axis in axes]
    smaller = [(axis, table(rest)) for axis, rest in after_capture if rest in PIECE_SETS]
    on_axis = [_BITS.reshape([64 if other == axis else 1 for other in axes]) for axis in axes]
    occupied = functools.reduce(np.bitwise_or, on_axis)
    free = _free(len(letters))
    attacks = [_attacks(letter, free, axis) for axis, letter in enumerate(letters)]
    safe = ~functools.reduce(np.bitwise_or, attacks)
    # The king is the last of the letters; what it attacks is where the kings would touch.
    black_legal = np.where(np.bitwise_count(occupied) == len(letters), ~occupied & ~attacks[-1], np.uint64(0))
    white_legal = black_legal & safe
    can_move = _next_to(safe)

    white, black = np.full((*shape, 64), -1, np.int8), np.full((*shape, 64), -1, np.int8)
    last_capture = max((int(other.white.max()) for _, other in smaller), default=0)
    newly_lost = black_legal & ~safe & ~can_move
    won, lost = np.zeros(shape, np.uint64), newly_lost
    ply = 0
    while newly_lost.any() or ply <= last_capture:
        _write(black, newly_lost, ply)
        newly_won = np.zeros(shape, np.uint64)
        for axis, letter in enumerate(letters):
            newly_won |= _leading_to(newly_lost, letter, free, axis)
        newly_won &= white_legal & ~won
        _write(white, newly_won, ply + 1)
        won |= newly_won
        for axis, other in smaller:
            # On the square of a white piece `won` says how it goes on when the black king has taken it.
            taken = np.moveaxis(won, axis, 0)
            taken |= _pack(other.white == ply + 1) & _BITS.reshape(64, *[1] * (len(letters) - 1))
        newly_lost = black_legal & ~lost & can_move & ~_next_to(safe & ~won)
        lost = lost | newly_lost
        ply += 2
    white.flags.writeable = black.flags.writeable = False  # all callers share them
    return Table(white, black)


def distance(board: chess.Board) -> int | None:
    """Plies (half-moves) to White's mate with the best play of both sides; None where White cannot force mate.

    None is possible with Black to move alone. Mate on the board is 0. Clocks and past positions do not count. The
    first call for a set makes its `table`.

    Raises:
        ValueError: The position is not valid, has other pieces than one of `PIECE_SETS`, or castling rights.
    """
    _check(board)
    return _lookup(board)


def best_move(board: chess.Board) -> chess.Move:
    """The best move of the side to move, of several the first in the alphabetical order of their UCI names.

    White's best move mates fastest; White to move wins all positions of these sets. Black's best move draws if one
    can, else it holds out longest.

    Raises:
        ValueError: As in `distance`; or there is no legal move.
    """
    _check(board)
    moves = sorted(board.legal_moves, key=chess.Move.uci)
    if not moves:
        raise ValueError(f"position is {board.fen()!r}, where the game is over; allowed: positions with a legal move")
    after, plies = board.copy(stack=False), []
    for move in moves:
        after.push(move)
        left = _lookup(after)
        plies.append(math.inf if left is None else left)
        after.pop()
    return moves[plies.index(min(plies) if board.turn == chess.WHITE else max(plies))]


def _check(board: chess.Board) -> None:
    symbols = "".join(sorted(piece.symbol() for piece in board.piece_map().values()))
    if symbols not in _SYMBOLS:
        raise ValueError(f"position is {board.fen()!r}; allowed pieces: {', '.join(PIECE_SETS)} (k is Black's king)")
    if board.castling_rights:
        raise ValueError(f"position is {board.fen()!r}; allowed: no castling rights, a FEN with '-' in their place")
    if not board.is_valid():
        raise ValueError(f"position is {board.fen()!r}, which is not valid: {board.status()!r}; give a valid one")


def _lookup(board: chess.Board) -> int | None:
    """`distance` without checks; the bare kings that a capture leaves are a draw."""
    queens, rooks = list(chess.scan_forward(board.queens)), list(chess.scan_forward(board.rooks))
    if not queens and not rooks:
        return None
    found = table("k" + "Q" * len(queens) + "R" * len(rooks) + "K")
    squares = (*queens, *rooks, board.king(chess.WHITE), board.king(chess.BLACK))
    plies = int((found.white if board.turn == chess.WHITE else found.black)[squares])
    return None if plies < 0 else plies


def _free(count: int) -> Bitboards:
    """For one of White's `count` pieces: all bits where no other stands on its square, else none; its axis first."""
    free = np.full((64,) * count, _ALL)
    squares = np.arange(64)
    for other in range(1, count):
        np.moveaxis(free, other, 1)[squares, squares] = 0
    return free


def _attacks(letter: str, free: Bitboards, axis: int) -> Bitboards:
    """The squares that a white piece attacks or protects, seen through the black king, which would step along."""
    targets = np.broadcast_to(_BITS.reshape(64, *[1] * (free.ndim - 1)), free.shape)
    return np.moveaxis(_along_steps(letter, targets, free), 0, axis)


def _leading_to(lost: Bitboards, letter: str, free: Bitboards, axis: int) -> Bitboards:
    """The black kings with which a move of this white piece leads into `lost`, positions not legal included."""
    # The black king need not stop the piece: White is not to move where a piece sees it. And no move in `lost` ends
    # on another piece, since it holds legal positions alone.
    return np.moveaxis(_along_steps(letter, np.moveaxis(lost, axis, 0), free), 0, axis)


def _along_steps(letter: str, targets: Bitboards, free: Bitboards) -> Bitboards:
    """From each square of a piece (axis 0): what `targets` has on the squares up to the next white piece and there."""
    steps, slides = _STEPS[letter]
    found = np.zeros_like(free)
    for files, ranks in steps:
        ray = np.zeros_like(free)
        # The next square's ray is a part of this one's, so squares far along come first.
        for square in reversed(chess.SQUARES) if files + 8 * ranks > 0 else chess.SQUARES:
            file, rank = chess.square_file(square) + files, chess.square_rank(square) + ranks
            if file in range(8) and rank in range(8):
                target = chess.square(file, rank)
                ray[square] = targets[target]
                if slides:
                    ray[square] |= ray[target] & free[target]
        found |= ray
    return found


def _next_to(squares: Bitboards) -> Bitboards:
    """The squares that a king's step parts from some of these."""
    sides = ((squares << _ONE) & _NOT_FILE_A) | ((squares >> _ONE) & _NOT_FILE_H)
    rows = squares | sides
    near: Bitboards = sides | (rows << _RANK) | (rows >> _RANK)
    return near


def _write(plies: Plies, squares: Bitboards, ply: int) -> None:
    """Sets positions that hold -1 so far to a number of plies."""
    if squares.any():
        bits = np.unpackbits(squares.astype("<u8")[..., None].view(np.uint8), axis=-1, bitorder="little")
        plies += bits.view(np.int8) * np.int8(ply + 1)


def _pack(positions: npt.NDArray[np.bool_]) -> Bitboards:
    """The black king's axis as bits."""
    bits: Bitboards = np.packbits(positions, axis=-1, bitorder="little").view("<u8")[..., 0].astype(np.uint64)
    return bits
