"""Chess: play White against an engine (LMRL-Gym, arXiv 2311.18232, section 4.2, appendix C.4).

The observation is the position as FEN, which is a full state (memory 0); the action is a move in standard algebraic
notation. By default both are written with a space between all characters, the paper's text.

Reward per action, in games: 1 if White's move mates, -1 if Black's answer mates, 0 otherwise, draws included. A move
that is illegal or cannot be read costs -1 and changes nothing. After 400 actions the next one is the last, whatever
it does (truncated); so returns lie in [-401, 1], and in [-1, 1] for legal moves.

The paper's opponent is Stockfish 15.1 with UCI_Elo 1200. That engine accepts 1350 to 2850 and ignores 1200, so the
paper's opponent is the one at 1350, which is the default here.
"""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import chess

from env_servers.engines import ENGINES, EngineFailed, Strength, find_engine
from env_servers.policy import Action, Context, Policy
from env_servers.scores import Normalisation
from env_servers.task import Env, EpisodeError, Step, TaskSpec
from env_servers.trajectory import Trajectory

LOWEST_ELO = 1350
DEPTH = 5
# Up to this rating Stockfish 15 picks its move at depth 3 or less, so that searching for longer changes nothing.
DEPTH_ENOUGH_ELO = 1600
MOVETIME_MS = 100
MOVE_LIMIT = 400
LONGEST_ACTION = 40  # characters; no move in any accepted spelling comes near
END_REASONS = {
    chess.Termination.CHECKMATE: "checkmate",
    chess.Termination.STALEMATE: "stalemate",
    chess.Termination.INSUFFICIENT_MATERIAL: "insufficient_material",
    chess.Termination.SEVENTYFIVE_MOVES: "seventyfive_moves",
    chess.Termination.FIVEFOLD_REPETITION: "fivefold_repetition",
}
LIMITS = ("movetime_ms", "depth", "nodes")


def space_out(text: str) -> str:
    """A space between all characters, so that each is a token of its own; a space becomes three."""
    return " ".join(text)


def read_position(observation: str) -> chess.Board:
    """The position that an observation shows, in either spelling."""
    spaced = observation[1:2] == " "
    return chess.Board(observation.replace("   ", "\n").replace(" ", "").replace("\n", " ") if spaced else observation)


