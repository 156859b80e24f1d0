"""Chess engines as processes: found or not, shared, killed, hung, lying; and never left behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import chess
import psutil
import pytest

from env_servers import engines
from env_servers.engines import ENGINES, EngineFailed, EnginePool, Strength, find_engine
from env_servers.play import Failure, episode_starts, play, play_through
from env_servers.policy import Context, ScriptedPolicy
from env_servers.task import EpisodeError
from env_servers.tasks import make_env, make_policy
from env_servers.tasks.chess_game import MovePolicy, read_position

WEAK = {"max_moves": 8}

# A UCI engine of a few lines, which misbehaves as its first argument says.
STUB = """\
    #!{python}
    import sys, time
    how = {how!r}
    for line in sys.stdin:
        word = line.split()[0] if line.split() else ""
        if word == "uci":
            print("id name Stub 1.0\\nuciok", flush=True)
        elif word == "isready":
            print("readyok", flush=True)
        elif word == "go":
            if how == "hang":
                time.sleep(60)
            print("bestmove " + ("a1a8" if how == "lie" else "e7e5"), flush=True)
        elif word == "quit":
            break
"""


def stub(folder: Path, how: str) -> str:
    path = folder / f"{how}_engine"
    path.write_text(textwrap.dedent(STUB).format(python=sys.executable, how=how))
    path.chmod(0o755)
    return str(path)


def engine_children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "stockfish" in child.name()]


@pytest.fixture(autouse=True)
def no_engine_is_left() -> Iterator[None]:
    threads = threading.active_count()
    yield
    gc.collect()
    assert engine_children() == []
    assert ENGINES.processes() == []
    assert threading.active_count() <= threads


def random_games(count: int, on_failure: object = None, slots: int = 16, **options: object) -> list[str]:
    starts = episode_starts("chess", "train", range(count), {**WEAK, **options})
    episodes = play("chess", make_policy("chess", "random"), starts, slots=slots, on_failure=on_failure)  # type: ignore[arg-type]
    return [played.trajectory.end_reason for played in episodes]


def test_two_hundred_games_leave_no_process_and_no_descriptor() -> None:
    random_games(4)
    before, started = len(os.listdir("/proc/self/fd")), ENGINES.started
    assert len(random_games(200)) == 200
    assert ENGINES.started == started + 1, "one engine answers for all games in turn"
    assert len(os.listdir("/proc/self/fd")) == before


def test_engines_killed_during_a_run_cost_their_episodes_alone() -> None:
    """A thread kills engines at random; the run completes, and every episode is either finished or counted."""
    failures: list[Failure] = []
    rng, over = random.Random(0), threading.Event()

    def kill() -> None:
        while not over.wait(rng.uniform(0.1, 0.4)):
            for child in engine_children():
                child.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        finished = random_games(150, failures.append)
    finally:
        over.set()
        killer.join()
    assert len(finished) + len(failures) == 150
    assert failures and all(
        "died (exit status -9) at move" in str(failure.error) or "does not start" in str(failure.error)
        for failure in failures
    )
    assert len(finished) > 50


def test_play_through_plays_failed_episodes_again() -> None:
    """An engine is killed in the middle of the 3rd move, once: all ten episodes are there in the end."""
    killed: list[int] = []

    def choose(context: Context, board: chess.Board) -> tuple[chess.Move, None]:
        if not killed and len(context.history) == 2:
            killed.extend(ENGINES.processes())
            os.kill(killed[0], signal.SIGSTOP)  # it cannot be replaced before the next question
            threading.Timer(0.05, os.kill, (killed[0], signal.SIGKILL)).start()
        return context.rng.choice(list(board.legal_moves)), None

    starts = episode_starts("chess", "train", range(10), WEAK)
    found = sorted(p.trajectory.index for p in play_through("chess", MovePolicy("x", choose), starts, slots=2))
    assert found == list(range(10)) and len(killed) == 1


def test_without_a_handler_the_error_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"lie_engine failed: illegal uci: 'a1a8' in .* at move 1"):
        random_games(1, opponent=stub(tmp_path, "lie"))


def test_a_dead_idle_engine_is_replaced_unnoticed() -> None:
    path, board = find_engine("stockfish"), chess.Board()
    with ENGINES.hold():
        ENGINES.move(path, board, Strength(nodes=10))
        (pid,) = ENGINES.processes()
        os.kill(pid, signal.SIGKILL)
        while any(child.status() != psutil.STATUS_ZOMBIE for child in engine_children() if child.pid == pid):
            time.sleep(0.01)
        time.sleep(0.2)
        assert ENGINES.move(path, board, Strength(nodes=10)) in board.legal_moves
        assert ENGINES.processes() != [pid]


def test_any_uci_engine_can_be_the_opponent(tmp_path: Path) -> None:
    path = stub(tmp_path, "fine")
    env = make_env("chess", {"opponent": path})
    env.prepare()
    env.reset(0)
    env.step("e4")
    assert env.info["opponent_moves"] == ["e7e5"]
    assert env.info["opponent"] == "Stub 1.0, movetime ms 100"
    env.close()
    with pytest.raises(ValueError, match=r"elo is 1400, but engine .* cannot play at a rating; leave elo out"):
        make_env("chess", {"opponent": path, "elo": 1400}).prepare()


def test_an_engine_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PATIENCE", 0.5)
    env = make_env("chess", {"opponent": stub(tmp_path, "hang"), "depth": 1})
    env.reset(0)
    with pytest.raises(EpisodeError, match="did not answer in time and was ended"):
        env.step("e4")
    env.close()


def test_what_is_no_uci_engine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PATIENCE", 0.5)
    with pytest.raises(EngineFailed, match=r"engine .*cat does not start as a UCI engine"):
        make_env("chess", {"opponent": "/bin/cat"}).prepare()


def test_a_missing_engine_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="opponent '/no/engine' is no executable file; give the path"):
        make_env("chess", {"opponent": "/no/engine"}).prepare()
    monkeypatch.setenv("LMRL_STOCKFISH", "/no/stockfish")
    with pytest.raises(FileNotFoundError, match="LMRL_STOCKFISH is '/no/stockfish', which is no executable file"):
        make_env("chess").prepare()
    monkeypatch.delenv("LMRL_STOCKFISH")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engines, "USUAL_PLACES", ())
    with pytest.raises(FileNotFoundError, match=r"apt install stockfish.*LMRL_STOCKFISH.*opponent=random"):
        make_env("chess").prepare()


def test_an_impossible_rating_is_told_with_the_range() -> None:
    with pytest.raises(ValueError, match=r"elo is 1200; Stockfish .* plays at 1\d\d\d to \d+"):
        make_env("chess", {"elo": 1200}).prepare()
    with pytest.raises(ValueError, match=r"elo is 9000; Stockfish"):
        make_env("chess_endgames", {"elo": 9000}).prepare()


def test_nodes_repeat_exactly_whoever_plays_beside() -> None:
    starts = list(episode_starts("chess", "train", range(6), {"nodes": 300, "max_moves": 12}))

    def games(slots: int, chosen: list[int]) -> dict[int, object]:
        policy = make_policy("chess", "random")
        episodes = play("chess", policy, [starts[index] for index in chosen], slots=slots)
        return {played.trajectory.index: played.trajectory for played in episodes}

    together = games(6, [0, 1, 2, 3, 4, 5])
    assert games(1, [5, 3]) == {5: together[5], 3: together[3]}


def test_the_default_opponent_is_named_in_the_row() -> None:
    (played,) = play("chess", make_policy("chess", "random"), episode_starts("chess", "train", [0], WEAK))
    assert played.trajectory.info["opponent"].startswith("Stockfish ")
    assert played.trajectory.info["opponent"].endswith(", Elo 1350, depth 5")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "Elo 1350, depth 5"),
        ({"elo": 1600}, "Elo 1600, depth 5"),
        ({"elo": 2000}, "Elo 2000, movetime ms 100"),
        ({"movetime_ms": 100}, "Elo 1350, movetime ms 100"),
        ({"nodes": 200}, "nodes 200"),
    ],
)
def test_limits_that_follow_from_the_options(options: dict[str, int], told: str) -> None:
    env = make_env("chess", options)
    env.reset(0)
    assert env.info["opponent"].partition(", ")[2] == told
    env.close()


def test_several_threads_have_engines_of_their_own() -> None:
    path, moves = find_engine("stockfish"), list[chess.Move]()

    def ask() -> None:
        board = chess.Board()
        for _ in range(5):
            board.push(pool.move(path, board, Strength(nodes=500)))
        moves.append(board.peek())

    pool = EnginePool()
    with pool.hold():
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= len(pool.processes()) <= 4
    assert len(set(moves)) == 1 and len(moves) == 4


LEAVER = """
import os, signal, sys
from env_servers.engines import ENGINES
from env_servers.tasks import make_env
env = make_env("chess")
env.reset(0)
env.step("e4")
print(*ENGINES.processes(), flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["killed", "without closing"])
def test_a_process_that_goes_takes_its_engines_with_it(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVER, how], capture_output=True, text=True, timeout=60)
    assert done.returncode == (-9 if how == "killed" else 0), done.stderr
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine outlived the process that started it"
        time.sleep(0.05)


