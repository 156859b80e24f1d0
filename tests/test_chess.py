"""Chess and Chess Endgames: golden transcripts, every way a game can end, what is legal, options, records, policies.

Opponents' moves are written down here (`against`), so no engine is needed; `test_engines.py` has the engines.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import chess
import pytest

from env_servers.play import episode_starts, play, replay
from env_servers.policy import Context
from env_servers.seeding import policy_seed
from env_servers.task import Env, EpisodeError, Step
from env_servers.tasks import load_task, make_env, make_policy
from env_servers.tasks.chess_game import Chess, read_position
from env_servers.tasks.endgame_positions import PIECE_SETS, is_test_position, test_positions
from env_servers.trajectory import Trajectory, Turn


def against(moves: list[str], task: str = "chess", **options: object) -> Env:
    """An environment whose opponent makes these moves, after `reset(0)`."""
    env = make_env(task, options)
    record = Trajectory(
        task, "1.0", {}, "train", 0, 0, (Turn("", "", 0.0),), None, True, False, "checkmate", False, 0, "nobody",
        {"opponent": "a record", "opponent_moves": moves},
    )  # fmt: skip
    env.follow(record)
    env.reset(0)
    return env


def result(step: Step) -> tuple[float, bool, bool, str | None, bool]:
    return step.reward, step.terminated, step.truncated, step.end_reason, step.success


def test_golden_transcript_of_a_game() -> None:
    """Scholar's mate, with an illegal move and an unreadable one on the way; the paper's spaced text."""
    env = against(["e7e5", "b8c6", "g8f6"])
    assert env.reset(0) == (
        "r n b q k b n r / p p p p p p p p / 8 / 8 / 8 / 8 / P P P P P P P P / R N B Q K B N R"
        "   w   K Q k q   -   0   1"
    )
    after_e4 = (
        "r n b q k b n r / p p p p 1 p p p / 8 / 4 p 3 / 4 P 3 / 8 / P P P P 1 P P P / R N B Q K B N R"
        "   w   K Q k q   -   0   2"
    )
    after_bc4 = (
        "r 1 b q k b n r / p p p p 1 p p p / 2 n 5 / 4 p 3 / 2 B 1 P 3 / 8 / P P P P 1 P P P / R N B Q K 1 N R"
        "   w   K Q k q   -   2   3"
    )
    after_qh5 = (
        "r 1 b q k b 1 r / p p p p 1 p p p / 2 n 2 n 2 / 4 p 2 Q / 2 B 1 P 3 / 8 / P P P P 1 P P P / R N B 1 K 1 N R"
        "   w   K Q k q   -   4   4"
    )
    mated = (
        "r 1 b q k b 1 r / p p p p 1 Q p p / 2 n 2 n 2 / 4 p 3 / 2 B 1 P 3 / 8 / P P P P 1 P P P / R N B 1 K 1 N R"
        "   b   K Q k q   -   0   4"
    )
    expected = [
        ("e 4", after_e4, 0.0, True),
        ("K e 3", after_e4, -1.0, False),
        ("good morning", after_e4, -1.0, False),
        ("B c 4", after_bc4, 0.0, True),
        ("Q h 5", after_qh5, 0.0, True),
        ("Q x f 7 #", mated, 1.0, True),
    ]
    for action, observation, reward, legal in expected:
        step = env.step(action)
        assert (step.observation, step.reward, step.legal) == (observation, reward, legal)
    assert result(step) == (1.0, True, False, "checkmate", True)
    assert env.info == {
        "fen": chess.STARTING_FEN, "opponent": "a record", "opponent_moves": ["e7e5", "b8c6", "g8f6"],
    }  # fmt: skip


def test_golden_transcript_of_an_endgame() -> None:
    fen = "8/7k/5K2/8/8/8/8/R7 w - - 0 1"
    for spaced in (True, False):
        env = against(["h7h8"], "chess_endgames", fen=fen, spaced=spaced)
        texts = [env.reset(0), *(env.step(action).observation for action in ("K f 7", "Rh1#"))]
        if spaced:
            texts = [text.replace("   ", "_").replace(" ", "").replace("_", " ") for text in texts]
        assert texts == [fen, "7k/5K2/8/8/8/8/8/R7 w - - 2 2", "7k/5K2/8/8/8/8/8/7R b - - 3 2"]
    env = against(["h7h8"], "chess_endgames", fen=fen)
    assert env.reset(0) == "8 / 7 k / 5 K 2 / 8 / 8 / 8 / 8 / R 7   w   -   -   0   1"
    assert result(env.step("K f 7")) == (0.0, False, False, None, False)
    assert result(env.step("R h 1 #")) == (1.0, True, False, "checkmate", True)


def test_black_mates() -> None:
    env = against(["e7e5", "d8h4"])
    assert not env.step("f3").done
    step = env.step("g4")
    assert result(step) == (-1.0, True, False, "checkmate", False)
    assert step.legal, "the move that allowed the mate was legal; the reward is the mate's"


@pytest.mark.parametrize(
    ("fen", "action", "answers", "reason"),
    [
        ("7k/8/5K2/8/8/8/8/6Q1 w - - 0 1", "Qg6", [], "stalemate"),
        ("8/8/8/8/3k4/8/4R3/K7 w - - 0 1", "Re3", ["d4e3"], "insufficient_material"),
        ("7k/8/8/8/8/8/R7/K7 w - - 149 100", "Rb2", [], "seventyfive_moves"),
        ("7k/8/8/8/8/8/R7/K7 w - - 148 100", "Rb2", ["h8g8"], "seventyfive_moves"),
    ],
)
def test_draws_pay_nothing_and_are_no_success(fen: str, action: str, answers: list[str], reason: str) -> None:
    step = against(answers, fen=fen).step(action)
    assert result(step) == (0.0, True, False, reason, False)


def test_the_fifth_occurrence_of_a_position_ends_the_game() -> None:
    """The start stands on the board at first and after every fourth half-move: for the fifth time after 16."""
    env = against(["g8f6", "f6g8"] * 4)
    for number, action in enumerate(["Nf3", "Ng1"] * 4, 1):
        step = env.step(action)
        assert step.done == (number == 8)
    assert result(step) == (0.0, True, False, "fivefold_repetition", False)


ILLEGAL = [
    "", " ", "e5", "Ke2", "O-O", "--", "0000", "Z0", "@@@@", "e2e5", "e9", "N", "Nf3 Nf6", "e4e5", "1. e4", "NF3",
    "Ng1e2", "e4" * 2000, "n f 3", "e4\nNf6", "\x00e4", "е4", "é4", "N f 3 " + " " * 100,
]  # fmt: skip


@pytest.mark.parametrize("action", ILLEGAL)
def test_what_is_no_legal_move_costs_one_and_changes_nothing(action: str) -> None:
    env = against(["e7e5"])
    before, info = env.draw(), dict(env.info)
    step = env.step(action)
    assert (step.reward, step.legal, step.done) == (-1.0, False, False)
    assert (env.draw(), env.info) == (before, info)
    assert env.step("e4").legal


@pytest.mark.parametrize(
    ("fen", "action", "after"),
    [
        (chess.STARTING_FEN, "N f 3", "g1f3"),
        (chess.STARTING_FEN, "Nf3", "g1f3"),
        (chess.STARTING_FEN, " Nf3+ \n", "g1f3"),  # the mark of a check is read and not held against the move
        (chess.STARTING_FEN, "g1f3", "g1f3"),
        (chess.STARTING_FEN, "N g 1 f 3", "g1f3"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "O - O", "e1g1"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "0-0-0", "e1c1"),
        ("3k4/1P6/8/8/8/8/8/4K3 w - - 0 1", "b 8 = Q +", "b7b8q"),
        ("3k4/1P6/8/8/8/8/8/4K3 w - - 0 1", "b8=N", "b7b8n"),
    ],
)
def test_spellings_that_are_read(fen: str, action: str, after: str) -> None:
    env = against(["e7e5"] if fen == chess.STARTING_FEN else ["e8e7"], fen=fen)
    if fen.startswith("3k4"):
        env = against(["d8d7"], fen=fen)
    assert isinstance(env, Chess)
    step = env.step(action)
    assert step.legal, action
    assert env._board.move_stack[0].uci() == after


def test_the_limit_cuts_the_game_at_the_401st_action() -> None:
    env = against([])
    steps = [env.step("x") for _ in range(400)]
    assert not any(step.done for step in steps)
    last = env.step("x")
    assert result(last) == (-1.0, False, True, "move_limit", False)
    assert sum(step.reward for step in steps) + last.reward == Chess.spec.min_return == -401


def test_the_limit_plays_the_last_move_and_its_answer() -> None:
    env = against(["e7e5", "b8c6"], max_moves=1)
    assert not env.step("e4").done
    step = env.step("Nf3")
    assert (*result(step), step.legal) == (0.0, False, True, "move_limit", False, True)
    assert env.info["opponent_moves"] == ["e7e5", "b8c6"]
    env = against(["e7e5", "b8c6", "g8f6"], max_moves=3)
    for action in ("e4", "Bc4", "Qh5"):
        env.step(action)
    assert result(env.step("Qxf7#")) == (1.0, True, False, "checkmate", True), "a mate is a mate, also at the limit"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"elo": 0}, "elo is 0; it must be a positive integer"),
        ({"depth": 2.5}, "depth is 2.5; it must be a positive integer"),
        ({"nodes": True}, "nodes is True; it must be a positive integer"),
        ({"depth": 3, "nodes": 100}, "depth and nodes given; give one of movetime_ms, depth, nodes"),
        ({"nodes": 100, "elo": 1400}, "nodes=100 with elo=1400; nodes is for repeatable games"),
        ({"opponent": "random", "elo": 1400, "depth": 2}, "elo, depth given, but opponent=random has no engine"),
        ({"max_moves": 401}, "max_moves is 401; at most 400"),
        ({"spaced": "yes"}, "spaced is 'yes'; allowed: true, false"),
        ({"fen": "hello"}, "fen is 'hello', which is no position in FEN"),
        ({"fen": "7k/8/8/8/8/8/R7/K7 b - - 0 1"}, "positions with White to move and the game not over"),
        ({"fen": "8/8/8/8/3k4/8/8/K7 w - - 0 1"}, "positions with White to move and the game not over"),
        ({"fen": "kK6/8/8/8/8/8/8/R7 w - - 0 1"}, "allowed are legal positions"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env("chess", options)


def test_unknown_pieces_are_refused() -> None:
    with pytest.raises(ValueError, match="chess_endgames: pieces is 'kBK'; allowed: kQK, kRK, kQRK, kRRK"):
        make_env("chess_endgames", {"pieces": "kBK"})


# Records ---------------------------------------------------------------------------------------------------------
def recorded_game() -> Trajectory:
    (played,) = play(
        "chess", make_policy("chess", "random"), episode_starts("chess", "train", [0], {"opponent": "random"})
    )
    return played.trajectory


def test_a_record_replays_by_the_opponents_moves_in_its_row() -> None:
    """Options that ask for an engine do not matter then: the record says what the opponent did."""
    game = recorded_game()
    assert len(game.info["opponent_moves"]) in (game.num_turns, game.num_turns - 1)
    assert replay(game) is None
    assert replay(replace(game, env_kwargs={"opponent": "/no/such/engine"})) is None


def test_a_record_with_a_wrong_answer_is_told_from_a_right_one() -> None:
    game = recorded_game()
    moves = list(game.info["opponent_moves"])
    for changed, message in [
        (["a1a8", *moves[1:]], "turn 0, episode: .*the record's answer 0, a1a8, is illegal in "),
        (moves[:1], "turn 1, episode: .*the record has no readable answer 1"),
        (["e7e9", *moves[1:]], "turn 0, episode: .*the record has no readable answer 0"),
    ]:
        difference = replay(replace(game, info={**game.info, "opponent_moves": changed}))
        assert difference is not None
        assert re.search(message, str(difference)), str(difference)
    legal = next(move.uci() for move in _black_moves(game) if move.uci() != moves[0])
    difference = replay(replace(game, info={**game.info, "opponent_moves": [legal, *moves[1:]]}))
    assert difference is not None and difference.turn == 1 and difference.what == "observation"


def _black_moves(game: Trajectory) -> list[chess.Move]:
    board = read_position(game.turns[0].observation)
    board.push_san(game.turns[0].action.replace(" ", ""))
    return list(board.legal_moves)


def test_a_record_without_opponent_moves_cannot_be_followed() -> None:
    difference = replay(replace(recorded_game(), info={}))
    assert difference is not None and "info has no opponent and opponent_moves" in str(difference)


def test_an_episode_that_failed_is_over() -> None:
    env = against(["a1a8"])
    with pytest.raises(EpisodeError, match="is illegal in"):
        env.step("e4")
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step("e4")


# Policies and starts ---------------------------------------------------------------------------------------------
def context(task: str, observation: str, index: int = 0, seed: int = 0) -> Context:
    return Context(load_task(task).spec, [], observation, random.Random(seed), {}, policy_seed(index))


@pytest.mark.parametrize("spaced", [True, False])
def test_random_is_uniform_over_legal_moves_in_the_spelling_of_the_observation(spaced: bool) -> None:
    observation = make_env("chess", {"opponent": "random", "spaced": spaced}).reset(0)
    policy = make_policy("chess", "random")
    found = Counter(policy.act([context("chess", observation, seed=seed)])[0].text for seed in range(4000))
    assert len(found) == 20
    assert all(abs(count - 200) < 5 * 200**0.5 for count in found.values())
    assert ("N f 3" in found, "Nf3" in found) == (spaced, not spaced)


def test_training_starts_are_of_all_sets_and_never_test_positions() -> None:
    env, sets = make_env("chess_endgames", {"opponent": "random"}), Counter[str]()
    for seed in range(400):
        board = read_position(env.reset(seed))
        assert board.is_valid() and board.turn == chess.WHITE and not board.is_check()
        assert not is_test_position(board.board_fen())
        sets["k" + "".join(sorted((p.symbol() for p in board.piece_map().values() if p.color), key="QRK".index))] += 1
    assert set(sets) == set(PIECE_SETS) and min(sets.values()) > 60
    only = make_env("chess_endgames", {"opponent": "random", "pieces": "kRRK"})
    assert all(only.reset(seed).count("R") == 2 for seed in range(5))


def test_the_test_episodes_are_the_645_positions() -> None:
    starts = list(episode_starts("chess_endgames", "test", range(645)))
    assert [start.env_kwargs["fen"] for start in starts] == [position.fen for position in test_positions()]
    env = make_env("chess_endgames", {**starts[7].env_kwargs, "opponent": "random"})
    assert read_position(env.reset(starts[7].seed)).fen() == test_positions()[7].fen


def test_optimal_mates_from_every_test_position_no_later_than_the_distance() -> None:
    """The distance is against the best defender; a random one is mated no later."""
    starts = episode_starts("chess_endgames", "test", range(645), {"opponent": "random"})
    for played in play("chess_endgames", make_policy("chess_endgames", "optimal"), starts):
        trajectory = played.trajectory
        assert trajectory.success and trajectory.episode_return == 1.0
        assert 2 * trajectory.num_turns - 1 <= test_positions()[trajectory.index].plies


def test_a_filter_for_the_best_compares_endgames_with_each_other() -> None:
    """Their starts do not repeat, so they are no groups of equal starts, of each of which one would be kept."""
    from trainers.filters import filter_trajectories

    starts = episode_starts("chess_endgames", "train", range(20), {"opponent": "random"})
    episodes = [p.trajectory for p in play("chess_endgames", make_policy("chess_endgames", "random"), starts)]
    assert len(filter_trajectories(episodes, "top:10")) == 2