class Chess(Env):
    """A game of chess as White.

    Args:
        opponent: `stockfish`, `random` (uniform over legal moves, no engine needed), or the path of a UCI engine.
        elo: Rating that the engine imitates. For Stockfish the default is 1350, its lowest, unless `nodes` is given.
        movetime_ms: Think time of the engine in milliseconds per move; 100 is the paper's, to the same effect.
        depth: Plies that the engine searches; 5 by default for ratings up to 1600, which choose at depth 3 or less.
        nodes: Positions that the engine searches, at full strength: the engine setting that repeats exactly.
        spaced: Write a space between all characters, as the paper; False writes plain FEN and reads plain moves.
        max_moves: Actions, illegal ones included, after which the next is the last; 400 is the paper's.
        fen: Position to start from, White to move; None is the initial position.

    Raises:
        ValueError: An option has a value that it does not take, or does not go with another.
    """

    guarded: ClassVar = {
        "opponent": ("stockfish", "random"),
        "movetime_ms": range(1, 101),
        "depth": range(1, 13),
        "nodes": range(1, 100_001),
    }
    spec: ClassVar[TaskSpec] = TaskSpec(
        id="chess",
        version="1.0",
        title="Chess",
        summary="Win a game of chess as White against Stockfish at its weakest, by moves in algebraic notation.",
        instructions=(
            "You play chess as White and want to win. Each message is the position in Forsyth-Edwards notation (FEN), "
            "written with a space between all characters. Answer with your move in standard algebraic notation, "
            "also with a space between all characters, and nothing else: for instance N f 3 or e 8 = Q + or O - O"
        ),
        memory=0,
        max_turns=MOVE_LIMIT + 1,
        max_action_tokens=16,
        min_return=-1.0 - MOVE_LIMIT,
        max_return=1.0,
        end_reasons=(*END_REASONS.values(), "move_limit"),
        test_episodes=1000,
        normalisations={
            "paper": Normalisation(-401.0, 0.21, 1.0, "LMRL-Gym, Table 5"),
            "lmrl": Normalisation(
                -1.0, 0.16, 1.0, "`random`, 1,000 games; `behavior`, 2,000 games; `stockfish`, 200 games"
            ),
        },
        paper={
            "episodes": 625_000, "mean_length": 46.7, "std_length": 18.16,
            "success_rate": 0.60, "mean_return": 0.210, "std_return": 0.970,
        },
        repeatable={"opponent": "random"},
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
        fen: str | None = None,
    ) -> None:
        limits = {"movetime_ms": movetime_ms, "depth": depth, "nodes": nodes}
        for name, value in {"elo": elo, **limits, "max_moves": max_moves}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{self.spec.id}: {name} is {value!r}; it must be a positive integer")
        if max_moves > MOVE_LIMIT:
            raise ValueError(f"{self.spec.id}: max_moves is {max_moves}; at most {MOVE_LIMIT} are allowed")
        if not isinstance(spaced, bool):
            raise ValueError(f"{self.spec.id}: spaced is {spaced!r}; allowed: true, false")
        if fen is not None:
            self._check_fen(fen)
        self._opponent = opponent
        self._strength = self._choose_strength(opponent, elo, movetime_ms, depth, nodes)
        self._spaced, self._max_moves, self._fixed_fen = spaced, max_moves, fen
        self._recorded: Sequence[str] | None = None
        self._board = chess.Board()
        self._start = self._board.fen()
        self._rng = random.Random(0)
        self._engine: str | None = None
        self._opponent_name = ""
        self._opponent_moves: list[str] = []
        self._actions = 0
        self._let_go: Callable[[], object] = lambda: None
        self._holding = False

    def _choose_strength(
        self, opponent: str, elo: int | None, movetime_ms: int | None, depth: int | None, nodes: int | None
    ) -> Strength | None:
        """What the engine is told, None for the opponent without engine."""
        given = [name for name, v in zip(LIMITS, (movetime_ms, depth, nodes), strict=True) if v is not None]
        if opponent == "random":
            if elo is not None or given:
                names = ", ".join((["elo"] if elo is not None else []) + given)
                raise ValueError(f"{self.spec.id}: {names} given, but opponent=random has no engine; leave it out")
            return None
        if len(given) > 1:
            raise ValueError(f"{self.spec.id}: {' and '.join(given)} given; give one of {', '.join(LIMITS)}")
        if nodes is not None and elo is not None:
            raise ValueError(
                f"{self.spec.id}: nodes={nodes} with elo={elo}; nodes is for repeatable games, and at a rating the "
                "engine draws its moves by the clock: give nodes alone (full strength), or elo and depth or movetime_ms"
            )
        if opponent == "stockfish" and nodes is None:
            elo = elo or LOWEST_ELO
        if not given:
            weak = elo is not None and elo <= DEPTH_ENOUGH_ELO
            depth, movetime_ms = (DEPTH, None) if weak else (None, MOVETIME_MS)
        return Strength(elo, movetime_ms, depth, nodes)

    def _check_fen(self, fen: str) -> None:
        try:
            board = chess.Board(fen)
        except ValueError as error:
            raise ValueError(f"{self.spec.id}: fen is {fen!r}, which is no position in FEN: {error}") from error
        if not board.is_valid() or board.turn != chess.WHITE or board.is_game_over():
            raise ValueError(
                f"{self.spec.id}: fen is {fen!r}; allowed are legal positions with White to move and the game not over"
            )

    def _reset(self, rng: random.Random) -> str:
        self._rng = rng
        self._board = chess.Board(self._fixed_fen) if self._fixed_fen is not None else self._draw_position(rng)
        self._start = self._board.fen()
        self._opponent_moves, self._actions = [], 0
        if self._recorded is None and self._strength is not None:
            if not self._holding:
                self._holding = True
                # Also where nobody calls `close`: when this object or the interpreter goes.
                self._let_go = weakref.finalize(self, ENGINES.release, ENGINES.acquire())
            self._find_opponent()
        return self._observe(self._start)

    def _draw_position(self, rng: random.Random) -> chess.Board:
        return chess.Board()

    def _find_opponent(self) -> None:
        if self._engine is None and self._strength is not None:
            engine = find_engine(self._opponent)
            self._opponent_name = f"{ENGINES.identity(engine, self._strength.elo)}, {self._strength}"
            self._engine = engine

    def _step(self, action: str) -> Step:
        self._actions += 1
        move = self._read_move(action)
        if move is None:
            if self._actions > self._max_moves:
                return Step.end(self._observe(), -1.0, "move_limit", success=False, cut=True, legal=False)
            return Step.ongoing(self._observe(), -1.0, legal=False)
        self._board.push(move)
        if (end := self._end(reward_of_mate=1.0)) is not None:
            return end
        answer = self._answer()
        self._opponent_moves.append(answer.uci())
        self._board.push(answer)
        if (end := self._end(reward_of_mate=-1.0)) is not None:
            return end
        if self._actions > self._max_moves:
            return Step.end(self._observe(), 0.0, "move_limit", success=False, cut=True)
        return Step.ongoing(self._observe(), 0.0)

    def _read_move(self, action: str) -> chess.Move | None:
        text = action.strip().replace(" ", "") if len(action) <= LONGEST_ACTION else ""
        try:
            return self._board.parse_san(text) or None  # a null move, which python-chess reads, is no move
        except ValueError:
            return None

    def _end(self, reward_of_mate: float) -> Step | None:
        outcome = self._board.outcome()
        if outcome is None:
            return None
        reason = END_REASONS[outcome.termination]
        reward = reward_of_mate if reason == "checkmate" else 0.0
        return Step.end(self._observe(), reward, reason, success=reward > 0)

    def _answer(self) -> chess.Move:
        if self._recorded is not None:
            return self._recorded_answer(self._recorded)
        if self._strength is None:
            return self._rng.choice(list(self._board.legal_moves))
        assert self._engine is not None, "reset finds the engine"
        return ENGINES.move(self._engine, self._board, self._strength)

    def _recorded_answer(self, moves: Sequence[str]) -> chess.Move:
        number = len(self._opponent_moves)
        try:
            move = chess.Move.from_uci(moves[number])
        except (IndexError, ValueError) as error:
            raise EpisodeError(f"the record has no readable answer {number} of the opponent: {error}") from error
        if move not in self._board.legal_moves:
            raise EpisodeError(f"the record's answer {number}, {move.uci()}, is illegal in {self._board.fen()}")
        return move

    def _observe(self, fen: str | None = None) -> str:
        fen = fen or self._board.fen()
        return space_out(fen) if self._spaced else fen

    @property
    def info(self) -> dict[str, Any]:
        """`fen` of the start, `opponent` (name, version and strength) and `opponent_moves` (UCI) so far."""
        return {
            "fen": self._start,
            "opponent": self._opponent_name or "random",
            "opponent_moves": self._opponent_moves,
        }

    def draw(self) -> str:
        """The board, White below."""
        return str(self._board)

    def prepare(self) -> None:
        """Find the engine and check that it plays at the rating."""
        with ENGINES.hold():
            self._find_opponent()

    def follow(self, trajectory: Trajectory) -> None:
        """Take the opponent's moves from `info` of a record."""
        moves, name = trajectory.info.get("opponent_moves"), trajectory.info.get("opponent")
        if not isinstance(moves, list) or not isinstance(name, str):
            raise EpisodeError("the record's info has no opponent and opponent_moves")
        self._recorded, self._opponent_name = [str(move) for move in moves], name

    def close(self) -> None:
        """Let go of the engines."""
        self._holding = False
        self._let_go()

    @classmethod
    def running(cls) -> AbstractContextManager[object]:
        """Keeps engines alive from one episode to the next."""
        return ENGINES.hold()