FORKER = """
import os
from env_servers.tasks import make_env
env = make_env("chess", {"nodes": 10})
env.reset(0)
env.step("e4")
child = os.fork()
other = make_env("chess", {"nodes": 10})
other.reset(0)
print(other.step("e4").legal, flush=True)
other.close()
env.close()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    os._exit(0)
"""


def test_a_forked_process_starts_engines_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKER], capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.split()) == ["0", "True", "True"], done.stderr


def test_collectors_draw_once_per_game() -> None:
    starts = episode_starts("chess", "train", range(20), {"opponent": "random", "max_moves": 2})
    ratings = []
    for played in play("chess", make_policy("chess", "behavior"), starts):
        drawn = {action["elo"] for action in played.trajectory.info["policy"]}
        assert len(played.trajectory.info["policy"]) == played.trajectory.num_turns and len(drawn) == 1
        ratings += drawn
    assert 1350 <= min(ratings) < 1450 and 1500 < max(ratings) <= 1600
    starts = episode_starts("chess_endgames", "train", range(25), {"opponent": "random", "max_moves": 20})
    shares = []
    for played in play("chess_endgames", make_policy("chess_endgames", "behavior"), starts):
        assert set(played.trajectory.info["policy"]) <= {"random", "engine"}
        shares.append(played.trajectory.info["policy"].count("random") / played.trajectory.num_turns)
    assert min(shares) < 0.2 and max(shares) > 0.8


def test_a_policy_asks_a_new_engine_where_one_died() -> None:
    """Unlike an opponent's, a policy's question belongs to no episode's state."""
    env = make_env("chess", {"opponent": "random"})
    asked: list[int] = []

    def choose(context: Context) -> str:
        board = read_position(context.observation)
        with ENGINES.hold():
            make_policy("chess", "stockfish").act([context])
            (pid,) = ENGINES.processes()
            os.kill(pid, signal.SIGKILL)
            action = make_policy("chess", "stockfish").act([context])[0].text
            asked.append(pid)
        assert board.parse_san(action.replace(" ", "")) in board.legal_moves
        return action

    starts = episode_starts("chess", "train", [0], {"opponent": "random", "max_moves": 1})
    list(play("chess", ScriptedPolicy("x", choose), starts))
    assert len(asked) == 2
    env.close()
