"""Distances to mate against the rules of python-chess, an independent move generator and published counts."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import random
import subprocess
import sys
from collections import Counter
from importlib.resources import files
from types import ModuleType

import chess
import numpy as np
import pytest

from env_servers.tasks import endgame_positions
from env_servers.tasks.endgame_distances import best_move, distance, table
from env_servers.tasks.endgame_positions import PIECE_SETS, canonical_placement, is_test_position, random_position

THREE_PIECES = ("kQK", "kRK")
UNDECIDED = 127  # above every distance: in place of the tables' -1, where a minimum or maximum is taken


# An independent view of the rules in array form: from python-chess's moves on an empty board and the squares between.
@functools.cache
def lines_of(letter: str) -> list[tuple[int, int, np.ndarray]]:
    """From where to where a piece goes on an empty board, and which squares lie between, as a vector of 64."""
    found = []
    for square in chess.SQUARES:
        board = chess.BaseBoard(None)
        board.set_piece_at(square, chess.Piece.from_symbol(letter))
        for target in board.attacks(square):
            between = np.array([s in chess.SquareSet.between(square, target) for s in chess.SQUARES])
            found.append((square, target, between))
    return found


def standing(mask: np.ndarray, axis: int, dimensions: int) -> np.ndarray:
    return mask.reshape([64 if other == axis else 1 for other in range(dimensions)])


def blocked(between: np.ndarray, dimensions: int) -> np.ndarray:
    """Whether any of the other pieces, one axis each, stands between."""
    return functools.reduce(np.logical_or, [standing(between, axis, dimensions) for axis in range(dimensions)])


def at(axis: int, square: int, target: int | None = None) -> tuple:
    """Index: the piece of that axis on that square; and the black king, the last axis, on the target."""
    index = (*[slice(None)] * axis, square)
    return index if target is None else (*index, ..., target)


@functools.cache
def rules(pieces: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of all placings: which are positions with White to move, which with Black to move, in which White attacks."""
    letters, dimensions = pieces[1:], len(pieces)
    attacked, touching = np.zeros((64,) * dimensions, bool), np.zeros((64,) * dimensions, bool)
    for axis, letter in enumerate(letters):
        for square, target, between in lines_of(letter):
            attacked[at(axis, square, target)] |= ~blocked(between, dimensions - 2)
            touching[at(axis, square, target)] |= letter == "K"
    distinct = np.ones_like(attacked)
    for one, other in itertools.combinations(range(dimensions), 2):
        np.moveaxis(distinct, (one, other), (0, 1))[range(64), range(64)] = False
    return distinct & ~attacked, distinct & ~touching, attacked


def classes(pieces: str, positions: np.ndarray) -> int:
    """How many positions there are when turned and mirrored ones count as one.

    All have eight images but those with every piece on the same long diagonal, which have four.
    """
    falling, rising = np.arange(7, 57, 7), np.arange(0, 64, 9)
    on_diagonals = sum(int(positions[np.ix_(*[squares] * len(pieces))].sum()) for squares in (falling, rising))
    return (int(positions.sum()) + on_diagonals) // 8


@pytest.mark.parametrize("pieces", PIECE_SETS)
def test_every_position_of_a_table_agrees_with_all_its_moves(pieces: str) -> None:
    """Over all placings: a win is one ply more than its fastest move, a loss one more than its longest reply.

    By induction over the plies this proves each distance, and that best moves mate in it against the best defender.
    """
    letters, found = pieces[1:], table(pieces)
    white_moves, black_moves, attacked = rules(pieces)
    black = np.where(found.black < 0, UNDECIDED, found.black).astype(np.int8)
    fastest = np.full(black.shape, UNDECIDED, np.int8)
    for axis, letter in enumerate(letters):
        for square, target, between in lines_of(letter):
            moved = np.where(blocked(between, len(letters)), UNDECIDED, black[at(axis, target)])
            np.minimum(fastest[at(axis, square)], moved, out=fastest[at(axis, square)])
    expected = np.where(white_moves & (fastest < UNDECIDED), fastest + 1, -1)
    assert np.array_equal(found.white, expected)

    arrival = np.where(found.white < 0, UNDECIDED, found.white).astype(np.int8)
    for axis in range(len(letters) - 1):
        rest = "k" + letters[:axis] + letters[axis + 1 :]
        for square in chess.SQUARES:
            smaller = table(rest).white[..., square] if rest in PIECE_SETS else np.int8(-1)
            arrival[at(axis, square, square)] = np.where(smaller < 0, UNDECIDED, smaller)
    arrival[attacked] = -1
    longest = np.full(black.shape, -1, np.int8)
    for square, target, _ in lines_of("K"):
        np.maximum(longest[..., square], arrival[..., target], out=longest[..., square])
    without_move = np.where(attacked, np.int8(0), np.int8(-1))
    expected = np.where(longest < 0, without_move, np.where(longest == UNDECIDED, -1, longest + 1))
    assert np.array_equal(found.black, np.where(black_moves, expected, -1))