# Scripted policies -----------------------------------------------------------------------------------------------
ATTEMPTS = 3  # engines that a policy asks for one move: its question depends on nothing that died with the first
FULL_STRENGTH = Strength(nodes=10_000)
# The paper draws White's rating from 800 to 1600 (appendix C.4). Stockfish refuses what is below 1350 and goes on with
# the rating that it had, so those in effect are spread over this range. With it White wins 55 % of the games, 52 % if
# 1350 stands for all that is below, and 60 % in the paper's data.
LOWEST_DRAWN_ELO, HIGHEST_DRAWN_ELO = LOWEST_ELO, 1600


def _write_move(context: Context, board: chess.Board, move: chess.Move) -> str:
    """The move in the spelling of the observation."""
    san = board.san(move)
    return space_out(san) if context.observation[1:2] == " " else san


def ask_stockfish(board: chess.Board, strength: Strength) -> chess.Move:
    """Stockfish's move; where its process dies, a new one is asked."""
    path = find_engine("stockfish")
    for _ in range(ATTEMPTS - 1):
        try:
            return ENGINES.move(path, board, strength)
        except EngineFailed:
            continue
    return ENGINES.move(path, board, strength)


Choice = Callable[[Context, chess.Board], tuple[chess.Move, Any]]


class MovePolicy:
    """A policy from a function that gives a move and a JSON value on how it was found."""

    def __init__(self, name: str, choose: Choice) -> None:
        self.name = name
        self._choose = choose

    def act(self, contexts: Sequence[Context]) -> list[Action]:
        """Answer each context on its own."""
        actions = []
        for context in contexts:
            board = read_position(context.observation)
            move, info = self._choose(context, board)
            actions.append(Action(_write_move(context, board, move), info=info))
        return actions


def random_move(context: Context, board: chess.Board) -> tuple[chess.Move, None]:
    return context.rng.choice(list(board.legal_moves)), None


def _stockfish_move(context: Context, board: chess.Board) -> tuple[chess.Move, None]:
    return ask_stockfish(board, FULL_STRENGTH), None


def _rated_move(context: Context, board: chess.Board) -> tuple[chess.Move, Any]:
    """The paper's collector of games: Stockfish at a rating that is drawn once per game."""
    drawn = context.once().randint(LOWEST_DRAWN_ELO, HIGHEST_DRAWN_ELO)
    return ask_stockfish(board, Strength(drawn, depth=DEPTH)), {"elo": drawn}


def move_policies(**choices: Choice) -> dict[str, Callable[[], Policy]]:
    """A task's `policies` from such functions, by name."""
    return {name: functools.partial(MovePolicy, name, choose) for name, choose in choices.items()}


Chess.policies = move_policies(random=random_move, behavior=_rated_move, stockfish=_stockfish_move)
