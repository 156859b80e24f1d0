"""Chess and Chess Endgames of the original release (`train_trajectories.jsonl`; `train.jsonl`, `val.jsonl`).

A record is a list of steps, each with the position before White's move; or, in files with one move on each line and
`from_state` as plain FEN, the lines up to one that is done or to an empty one. What Black played is not recorded. It
follows from the next position, and after White's last move from the reward, if only one answer gives it: then the game
replays, from its first position by an option of the environment and with Black's moves from `info`, as all games do.
Where several answers would do (two ways to mate, say), or the game is broken off, the last position is not known.

The files for behaviour cloning (`train_bc.jsonl`: `from_state` and `action` alone, in any order) have no games, so that
all their lines are malformed here; the same moves are in the other files. An endgame that starts from one of the test
positions, or from a mirror image, is left out, since no data may have those.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import chess

from env_servers.task import Step
from env_servers.tasks.chess_game import Chess, space_out
from env_servers.tasks.endgame_positions import is_test_position
from env_servers.trajectory import Turn
from hub_datasets.importers import CUT, RECORD_END, Draft, Layout, LeftOutRecord, MalformedRecord, Steps
from hub_datasets.importers.records import BLANK, Entry
from hub_datasets.importers.values import items, steps_of_list

# How `info` names an opponent whose process nobody has seen.
OPPONENT = "LMRL-Gym's: Stockfish 15.1, UCI_Elo 1200, 100 ms (not in the record)"
SEVERAL = "several answers of Black fit the end of the record"
BROKEN_OFF = "the record does not tell Black's last answer"
LONGEST_GAME = 2_000  # lines of a game in a file of single moves; a game has at most 401
_MOVE = ("from_state", "action", "reward", "done")


class _LastAnswerUnknown(Exception):
    """Black's answer to the last move does not follow from the record; `end` is what is known of the step."""

    def __init__(self, reason: str, end: Step) -> None:
        super().__init__(reason)
        self.end = end


class _RecordedGame(Chess):
    """The game, with answers of Black that lead to the record's next position or to its end."""

    def __init__(self, fen: str | None) -> None:
        super().__init__(fen=fen)
        self._recorded = ()  # so that no engine is asked for
        self._opponent_name = OPPONENT
        self.next_fen: str | None = None
        self.reward = 0.0
        self.done = False

    def _answer(self) -> chess.Move:
        return self._answer_to(self.next_fen) if self.next_fen is not None else self._last_answer()

    def _answer_to(self, fen: str) -> chess.Move:
        """The move after which the pieces stand as there; whether all else agrees is seen at White's next move."""
        board, placement = self._board, fen.split(" ")[0]
        before, after = board.occupied_co[chess.BLACK], _black_squares(placement)
        moved = before ^ after  # in castling, the target by which python-chess finds the move is the rook's old square
        moves = list(board.generate_legal_moves(moved & before, moved))
        for move in moves if len(moves) > 1 else ():  # they differ in what a pawn becomes
            board.push(move)
            fits = board.board_fen() == placement
            board.pop()
            if fits:
                return move
        if len(moves) != 1:
            raise MalformedRecord(f"no move of Black leads from {board.fen()!r} to {fen!r:.100}")
        return moves[0]

    def _last_answer(self) -> chess.Move:
        ends: dict[chess.Move, Step] = {}
        if self.done or self.reward:
            for move in list(self._board.legal_moves):
                self._board.push(move)
                end = self._end(reward_of_mate=-1.0)
                self._board.pop()
                if end is not None and end.reward == self.reward:
                    ends[move] = end
        if len(ends) == 1:
            return next(iter(ends))
        if self.reward and not ends:
            raise MalformedRecord(
                f"the last reward is {self.reward:g}, but no answer of Black to the last move gives it"
            )
        if ends:
            raise _LastAnswerUnknown(SEVERAL, next(iter(ends.values())))
        raise _LastAnswerUnknown(BROKEN_OFF, Step.ongoing("", 0.0))


def _black_squares(placement: str) -> int:
    """The squares of black pieces in the first field of a FEN, as python-chess numbers them."""
    squares, square = 0, chess.A8
    for letter in placement:
        if letter == "/":
            square -= 16
        elif letter in "12345678":
            square += int(letter)
        else:
            if letter.islower() and 0 <= square < 64:
                squares |= 1 << square
            square += 1
    return squares


def _is_same(fen: str, recorded: str) -> bool:
    """Whether two positions agree, but for the square for taking en passant, which programs write by two rules."""
    if fen == recorded:
        return True
    parts, others = fen.split(" "), recorded.split(" ")
    return len(others) == 6 and parts[:3] + parts[4:] == others[:3] + others[4:]