def bellman(board: chess.Board) -> int | None:
    """The distance as python-chess's legal moves and the distances after them give it."""
    if board.is_checkmate():
        return 0
    if board.is_stalemate():
        return None
    after = []
    for move in board.legal_moves:
        board.push(move)
        after.append(None if board.is_insufficient_material() else distance(board))
        board.pop()
    if board.turn == chess.WHITE:
        return min((plies + 1 for plies in after if plies is not None), default=None)
    return None if None in after else max(plies for plies in after if plies is not None) + 1


@pytest.mark.parametrize(("pieces", "count"), [("kQK", 1500), ("kRK", 1500), ("kQRK", 500), ("kRRK", 500)])
@pytest.mark.parametrize("turn", chess.COLORS)
def test_random_positions_agree_with_the_legal_moves_of_python_chess(pieces: str, count: int, turn: bool) -> None:
    rng = random.Random(f"{pieces} {turn}")
    checked = 0
    while checked < count:
        board = chess.Board(None)
        for symbol, square in zip(pieces, rng.sample(chess.SQUARES, len(pieces)), strict=True):
            board.set_piece_at(square, chess.Piece.from_symbol(symbol))
        board.turn = turn
        if board.is_valid():
            assert distance(board) == bellman(board), board.fen()
            checked += 1


def test_which_placings_are_positions_agrees_with_python_chess() -> None:
    rng = random.Random(5)
    for pieces in PIECE_SETS:
        white_moves, black_moves, _ = rules(pieces)
        for _ in range(500):
            squares = [rng.randrange(64) for _ in pieces]
            board = chess.Board(None)
            for symbol, square in zip(pieces[1:] + pieces[0], squares, strict=True):
                board.set_piece_at(square, chess.Piece.from_symbol(symbol))
            distinct = len(set(squares)) == len(squares)
            assert white_moves[*squares] == (distinct and board.is_valid())
            board.turn = chess.BLACK
            # Two rooks on both sides of the king in one line are a position here: no play leads there.
            impossible = board.status() & ~chess.STATUS_IMPOSSIBLE_CHECK
            assert black_moves[*squares] == (distinct and not impossible)


