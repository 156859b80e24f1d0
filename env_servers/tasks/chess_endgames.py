"""Chess Endgames: mate a lone king (LMRL-Gym, arXiv 2311.18232, section 4.2, appendix C.5).

Rules, texts and rewards are those of `chess_game`; the start is a random position of king and queen, rook, queen and
rook, or two rooks against the king, with White to move. Every such position is won. The test episodes are 645 fixed
positions, from which mate takes at least 5 moves; no other episode starts from one of them or its mirror image.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

import chess

from env_servers.engines import Strength
from env_servers.policy import Context
from env_servers.scores import Normalisation
from env_servers.task import TaskSpec
from env_servers.tasks.chess_game import MOVE_LIMIT, Chess, ask_stockfish, move_policies, random_move
from env_servers.tasks.endgame_positions import PIECE_SETS, is_test_position, random_position, test_positions


class ChessEndgames(Chess):
    """An endgame of king and queen, rook, queen and rook, or two rooks against the king. White can always mate.

    Args:
        pieces: `kQK`, `kRK`, `kQRK` or `kRRK` (the lower-case k is Black's); None draws one of them for each episode.
        fen: Position to start from, such as one of the test positions; None draws one that is no test position.

    The other arguments are those of `Chess`.
    """

    spec: ClassVar[TaskSpec] = replace(
        Chess.spec,
        id="chess_endgames",
        title="Chess Endgames",
        summary="Mate a lone king with queen, rook, queen and rook, or two rooks, against Stockfish at its weakest.",
        instructions=(
            "You play White in a chess endgame and want to mate the lone black king in as few moves as you can. Each "
            "message is the position in Forsyth-Edwards notation (FEN), written with a space between all characters. "
            "Answer with your move in standard algebraic notation, also with a space between all characters, and "
            "nothing else: for instance K d 4 or Q x h 2 or R a 8 #"
        ),
        test_episodes=len(test_positions()),
        test_starts=tuple({"fen": position.fen} for position in test_positions()),
        normalisations={
            "paper": Normalisation(-1.0, 0.586, 1.0, "LMRL-Gym, Table 5"),
            "lmrl": Normalisation(
                0.006, 0.588, 1.0, "`random` on the test positions; `behavior`, 3,000 games; `optimal`, exact"
            ),
        },
        paper={
            "episodes": 97_756, "mean_length": 11.9, "std_length": 12.0,
            "success_rate": 0.59, "mean_return": 0.586, "std_return": 0.492,
        },
    )  # fmt: skip

    def __init__(
        self,
        *,
        opponent: str = "stockfish",
        elo: int | None = None,
        movetime_ms: int | None = None,
        depth: int | None = None,
        nodes: int | None = None,
        spaced: bool = True,
        max_moves: int = MOVE_LIMIT,
        pieces: str | None = None,
        fen: str | None = None,
    ) -> None:
        super().__init__(
            opponent=opponent, elo=elo, movetime_ms=movetime_ms, depth=depth, nodes=nodes, spaced=spaced,
            max_moves=max_moves, fen=fen,
        )  # fmt: skip
        if pieces is not None and pieces not in PIECE_SETS:
            raise ValueError(f"{self.spec.id}: pieces is {pieces!r}; allowed: {', '.join(PIECE_SETS)}")
        self._pieces = pieces

    def _draw_position(self, rng: random.Random) -> chess.Board:
        pieces = self._pieces or rng.choice(PIECE_SETS)
        while True:
            board = random_position(rng, pieces)
            if not is_test_position(board.board_fen()):
                return board


# Scripted policies -----------------------------------------------------------------------------------------------
# With this depth, and shares drawn uniformly, endgames are won as often and last as long as in the paper's data.
ENDGAME_STRENGTH = Strength(depth=12)


def _mixed_move(context: Context, board: chess.Board) -> tuple[chess.Move, Any]:
    """The paper's collector of endgames: a random move with a probability that is drawn once per game."""
    epsilon = context.once().random()
    if context.rng.random() < epsilon:
        return context.rng.choice(list(board.legal_moves)), "random"
    return ask_stockfish(board, ENDGAME_STRENGTH), "engine"


def _optimal_move(context: Context, board: chess.Board) -> tuple[chess.Move, None]:
    from env_servers.tasks.endgame_distances import best_move  # NumPy's import and tables are this policy's alone

    return best_move(board), None


ChessEndgames.policies = move_policies(random=random_move, behavior=_mixed_move, optimal=_optimal_move)