def _plain(state: str) -> str:
    """A position as FEN, from either spelling."""
    state = state.strip()
    return state.replace("   ", "\n").replace(" ", "").replace("\n", " ") if state[1:2] == " " else state


def _read(record: Any) -> Steps:
    steps = items(record, "the record")
    single = bool(steps) and isinstance(steps[0], dict) and "from_state" in steps[0]
    return steps_of_list(steps, "from_state" if single else "state")


class _Played(NamedTuple):
    turns: tuple[Turn, ...]
    num_invalid: int
    end: Step
    no_replay: str


def _draft(task: str, steps: Steps, options: Mapping[str, Any]) -> Draft:
    states = [_plain(state) for state in steps.observations]
    start = _board(states[0]).fen()
    if task == "chess_endgames" and is_test_position(start):
        raise LeftOutRecord("it starts from a test position, or from one's mirror image")
    fen = None if task == "chess" and start == chess.STARTING_FEN else start
    try:
        game = _RecordedGame(fen)
    except ValueError as error:
        raise MalformedRecord(str(error)) from error
    played = _play(game, steps, states)
    return Draft(
        turns=played.turns,
        final_observation=None if played.no_replay else played.end.observation,
        terminated=played.end.terminated,
        end_reason=played.end.end_reason or RECORD_END,
        success=played.end.success,
        num_invalid=played.num_invalid,
        env_kwargs={**options, **({} if fen is None else {"fen": fen})},
        info=game.info,
        no_replay=played.no_replay,
    )


def _play(game: _RecordedGame, steps: Steps, states: Sequence[str]) -> _Played:
    """Play White's recorded moves, Black's following from what comes next."""
    turns, invalid, step = list[Turn](), 0, Step.ongoing(game.reset(0), 0.0)
    for place, reward in enumerate(steps.rewards):
        if step.done:
            raise MalformedRecord(f"it goes on with move {place}, where the game is over ({step.end_reason})")
        if not _is_same(found := _plain(step.observation), states[place]):
            raise MalformedRecord(f"move {place} is from {states[place]!r:.100}; by the moves it is {found!r}")
        action = _spaced(steps, place)
        what = f"move {place}, {action!r:.40}"
        turns.append(Turn(step.observation, action, reward))
        game.next_fen = states[place + 1] if place + 1 < len(states) else None
        game.reward, game.done = reward, steps.done
        try:
            step = game.step(action)
        except MalformedRecord as error:
            raise MalformedRecord(f"{what}: {error}") from error
        except _LastAnswerUnknown as unknown:
            return _Played(tuple(turns), invalid, unknown.end, str(unknown))
        if step.reward != reward:
            raise MalformedRecord(f"the reward of {what} is {reward:g}; by the rules it is {step.reward:g}")
        invalid += not step.legal
    return _Played(tuple(turns), invalid, step, "")


def _board(fen: str) -> chess.Board:
    try:
        return chess.Board(fen)
    except ValueError as error:
        raise MalformedRecord(f"the first state is {fen!r:.100}, which is no position in FEN: {error}") from error


def _spaced(steps: Steps, place: int) -> str:
    """The move as the environment's text has it, where the record writes positions without spaces."""
    state, action = steps.observations[place].lstrip(), steps.actions[place]
    return action if state[1:2] == " " else space_out(action.replace(" ", ""))


def _join(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Single moves as games; a game that has an unreadable line is one entry with a problem."""
    place, moves, problem = "", list[Any](), ""
    for entry in entries:
        value = entry.value
        single = isinstance(value, dict)
        if single and not all(key in value for key in _MOVE):
            missing = ", ".join(key for key in _MOVE if key not in value)
            yield Entry(entry.place, None, f"it is a move without {missing}, so that it belongs to no game")
        elif single or (entry.problem is not None and moves):
            place = place if moves or problem else entry.place
            moves.append(value)
            problem = problem or ("" if entry.problem is None else f"{entry.place}: {entry.problem}")
            if len(moves) == LONGEST_GAME:
                problem = problem or f"none of its {LONGEST_GAME:,} lines ends the game"
            if (single and value["done"] == 1) or len(moves) == LONGEST_GAME:
                yield Entry(place, moves, problem or None)
                moves, problem = [], ""
        else:
            if moves:
                yield Entry(place, moves, problem or None)
                moves, problem = [], ""
            if value is not BLANK:
                yield entry
    if moves:
        yield Entry(place, moves, problem or None)


def _layout(task: str) -> Layout:
    return Layout(
        read=_read,
        draft=functools.partial(_draft, task),
        reasons=CUT,
        no_replay=(SEVERAL, BROKEN_OFF),
        lists=True,
        join=_join,
    )


LAYOUTS = {task: _layout(task) for task in ("chess", "chess_endgames")}