@pytest.mark.parametrize(
    ("pieces", "white", "black"), [("kQK", 10, 10), ("kRK", 16, 16), ("kQRK", 6, 16), ("kRRK", 7, 16)]
)
def test_longest_mates(pieces: str, white: int, black: int) -> None:
    """In White's moves; kQK and kRK as published. Of four pieces Black may take one, after which mate is longer."""
    found = table(pieces)
    assert ((found.white.max() + 1) // 2, found.black.max() // 2) == (white, black)


def test_all_positions_with_white_to_move_are_won() -> None:
    for pieces in PIECE_SETS:
        assert (table(pieces).white[rules(pieces)[0]] > 0).all()


def test_krk_counts_are_those_of_the_published_database() -> None:
    """Black to move, up to symmetry, mate in 0 to 16 moves: UCI data set 23, Bain and van Hoff 1994 (Clarke 1977)."""
    counts = [27, 78, 246, 81, 198, 471, 592, 683, 1433, 1712, 1985, 2854, 3597, 4194, 4553, 2166, 390]
    black, valid = table("kRK").black, rules("kRK")[1]
    assert [classes("kRK", black == 2 * moves) for moves in range(17)] == counts
    assert classes("kRK", valid & (black < 0)) == 2796


def test_kqk_draws_are_as_many_as_published() -> None:
    """Black to move, all placings counted: 23048; up to symmetry there are 28056 positions, as with a rook."""
    valid = rules("kQK")[1]
    assert int((valid & (table("kQK").black < 0)).sum()) == 23048
    assert classes("kQK", valid) == 28056


def test_longest_mates_of_three_pieces_are_as_many_as_published() -> None:
    assert classes("kQK", table("kQK").white == 19) == 1
    assert classes("kQK", table("kQK").black == 20) == 8
    assert classes("kRK", table("kRK").white == 31) == 121
    assert distance(chess.Board("8/8/8/5k2/8/8/1Q6/K7 w - - 0 1")) == 19
    assert distance(chess.Board("8/8/8/8/8/2k5/1R6/K7 w - - 0 1")) == 31


@pytest.mark.parametrize("pieces", THREE_PIECES)
def test_draws_of_black_to_move_are_stalemates_and_captures(pieces: str) -> None:
    """Counted with python-chess, the black king on three squares: a corner, an edge, the middle."""
    draws = {}
    for king in (chess.A1, chess.C1, chess.D4):
        draws[king] = 0
        for white_king in chess.SQUARES:
            for square in set(chess.SQUARES) - {king, white_king}:
                board = chess.Board(None)
                board.set_piece_at(king, chess.Piece.from_symbol("k"))
                board.set_piece_at(square, chess.Piece.from_symbol(pieces[1]))
                if white_king != king:
                    board.set_piece_at(white_king, chess.Piece.from_symbol("K"))
                board.turn = chess.BLACK
                if board.is_valid():
                    draws[king] += board.is_stalemate() or any(board.is_capture(move) for move in board.legal_moves)
    drawn = rules(pieces)[1] & (table(pieces).black < 0)
    assert draws == {king: int(drawn[..., king].sum()) for king in draws}


def test_best_moves_of_both_sides_mate_in_the_distance_from_all_test_positions() -> None:
    for position in endgame_positions.test_positions():
        board = chess.Board(position.fen)
        for _ in range(position.plies):
            board.push(best_move(board))
        assert board.is_checkmate(), position


def test_best_move_takes_the_first_name_of_equally_good_moves() -> None:
    board = chess.Board("7k/8/6K1/8/8/8/3Q4/1R6 w - - 0 1")
    mating = sorted(move.uci() for move in board.legal_moves if mates(board, move))
    assert mating[0] == "b1b8" and len(mating) > 1
    assert best_move(board).uci() == "b1b8"


def mates(board: chess.Board, move: chess.Move) -> bool:
    after = board.copy()
    after.push(move)
    return after.is_checkmate()


def test_black_takes_the_draw_and_else_the_longer_way() -> None:
    lone_rook = chess.Board("8/8/8/3k4/3R4/8/8/K7 b - - 0 1")
    assert (distance(lone_rook), best_move(lone_rook).uci()) == (None, "d5d4")
    # Taking the unprotected queen leaves king and rook, which last longer than anything else.
    board = chess.Board("8/8/8/3k4/3Q4/8/8/K6R b - - 0 1")
    plies = distance(board)
    assert best_move(board).uci() == "d5d4"
    board.push_uci("d5d4")
    assert plies is not None and distance(board) == plies - 1 > 20


@pytest.mark.parametrize(
    ("fen", "message"),
    [
        (chess.STARTING_FEN, "allowed pieces: kQK, kRK, kQRK, kRRK"),
        ("8/8/8/3k4/8/8/8/K7 w - - 0 1", "allowed pieces"),
        ("8/8/8/3K4/8/8/8/kq6 w - - 0 1", "allowed pieces"),
        ("8/8/8/3k4/8/8/8/K6r b - - 0 1", "allowed pieces"),
        ("8/8/8/3k4/8/8/8/4K2R w K - 0 1", "no castling rights"),
        ("8/8/8/3k4/8/8/3R4/K7 w - - 0 1", "not valid: .*OPPOSITE_CHECK"),
        ("8/8/8/8/8/8/1k6/K6R w - - 0 1", "not valid"),
    ],
)
def test_other_positions_are_refused(fen: str, message: str) -> None:
    for ask in (distance, best_move):
        with pytest.raises(ValueError, match=message):
            ask(chess.Board(fen))


def test_there_is_no_best_move_after_the_end() -> None:
    mate = chess.Board("R6k/8/6K1/8/8/8/8/8 b - - 0 1")
    assert distance(mate) == 0
    stalemate = chess.Board("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1")
    assert distance(stalemate) is None
    for board in (mate, stalemate):
        with pytest.raises(ValueError, match="the game is over"):
            best_move(board)


def test_sets_have_to_be_known() -> None:
    with pytest.raises(ValueError, match="'kBK'; allowed: kQK, kRK, kQRK, kRRK"):
        table("kBK")
    with pytest.raises(ValueError, match="'kBK'; allowed: kQK, kRK, kQRK, kRRK"):
        random_position(random.Random(0), "kBK")


# The test list and random positions ---------------------------------------------------------------------------------
def pieces_on(board: chess.Board) -> list[str]:
    return sorted(piece.symbol() for piece in board.piece_map().values())


def test_the_list_has_645_different_balanced_positions_that_are_long_to_mate() -> None:
    positions = endgame_positions.test_positions()
    assert Counter(position.pieces for position in positions) == {"kQK": 162, "kRK": 161, "kQRK": 161, "kRRK": 161}
    assert [position.pieces for position in positions[:8]] == [*PIECE_SETS, *PIECE_SETS]
    assert len({canonical_placement(position.fen) for position in positions}) == 645
    for position in positions:
        board = chess.Board(position.fen)
        assert position.fen == board.fen() == f"{board.board_fen()} w - - 0 1"
        assert board.is_valid() and not board.is_check()
        assert pieces_on(board) == sorted(position.pieces)
        assert distance(board) == position.plies >= 9


def test_the_lengths_of_mate_in_the_list_are_as_its_script_says() -> None:
    lengths = Counter((position.pieces, (position.plies + 1) // 2) for position in endgame_positions.test_positions())
    assert lengths == {
        **{("kQK", moves): 32 for moves in range(5, 9)}, ("kQK", 9): 33, ("kQK", 10): 1,
        **{("kRK", moves): 13 if moves < 12 else 14 for moves in range(5, 17)},
        ("kQRK", 5): 155, ("kQRK", 6): 6,
        ("kRRK", 5): 53, ("kRRK", 6): 54, ("kRRK", 7): 54,
    }  # fmt: skip
    # There are no more mates in six with queen and rook.
    assert classes("kQRK", table("kQRK").white == 11) == 6


def make_script() -> ModuleType:
    path = files("env_servers.tasks").joinpath("assets", "make_endgame_test.py")
    spec = importlib.util.spec_from_file_location("make_endgame_test", str(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_is_what_its_script_writes() -> None:
    script = make_script()
    assert script.TARGET.read_text(encoding="utf-8") == script.text()


def test_reading_the_list_does_not_load_numpy() -> None:
    code = (
        "import sys; from env_servers.tasks.endgame_positions import is_test_position, test_positions\n"
        "assert is_test_position(test_positions()[0].fen); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_all_images_of_a_test_position_are_found() -> None:
    transformations = [
        lambda board: board,
        lambda board: board.transform(chess.flip_vertical),
        lambda board: board.transform(chess.flip_horizontal),
        lambda board: board.transform(chess.flip_diagonal),
        lambda board: board.transform(chess.flip_anti_diagonal),
        lambda board: board.transform(chess.flip_vertical).transform(chess.flip_horizontal),
        lambda board: board.transform(chess.flip_vertical).transform(chess.flip_diagonal),
        lambda board: board.transform(chess.flip_vertical).transform(chess.flip_anti_diagonal),
    ]
    for position in endgame_positions.test_positions():
        images = {transformation(chess.Board(position.fen)).board_fen() for transformation in transformations}
        assert len(images) in (4, 8)
        assert all(is_test_position(image) for image in images)


def test_other_positions_are_not_test_positions() -> None:
    listed = {position.fen for position in endgame_positions.test_positions()}
    placements = {canonical_placement(fen) for fen in listed}
    rng = random.Random(1)
    for pieces in PIECE_SETS:
        boards = [random_position(rng, pieces) for _ in range(500)]
        trivial = [board for board in boards if (distance(board) or 0) < 9]
        assert trivial
        assert not any(is_test_position(board.board_fen()) for board in trivial)
        for board in boards:
            assert is_test_position(board.board_fen()) == (canonical_placement(board.fen()) in placements)
    # The same squares with other pieces on them.
    queen = next(position for position in endgame_positions.test_positions() if position.pieces == "kQK")
    assert not is_test_position(queen.fen.split(" ")[0].replace("Q", "B"))
    with pytest.raises(ValueError):
        is_test_position("not a board")


@pytest.mark.parametrize("pieces", PIECE_SETS)
def test_random_positions_are_valid_and_the_same_for_the_same_seed(pieces: str) -> None:
    boards = [random_position(random.Random(seed), pieces) for seed in range(300)]
    for board in boards:
        assert board.is_valid() and board.turn == chess.WHITE and not board.is_check()
        assert not board.is_game_over()
        assert pieces_on(board) == sorted(pieces)
        assert board.fen() == f"{board.board_fen()} w - - 0 1"
    again = [random_position(random.Random(seed), pieces).fen() for seed in range(300)]
    assert again == [board.fen() for board in boards]
    assert len(set(again)) > 290


def test_random_positions_are_uniform_over_the_valid_ones() -> None:
    """The black king's square in kRK, against exact shares from all positions: chi-squared, 63 degrees of freedom."""
    rng, count = random.Random(2), 6400
    drawn = Counter(random_position(rng, "kRK").king(chess.BLACK) for _ in range(count))
    valid = rules("kRK")[0].sum(axis=(0, 1))
    expected = valid / valid.sum() * count
    statistic = sum((drawn[square] - expected[square]) ** 2 / expected[square] for square in chess.SQUARES)
    assert statistic < 103.4  # the 99.9 % point; the seed is fixed
