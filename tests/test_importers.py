"""Importers of the original release: files made here in its layouts, conversions worked out by hand."""

from __future__ import annotations

import copy
import gzip
import json
import random
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import pyarrow.parquet as pq
import pytest
from datasets import get_dataset_config_names, load_dataset
from typer.testing import CliRunner

from env_servers.play import replay
from env_servers.seeding import episode_seed
from env_servers.tasks import load_task, make_env
from env_servers.tasks.endgame_positions import test_positions
from env_servers.trajectory import Trajectory, Turn
from hub_datasets import build as build_module
from hub_datasets import imports as imports_module
from hub_datasets.build import build
from hub_datasets.cli import app
from hub_datasets.importers import LAYOUTS, Draft, LeftOutRecord, MalformedRecord, load_layout, records
from hub_datasets.importers.numbers import Numbers
from hub_datasets.importers.records import BLANK, read_entries
from hub_datasets.imports import guess_split, import_files
from hub_datasets.load import load_episodes, load_starts, load_trajectories
from hub_datasets.manifest import read_manifests
from hub_datasets.plan import make_plan
from hub_datasets.rows import from_row, to_row
from hub_datasets.verify import _check_episode, verify

# Records -------------------------------------------------------------------------------------------------------------
BETWEEN = "There are walls to your right, to your left."


def at(row: str, column: str, walls: str) -> str:
    return f"The goal is at position 8, 6. Your current position is at position {row}, {column}. {walls}\n"


def step(state: str, action: str, reward: float, done: bool) -> dict[str, Any]:
    return {"state": state, "action": action, "reward": reward, "done": done}


MAZE = [
    step(at("6", "6", BETWEEN), "move up\n", -1.0, False),
    step(at("5", "6", "There is a wall above you."), "go down\n", -4.0, False),
    step(at("5", "6", "There is a wall above you."), "move down\n", -1, False),
    step(at("6", "6", BETWEEN), "move left\n", -1.0, False),
    step(at("6", "6", BETWEEN), "move down\n", -1.0, False),
    step(at("7", "6", BETWEEN), "move down\n", 0.0, True),
]
# From (1, 10), one to the left of the right arm's end, to the end and against the wall there.
CORRIDOR = "There are walls above you, below you.\n"
DEAD_END = "There are walls to your right, above you, below you.\n"
MAZE_PO = {
    "text_history": [CORRIDOR, "move right\n", DEAD_END, "move right\n", DEAD_END, "move left\n"],
    "rewards": [0, -1.0, 0, -1.0, 0, -1.0],
    "dones": [False, False, False, False, False, True],
}
TEXT_NAV_PO = {
    "text_history": [
        "You are now playing!\n\nYou see a fridge.\n\nAdmissible commands: close fridge, go north",
        "inventory",
        "You are holding stale food.\n\nAdmissible commands: close fridge, go north",
        "eat the fridge",
        "That's plainly inedible.\n\nAdmissible commands: close fridge, go north",
        "close fridge",
        "You close the fridge.\n\n*** The End ***",
    ],
    "rewards": [0, 0, 1],
    "dones": [False, False, True],
}
TEXT_NAV = {
    "text_history": [
        "You are in a kitchen.\n\nAdmissible commands: eat stale food, go north",
        "go north",
        "You are in a garden.\n\nYou are carrying: a stale food.\n\nAdmissible commands: eat stale food, go south",
        "eat stale food",
        "You eat the stale food. Not bad.\n\n*** You lost! ***\n\nYou are carrying nothing.",
    ],
    "rewards": [0, 0],
    "dones": [False, True],
}
WORDLE = {  # the reference's recorded game of seed 0, whose words are not all in our list
    "sequence": [
        ["Wordle:\n", 0.0],
        ["a r o m a\n", 1.0],
        ["b b b b b\n", 0.0],
        ["g u l l y\n", 1.0],
        ["b y y g b\n", 0.0],
        ["s k u l l\n", 1.0],
        ["g g g g g\n", 0.0],
    ],
    "reward": [-1, 0.0, -1, 0.0, 0, 0.0],
    "done": True,
}
QUESTIONS = {
    "lines": ["Is it alive? No.", "Is it small? Is it red? Yes.", "Is it a tomato? Yes."],
    "correct": True,
    "word": ["Tomato", "Tomatoes"],
}
CITY = {
    "conversation": [
        "Is it hot? Yes, do you like hot places? I do.",
        "What is spoken there? Many languages.",
    ],
    "done": False,
    "word": "singapore,singapore",
}
CAR = {
    "buyer_info": {"personality": "polite", "preferred_brands": "a Tesla", "preferred_features": [], "budget": 50000},
    "lines": [
        {"role": "Seller", "text": "Hello.\n"},
        {"role": "Seller", "text": "How can I help?\n"},
        {"role": "Buyer", "text": "A Tesla, please.\n"},
        {"role": "Seller", "text": "For you, $45,500.\n"},
        {"role": "Buyer", "text": "Deal. Output: Decision=Accept MSRP=$60,000 Buy Price=$45,500\n"},
    ],
    "output": {"car_bought": True, "msrp": 60000, "buy_price": 45500},
}


def car_line(role: str, words: str, price: Any = None, probability: Any = None) -> dict[str, Any]:
    return {"role": role, "text": words, "purchase_price": price, "purchase_prob": probability}


CAR_B = {
    "buyer_info": {"background_buyer": "b", "background_seller": "s", "preferred_features": ["x"], "budget": "90k"},
    "original_conversation": "...",
    "lines": [
        car_line("Buyer", "Hi."),
        car_line("Dealer", "Hello."),
        car_line("Buyer", "How much?", 70, 0.9),
        car_line("Agent", "This much."),
        car_line("Buyer", "Fine.", "$62,500", "80%"),
        car_line("Buyer", "Thank you.", 0, 1),
    ],
}


def spaced(fen: str) -> str:
    return " ".join(fen)


def chess_record(start: str | None, moves: list[str], reward: float, done: bool = True) -> list[dict[str, Any]]:
    """A game from its moves in algebraic notation, White's and Black's in turn; the reward is the last step's."""
    board, steps = chess.Board() if start is None else chess.Board(start), []
    for number, move in enumerate(moves):
        if number % 2 == 0:
            steps.append(step(spaced(board.fen()), spaced(board.san(board.parse_san(move))) + "\n", 0, False))
        board.push_san(move)
    steps[-1] |= {"reward": reward, "done": done}
    return steps


WON = chess_record(None, ["e4", "e5", "Qh5", "Nc6", "Bc4", "Nf6", "Qxf7#"], 1)
LOST = chess_record(None, ["f3", "e5", "g4"], -1)  # of all answers only Qh4 mates
# White's king is shut in behind its pawns, and either rook mates on the first rank.
TWO_MATES = chess_record("6k1/8/8/8/8/rr6/2P3PP/7K w - - 0 1", ["c4"], -1)
ENDGAME = chess_record("8/8/8/8/8/2k5/8/K6R w - - 0 1", ["Rh3+", "Kc4", "Rh4+"], 0, done=False)


def draft(task: str, record: Any, **options: Any) -> Draft:
    layout = load_layout(task)
    return layout.draft(layout.read(copy.deepcopy(record)), options)


def refused(task: str, record: Any, **options: Any) -> str:
    with pytest.raises(MalformedRecord) as error:
        draft(task, record, **options)
    return str(error.value)


def changed(record: Any, *path: Any, to: Any = None) -> Any:
    """A copy of the record with the value at a path replaced, or removed without `to`."""
    found = copy.deepcopy(record)
    place = found
    for key in path[:-1]:
        place = place[key]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return found


def lines_of(values: list[Any]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def file(folder: Path, name: str, values: list[Any]) -> Path:
    """A file of these records: .json one list, .jsonl a line each, with .gz compressed."""
    path = folder / name
    data = json.dumps(values).encode() if ".jsonl" not in name else lines_of(values)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def imported(folder: Path, task: str, values: list[Any], **arguments: Any) -> Path:
    """A dataset of these records as training data."""
    path = file(folder, f"{task}.json", values)
    import_files(task, {"train": [path]}, folder / task, **arguments)
    return folder / task


def trajectories(folder: Path, split: str = "train") -> list[Trajectory]:
    """The episodes of a dataset, straight from its files."""
    rows = [
        {**row, **{column: json.loads(row[column]) for column in ("env_kwargs", "info")}}
        for path in sorted((folder / "lmrl_gym").glob(f"{split}-*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    return [from_row(row) for row in rows]


@pytest.fixture(autouse=True)
def without_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of returns are drawn in one test alone: they take half of an import's time here."""
    if request.node.name != "test_the_folder_is_as_of_a_build":
        monkeypatch.setattr(build_module, "draw_histogram", lambda path, manifest: path.write_bytes(b""))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `of_all_records` keeps its datasets."""
    return tmp_path_factory.mktemp("shared")


def of_all_records(task: str, shared: Path) -> Path:
    """The dataset of the task's `RECORDS`, made once."""
    return shared / task if (shared / task).exists() else imported(shared, task, RECORDS[task])


# Reading -------------------------------------------------------------------------------------------------------------
def read(path: Path, **arguments: Any) -> list[tuple[str, Any, str | None]]:
    return [tuple(entry) for entry in read_entries(path, **arguments)]


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(5 if depth > 3 else 8)
    if kind < 2:
        return rng.choice([None, True, False, "", 'a "quoted" ], [ {', "ü\\u€\n\\", "\ud83d", 1e-300, -12.5e10])
    if kind < 4:
        return rng.randrange(-(10**12), 10**12)
    if kind == 4:
        return "".join(rng.choices('ab,[]{}":\\\n é€', k=rng.randrange(30)))
    inner = [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return inner if kind < 6 else {f"k{number}": value for number, value in enumerate(inner)}


@pytest.mark.parametrize("seed", range(6))
def test_lists_and_lines_read_alike_wherever_the_pieces_are_cut(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    values = [random_value(rng) for _ in range(40)]
    paths = [file(tmp_path, name, values) for name in ("a.json", "b.jsonl", "c.json.gz", "d.jsonl.gz")]
    pretty, marked = tmp_path / "e.json", tmp_path / "f.json"
    pretty.write_text(json.dumps(values, indent=rng.randrange(4)))
    marked.write_bytes(b"\xef\xbb\xbf \n" + json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    paths += [pretty] if seed else [pretty, marked]
    # A line that begins with [ is taken for a list of records, unless records can be lists of steps.
    first_line = {"state": 1}
    paths[1].write_bytes(lines_of([first_line, *values]))
    paths[3].write_bytes(gzip.compress(lines_of([first_line, *values])))
    for chunk in (30, 31, 64, 1000):
        monkeypatch.setattr(records, "CHUNK", chunk)
        for path in paths:
            found = read(path)
            if "jsonl" in path.name:
                assert found == [(f"line {n}", v, None) for n, v in enumerate([first_line, *values], 1)]
            elif path == marked:
                assert [entry[0] for entry in found] == [f"record {number}" for number in range(1, 41)]
            else:
                assert found == [(f"record {number}", value, None) for number, value in enumerate(values, 1)]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_list_that_breaks_keeps_what_was_before(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second record begins at character 11 and ends at 37."""
    whole = '[{"a": 1}, {"b": "x, ]", "c": [-12.5e3]}, {"d": 2}]'
    path = tmp_path / "a.json"
    path.write_text(whole[:cut])
    monkeypatch.setattr(records, "CHUNK", 13)
    found = read(path)
    complete = [entry for entry in found if entry[2] is None]
    assert complete == [("record 1", {"a": 1}, None), ("record 2", {"b": "x, ]", "c": [-12.5e3]}, None),
                        ("record 3", {"d": 2}, None)][: len(complete)]  # fmt: skip
    assert len(complete) == (cut >= 10) + (cut >= 40) + (cut >= 50)
    if cut < len(whole):
        place, _, problem = found[-1]
        assert place == f"record {len(complete) + 1}"
        assert problem is not None and problem.startswith(
            "the list is broken there, and what follows is lost: the file "
        )


@pytest.mark.parametrize(
    ("text", "values", "problem"),
    [
        ('[{"a": 1}, {"b": nul}, {"c": 3}, "and more that is far from the end"]', 1, "Expecting value, character 7 of"),
        ('[{"a": 1} {"b": 2}]', 1, "the list goes on with '{'"),
        ('[{"a": 1}] {"b": 2}', 1, "the list has ended, and the file goes on with '{'"),
        ("[" + "[" * 100_000, 0, "nested too deeply"),
        ("[]", 0, None),
        ("[{}, ]", 1, None),
        ("", 0, None),
    ],
)
def test_broken_lists_are_told(text: str, values: int, problem: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    found = read(path)
    assert [entry[2] for entry in found[:values]] == [None] * values
    assert (problem in str(found[-1][2]) and len(found) == values + 1) if problem else len(found) == values


def test_a_line_that_is_no_json_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": }\n\n' + b"[" * 100_000 + b'\n{"a": "\xff"}\r\n{"a": 2}')
    found = read(path)
    assert [entry[0] for entry in found] == [f"line {number}" for number in range(1, 7)]
    assert [found[0][1], found[5][1]] == [{"a": 1}, {"a": 2}]
    assert found[1][2] == "it is no JSON (Expecting value, character 7 of 8)"
    cut = tmp_path / "cut.jsonl"
    cut.write_text('{"a": 1}\n{"a": \n')
    assert read(cut)[1] == ("line 2", None, "it is no JSON (Expecting value, character 7 of 7)")
    assert found[2][1] is BLANK
    assert found[3][2] == "it is no JSON (it is nested too deeply)"
    # What is not UTF-8 is a matter of the text that holds it.
    with pytest.raises(MalformedRecord, match="characters that are none: it is not in UTF-8"):
        records_text = load_layout("twenty_questions").read
        records_text({"lines": [f"Is it {found[4][1]['a']}? Yes."], "correct": True, "word": "x"})


def test_lines_and_records_that_never_end_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST", 500)
    monkeypatch.setattr(records, "CHUNK", 64)
    lines, one_list = tmp_path / "a.jsonl", tmp_path / "b.json"
    lines.write_text('{"a": 1}\n"' + "x" * 3000 + '"\n{"a": 2}\n')
    one_list.write_text('[{"a": 1}, "' + "x" * 3000 + '", {"a": 2}]')
    assert read(lines)[1:] == [("line 2", None, "it is longer than 500 characters"), ("line 3", {"a": 2}, None)]
    (_, first, _), (place, _, problem) = read(one_list)
    assert (first, place) == ({"a": 1}, "record 2")
    assert problem is not None and problem.endswith("it is longer than 500 characters")


@pytest.mark.parametrize("name", ["a.json.gz", "a.jsonl.gz"])
def test_a_compressed_file_that_was_cut_off_is_told(name: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    values = [{"a": rng.random(), "b": list(range(20))} for _ in range(3000)]
    path = file(tmp_path, name, values)
    path.write_bytes(path.read_bytes()[:-5000])
    found = read(path)
    assert 0 < len(found) < 3000 and found[-1][2] is not None
    assert [entry[1] for entry in found[:-1]] == values[: len(found) - 1]
    assert "the compressed data are cut off or damaged" in found[-1][2] or "the file ends" in found[-1][2]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_memory_does_not_grow_with_the_file(name: str, tmp_path: Path) -> None:
    """6 MB of records, of which a reader may hold some pieces of 256 KB."""
    path = file(tmp_path, name, [{"number": number, "words": "word " * 100} for number in range(12_000)])
    size, count = path.stat().st_size, 0
    tracemalloc.start()
    try:
        for entry in read_entries(path):
            count += entry.problem is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 12_000 and size > 6_000_000
    assert peak < size / 3


def test_lists_of_steps_are_told_from_lists_of_records(tmp_path: Path) -> None:
    games = [WON, LOST]
    for name in ("a.json", "b.jsonl"):
        assert [entry[1] for entry in read(file(tmp_path, name, games), lists=True)] == games
    single = file(tmp_path, "c.jsonl", [WON])  # one line alone is one game
    assert [entry[1] for entry in read(single, lists=True)] == [WON]
    objects = file(tmp_path, "d.json", [MAZE_PO, MAZE_PO])
    assert [entry[1] for entry in read(objects, lists=True)] == [MAZE_PO, MAZE_PO]
    long = tmp_path / "e.jsonl"
    long.write_text('[{"state": "' + "x" * 300_000 + '"}]\n[]\n')
    assert [entry[0] for entry in read(long, lists=True)] == ["line 1", "line 2"]


# Maze ----------------------------------------------------------------------------------------------------------------
def test_a_walk_to_the_goal() -> None:
    found = draft("maze", MAZE)
    assert found.turns[1] == Turn(at("5", "6", "There is a wall above you.")[:-1], "go down", -4.0)
    assert [turn.reward for turn in found.turns] == [-1.0, -4.0, -1.0, -1.0, -1.0, 0.0]
    assert (found.final_observation, found.terminated, found.end_reason, found.success) == (
        "Success", True, "goal", True,
    )  # fmt: skip
    assert (found.num_invalid, found.env_kwargs, found.no_replay) == (1, {"start": [6, 6]}, "")
    assert found.info == {"start": [6, 6], "position": [8, 6]}


def test_a_cut_walk_with_digits_apart() -> None:
    first = at("1", "1 0", "There are walls above you, below you.")
    found = draft("maze", [step(first, "move right\n", -1.0, True)])
    assert found.turns == (Turn(first[:-1], "move right", -1.0),)
    assert (found.env_kwargs, found.terminated, found.end_reason) == ({"start": [1, 10]}, False, "record_end")
    assert found.final_observation == at("1", "1 1", "There are walls to your right, above you, below you.")[:-1]


def test_a_start_is_found_from_walls_alone() -> None:
    """Corridor, then a dead end on the right: (1, 10) in the right arm, or (1, 4) in the left one, reads alike."""
    found = draft("maze_po", MAZE_PO)
    assert found.env_kwargs == {"start": [1, 4]} and found.info["possible_starts"] == 2
    assert found.final_observation == CORRIDOR[:-1] and found.end_reason == "record_end"
    assert [turn.reward for turn in found.turns] == [-1.0, -1.0, -1.0]
    per_action = {**MAZE_PO, "rewards": [-1, -1, -1], "dones": [0, 0, 1]}
    assert draft("maze_po", per_action).turns == found.turns
    with_last = {key: [*value, last] for (key, value), last in zip(MAZE_PO.items(), (CORRIDOR, 0, False), strict=True)}
    assert draft("maze_po", with_last) == found


def test_the_environments_own_limit_is_told_from_the_collectors() -> None:
    stay = step(at("6", "6", BETWEEN), "move left\n", -1.0, False)
    hundred = draft("maze", [stay] * 99 + [{**stay, "done": True}])
    assert (hundred.end_reason, hundred.final_observation) == ("record_end", stay["state"][:-1])
    more = draft("maze", [stay] * 101)
    assert (more.terminated, more.end_reason, more.final_observation) == (False, "turn_limit", "Failure")
    assert "goes on with action 101 after 'Failure'" in refused("maze", [stay] * 102)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (changed(MAZE, 3, "reward", to=-2.0), "the reward of action 3, 'move left', is -2; by the rules it is -1"),
        (changed(MAZE, 5, "state", to=MAZE[0]["state"]), "text before action 5 is 'The goal is at position 8, 6. Your"),
        (changed(MAZE, 0, "state", to="There is a wall above you.\n"), "it gives no position"),
        (changed(MAZE, 0, "state", to=at("8", "6", "")), "it starts at [8, 6], where no episode can"),
        (changed(MAZE, 0, "state", to=at("9 9", "6", "")), "where no episode can"),
        ([*MAZE, MAZE[0]], "step 6 follows one that is done"),
        (changed(MAZE, 2, "action", to=7), "action of step 2 is 7; it must be a text"),
        (changed(MAZE, 2, "action"), "step 2 lacks action; it has ['state', 'reward', 'done']"),
        (changed(MAZE, 2, "reward", to="-1"), "reward of step 2 is '-1'; it must be a number"),
        (changed(MAZE, 2, "reward", to=float("nan")), "reward of step 2 is nan; it must be a number"),
        (changed(MAZE, 2, "reward", to=10**400), "it must be a number of at most 1e+12"),
        (changed(MAZE, 2, "done", to="no"), "done of step 2 is 'no'; it must be true or false"),
        ([], "there is no action"),
        (["move up"], "step 0 is 'move up'; it must be an object with state, action, reward, done"),
        ("8/6Q1/8/8/3k4/8/8/2K5 w - - 0 1", "the record is '8/6Q1/8"),
        (MAZE_PO, "it gives no position"),
    ],
)
def test_malformed_walks(record: Any, reason: str) -> None:
    assert reason in refused("maze", record)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (changed(MAZE_PO, "text_history", 4, to=CORRIDOR), "text before action 2 is 'There are walls above you, below"),
        ({**MAZE_PO, "rewards": [-1, -1]}, "there are 2 rewards for 3 actions in 6 texts; there must be one for each"),
        (changed(MAZE_PO, "rewards", 2, to=-1.0), "rewards has -1.0 for text 2, which is an observation"),
        (changed(MAZE_PO, "dones", 3, to=True), "action 1 is done, and 1 follow"),
        (changed(MAZE_PO, "dones"), "the record lacks dones; it has ['text_history', 'rewards']"),
        ({**MAZE_PO, "text_history": "x"}, "text_history is 'x'; it must be a list"),
        ({"text_history": [CORRIDOR], "rewards": [0], "dones": [False]}, "there is no action"),
        (None, "the record is None; it must be an object with text_history"),
    ],
)
def test_malformed_histories(record: Any, reason: str) -> None:
    assert reason in refused("maze_po", record)


def test_another_reward_is_an_option() -> None:
    rewards = [0, -1, 0, 0, 0, 1]
    record = [{**old, "reward": reward} for old, reward in zip(MAZE, rewards, strict=True)]
    assert "is 0; by the rules it is -1" in refused("maze", record)
    found = draft("maze", record, reward="illegal_penalty")
    assert found.env_kwargs == {"reward": "illegal_penalty", "start": [6, 6]}


# Text-Nav ------------------------------------------------------------------------------------------------------------
def test_a_won_game_of_the_house() -> None:
    found = draft("text_nav_po", TEXT_NAV_PO)
    assert [turn.action for turn in found.turns] == ["inventory", "eat the fridge", "close fridge"]
    assert [turn.reward for turn in found.turns] == [0.0, 0.0, 1.0]
    assert found.turns[2].observation == TEXT_NAV_PO["text_history"][4]
    assert (found.final_observation, found.terminated, found.end_reason, found.success) == (
        TEXT_NAV_PO["text_history"][6], True, "goal", True,
    )  # fmt: skip
    assert found.num_invalid == 1, "inventory is allowed though the list leaves it out"
    assert "TextWorld" in found.no_replay


def test_a_lost_and_a_cut_game_of_the_house() -> None:
    found = draft("text_nav", TEXT_NAV)
    assert (found.terminated, found.end_reason, found.success) == (True, "stale_food_eaten", False)
    history = ["\n\nA room.\n", "go north\n", "\nYou are carrying nothing.\n"]
    cut = draft("text_nav", {"text_history": history, "rewards": [0, 0, 0], "dones": [0, 1, 0]})
    assert cut.turns == (Turn("A room.", "go north", 0.0),) and cut.final_observation == "You are carrying nothing."
    assert (cut.terminated, cut.end_reason, cut.num_invalid) == (False, "record_end", 0)


@pytest.mark.parametrize(
    ("task", "record", "reason"),
    [
        (
            "text_nav_po",
            changed(TEXT_NAV_PO, "rewards", 1, to=1),
            "the rewards are [0.0, 1.0, 1.0]; all are 0, but the",
        ),
        ("text_nav_po", changed(TEXT_NAV_PO, "rewards", 2, to=0.5), "all are 0, but the last may be 1"),
        ("text_nav_po", TEXT_NAV, "text 2 says what is carried, so it is of text_nav"),
        ("text_nav", TEXT_NAV_PO, "no text says what is carried, so it is of text_nav_po"),
    ],
)
def test_malformed_games_of_the_house(task: str, record: Any, reason: str) -> None:
    assert reason in refused(task, record)


# Wordle --------------------------------------------------------------------------------------------------------------
def wordle(*pairs: tuple[str, str, float], done: bool = True) -> dict[str, Any]:
    sequence: list[Any] = [["Wordle:\n", 0.0]]
    rewards: list[float] = []
    for guess, marks, reward in pairs:
        sequence += [[" ".join(guess) + "\n", 1.0], [" ".join(marks) + "\n", 0.0]]
        rewards += [reward, 0.0]
    return {"sequence": sequence, "reward": rewards, "done": done}


LOST_GAME = wordle(*[("house", "bbbbb", -1)] * 6)


@pytest.fixture
def word_list(tmp_path: Path) -> str:
    path = tmp_path / "words.txt"
    path.write_text("aroma\ngully\nskull\nabide\nspeed\n")
    return str(path)


def test_a_won_game_of_words(word_list: str) -> None:
    assert wordle(("aroma", "bbbbb", -1), ("gully", "byygb", -1), ("skull", "ggggg", 0)) == WORDLE
    found = draft("wordle", WORDLE, vocab=word_list)
    assert found.turns == (
        Turn("Wordle:", "a r o m a", -1.0),
        Turn("b b b b b", "g u l l y", -1.0),
        Turn("b y y g b", "s k u l l", 0.0),
    )
    assert (found.final_observation, found.terminated, found.end_reason, found.success) == (
        "g g g g g", True, "solved", True,
    )  # fmt: skip
    assert (found.starts, found.no_replay, found.num_invalid) == (["skull"], "", 0)
    assert found.env_kwargs == {"vocab": word_list}


def test_a_game_of_words_of_another_list() -> None:
    found = draft("wordle", WORDLE)
    assert found.starts is None and "another list" in found.no_replay
    assert (found.success, found.info["word"]) == (True, "skull")


def test_lost_broken_off_and_invalid_guesses(word_list: str) -> None:
    lost = draft("wordle", LOST_GAME)
    assert (lost.terminated, lost.end_reason, lost.success) == (True, "out_of_tries", False)
    words = set(lost.starts or ())
    assert words and not any(set(word) & set("house") for word in words)
    cut = draft("wordle", wordle(("speed", "bbyyy", -1), done=False), vocab=word_list)
    assert (cut.terminated, cut.end_reason, cut.starts) == (False, "record_end", ["abide"])
    record = wordle(("zzzzz", "", -10), ("skull", "ggggg", 0))
    invalid = draft("wordle", record, vocab=word_list)
    assert invalid.turns[0] == Turn("Wordle:", "z z z z z", -10.0) and invalid.turns[1].observation == ""
    assert (invalid.num_invalid, invalid.env_kwargs["invalid_reward"], invalid.starts) == (1, -10.0, ["skull"])
    assert "by the rules it is -1" in refused("wordle", record, invalid_reward=-1)
    assert (
        "another list" in draft("wordle", wordle(("abide", "", -1), ("skull", "ggggg", 0)), vocab=word_list).no_replay
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (changed(WORDLE, "reward", 2, to=0.0), "the reward of guess 1 is 0; by the rules it is -1"),
        (changed(WORDLE, "reward", 1, to=-1.0), "the rewards [0.0, -1.0, -1.0"),
        ({**WORDLE, "reward": [-1, 0]}, "there are 2 rewards for 7 texts; all but the first must have one"),
        (changed(WORDLE, "sequence", 2, 0, to="<b><b><b><b><b>"), "the feedback on guess 0, 'a r o m a', is '<b><b>"),
        (changed(WORDLE, "sequence", 2, 0, to="bbbbb"), "it must be empty or five of b, y and g, such as 'b b b b b'"),
        (changed(WORDLE, "sequence", 2, 1, to=1.0), "text 2 is an action; observations and actions alternate"),
        (changed(WORDLE, "sequence", 0, 0, to="Wordl:"), "the first text is 'Wordl:'; it must be 'Wordle:'"),
        (changed(WORDLE, "sequence", 3, to=["x"]), "item 3 of sequence is ['x']; it must be a text and 0 or 1"),
        ({**WORDLE, "sequence": WORDLE["sequence"][:-1]}, "there are 6 texts; after the first they are guesses, each"),
        (wordle(*[("house", "bbbbb", -1)] * 7), "there are 7 guesses; at most 6 are allowed"),
        (wordle(("house", "ggggg", 0), ("house", "ggggg", 0)), "guess 0 is the word, and more follow"),
        (wordle(("house", "bbbbb", -1)), "it is done after 1 of 6 guesses, none of which is the word"),
    ],
)
def test_malformed_games_of_words(record: Any, reason: str) -> None:
    assert reason in refused("wordle", record)


def test_numbers_are_given_once_and_draw_what_is_wanted() -> None:
    def start_of(info: Mapping[str, Any]) -> str:
        return str(info["word"])[0]

    def draws(index: int) -> str:
        env = make_env("wordle")
        env.reset(episode_seed("wordle", "1.0", "train", index))
        return str(env.info["word"][0])

    letters = [draws(index) for index in range(3000)]
    asked: list[str] = random.Random(0).choices("abcs", k=60)
    first, numbers, used = Numbers("wordle", {}, "train", start_of), list[int](), set[int]()
    for letter in asked:
        wanted = next(index for index, found in enumerate(letters) if found == letter and index not in used)
        assert first.take([letter]) == wanted
        used.add(wanted)
        numbers.append(wanted)
    free = next(index for index in range(3000) if index not in used)
    assert first.take(None) == free
    again = Numbers("wordle", {}, "train", start_of)
    again.use([*numbers[:30], free])
    assert [again.take([letter]) for letter in asked[30:]] == numbers[30:], "as an import that goes on"


# Chess ---------------------------------------------------------------------------------------------------------------
def test_a_won_game_of_chess() -> None:
    found = draft("chess", WON)
    assert [turn.action for turn in found.turns] == ["e 4", "Q h 5", "B c 4", "Q x f 7 #"]
    assert found.turns[0].observation == spaced(chess.STARTING_FEN)
    assert [turn.reward for turn in found.turns] == [0.0, 0.0, 0.0, 1.0]
    assert (found.terminated, found.end_reason, found.success, found.no_replay) == (True, "checkmate", True, "")
    assert found.final_observation == spaced("r1bqkb1r/pppp1Qpp/2n2n2/4p3/2B1P3/8/PPPP1PPP/RNB1K1NR b KQkq - 0 4")
    assert found.info["opponent_moves"] == ["e7e5", "b8c6", "g8f6"] and found.env_kwargs == {}


def test_a_lost_game_of_chess_whose_last_answer_follows_from_the_reward() -> None:
    found = draft("chess", LOST)
    assert found.info["opponent_moves"] == ["e7e5", "d8h4"]
    assert (found.terminated, found.end_reason, found.success) == (True, "checkmate", False)
    assert found.final_observation == spaced("rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3")


def test_castling_capture_in_passing_and_promotion_of_black() -> None:
    moves = ["Ke2", "O-O", "b4", "cxb3", "Ke1", "b2", "Ke2", "b1=N", "Ke1", "Kh8", "Ke2"]
    record = chess_record("4k2r/8/8/8/2p5/8/1P6/4K3 w k - 0 1", moves, 0, done=False)
    found = draft("chess", record)
    assert found.info["opponent_moves"] == ["e8g8", "c4b3", "b3b2", "b2b1n", "g8h8"]
    assert found.final_observation is None and "does not tell Black's last answer" in found.no_replay
    assert (found.terminated, found.end_reason) == (False, "record_end")
    for place, fen in enumerate(old["state"] for old in record):
        assert found.turns[place].observation == fen


def test_a_square_for_capture_in_passing_is_written_by_either_rule() -> None:
    """After 1. a3 e5 many programs write e6, python-chess writes it where a pawn can capture there alone."""
    record = chess_record(None, ["a3", "e5", "a4"], 0, done=False)
    assert record[1]["state"].split("   ")[3] == "-"
    other = changed(record, 1, "state", to=record[1]["state"].replace("K Q k q   -", "K Q k q   e 6"))
    assert draft("chess", other).turns == draft("chess", record).turns


def test_two_ways_to_mate_leave_the_last_position_open() -> None:
    found = draft("chess", TWO_MATES)
    assert (found.terminated, found.end_reason, found.final_observation) == (True, "checkmate", None)
    assert "several answers" in found.no_replay


def test_illegal_moves_of_chess_keep_the_position() -> None:
    illegal = step(spaced(chess.STARTING_FEN), "e 5\n", -1.0, False)
    found = draft("chess", [illegal, *WON])
    assert found.num_invalid == 1 and found.turns[1].observation == found.turns[0].observation
    assert found.info["opponent_moves"] == ["e7e5", "b8c6", "g8f6"]
    last = draft("chess", [illegal])
    assert (last.end_reason, last.final_observation, last.no_replay) == ("record_end", spaced(chess.STARTING_FEN), "")


def test_an_endgame_starts_from_its_position() -> None:
    found = draft("chess_endgames", ENDGAME)
    assert found.env_kwargs == {"fen": "8/8/8/8/8/2k5/8/K6R w - - 0 1"}
    fen = test_positions()[7].fen
    board, legal = chess.Board(fen), chess.Board(fen).san(next(iter(chess.Board(fen).legal_moves)))
    with pytest.raises(LeftOutRecord, match="starts from a test position"):
        draft("chess_endgames", [step(spaced(board.fen()), spaced(legal), 0, False)])
    mirrored = board.transform(chess.flip_horizontal)
    with pytest.raises(LeftOutRecord, match="mirror image"):
        draft("chess_endgames", [step(spaced(mirrored.fen()), "K a 1", 0, False)])


NO_WAY = spaced("rnbqkbnr/pppp1ppp/8/8/4p3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (changed(WON, 1, "state", to=NO_WAY), "move 0, 'e 4': no move of Black leads from 'rnbqkbnr/pppppppp/8/8/4P3"),
        (changed(WON, 3, "reward", to=0), "the reward of move 3, 'Q x f 7 #' is 0; by the rules it is 1"),
        (changed(LOST, 0, "reward", to=-1), "the reward of move 0, 'f 3' is -1; by the rules it is 0"),
        (changed(WON[:3], 2, "reward", to=-1), "move 2, 'B c 4': the last reward is -1, but no answer of Black to the"),
        (changed(LOST, 0, "state", to="8/8 w"), "the first state is '8/8 w', which is no position in FEN"),
        (changed(LOST, 1, "state", to="8/8 w"), "no move of Black leads from 'rnbqkbnr/pppppppp/8/8/8/5P2/PPPPP1PP"),
        (
            changed(WON, 2, "state", to=WON[2]["state"].replace("2   3", "7   3")),
            "move 2 is from 'r1bqkbnr/pppp1ppp/2n",
        ),
        (changed(LOST, 0, "state", to=spaced("8/8/8/8/8/2k5/8/K6R b - - 0 1")), "legal positions with White to move"),
        (
            [step(spaced(chess.STARTING_FEN), "e 5", -1, False), step(NO_WAY, "e 4", 0, False)],
            "move 1 is from 'rnbqkbnr/pppp1ppp/8/8/4p3",
        ),
        ([*changed(WON, 3, "done", to=0), LOST[0]], "goes on with move 4, where the game is over (checkmate)"),
    ],
)
def test_malformed_games_of_chess(record: Any, reason: str) -> None:
    assert reason in refused("chess", record)


def test_single_moves_are_joined_to_games(tmp_path: Path) -> None:
    def single(games: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        for game in games:
            for old in game:
                fen = old["state"].replace("   ", "_").replace(" ", "").replace("_", " ")
                yield {**old, "from_state": fen, "action": old["action"].replace(" ", "").strip()} | {"state": None}

    cut, moves = WON[:2], list(single([WON, LOST, WON[:2], WON]))
    path = tmp_path / "moves.jsonl"
    rows = [lines_of(moves[:6]), lines_of(moves[6:8]), b"\n", lines_of(moves[8:10]), b"{broken\n", lines_of(moves[10:])]
    bc = lines_of([{"from_state": chess.STARTING_FEN, "action": "e4"}])
    path.write_bytes(b"".join([*rows, b"\n\n", bc, lines_of(moves[:4])]))
    layout = load_layout("chess")
    assert layout.join is not None
    found = [e for e in layout.join(read_entries(path, lists=True)) if e.value is not BLANK]
    assert [entry.place for entry in found] == ["line 1", "line 5", "line 7", "line 10", "line 17", "line 18"]
    drafts = [layout.draft(layout.read(entry.value), {}) for entry in found if entry.problem is None]
    assert drafts == [draft("chess", game) for game in (WON, LOST, cut, WON)]
    assert str(found[3].problem).startswith("line 12: it is no JSON")
    assert found[4].problem == "it is a move without reward, done, so that it belongs to no game"


def test_single_moves_that_no_line_ends_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hub_datasets.importers import chess_game

    monkeypatch.setattr(chess_game, "LONGEST_GAME", 3)
    move = {"from_state": chess.STARTING_FEN, "action": "e4", "reward": 0, "done": False}
    layout = load_layout("chess")
    assert layout.join is not None
    found = list(layout.join(read_entries(file(tmp_path, "a.jsonl", [move] * 7))))
    assert [(e.place, e.problem) for e in found[:2]] == [
        ("line 1", "none of its 3 lines ends the game"), ("line 4", "none of its 3 lines ends the game")
    ]  # fmt: skip
    assert (found[2].place, found[2].value) == ("line 7", [move])


# Questions -----------------------------------------------------------------------------------------------------------
def test_twenty_questions() -> None:
    found = draft("twenty_questions", QUESTIONS)
    assert found.turns == (
        Turn("Questions:", "Is it alive?", -1.0),
        Turn("No.", "Is it small? Is it red?", -1.0),
        Turn("Yes.", "Is it a tomato?", 0.0),
    )
    assert (found.final_observation, found.terminated, found.end_reason, found.success) == (
        "Yes.", True, "guessed", True,
    )  # fmt: skip
    assert found.info == {"word": ["Tomato", "Tomatoes"], "partner": "lmrl_gym", "partner_revision": "release"}
    assert (found.starts, found.no_replay) == (["Tomato"], "")
    lost = draft("twenty_questions", {**QUESTIONS, "lines": ["Is it alive? No."] * 20, "correct": False})
    assert (lost.terminated, lost.end_reason, [t.reward for t in lost.turns]) == (True, "out_of_questions", [-1.0] * 20)
    cut = draft("twenty_questions", {**QUESTIONS, "correct": 0})
    assert (cut.terminated, cut.end_reason, [t.reward for t in cut.turns]) == (False, "record_end", [-1.0] * 3)


def test_guess_my_city_has_answers_that_ask() -> None:
    found = draft("guess_my_city", CITY)
    assert found.turns == (
        Turn("Questions:", "Is it hot?", -1.0),
        Turn("Yes, do you like hot places? I do.", "What is spoken there?", -1.0),
    )
    assert found.final_observation == "Many languages." and found.starts == ["Singapore"]
    assert (found.info["city"], found.info["country"]) == ("singapore", "singapore")
    other_keys = {"lines": CITY["conversation"], "correct": False, "word": CITY["word"]}
    assert draft("guess_my_city", other_keys) == found


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            changed(QUESTIONS, "lines", 1, to="Is it small?"),
            "line 1 is 'Is it small?'; it must be a question with ?, a",
        ),
        (changed(QUESTIONS, "correct"), "the record has ['lines', 'word']; it must have lines and correct, or"),
        (changed(QUESTIONS, "word"), "the record lacks word; it has ['lines', 'correct']"),
        ({**QUESTIONS, "word": []}, "word is []; it must be a text, or a list of them"),
        ({**QUESTIONS, "correct": "yes"}, "correct is 'yes'; it must be true or false"),
        ({**QUESTIONS, "lines": []}, "there is no question"),
        ({**QUESTIONS, "lines": QUESTIONS["lines"] * 7}, "there are 21 questions; at most 20 are allowed"),
        (changed(QUESTIONS, "lines", 0, to="Is it \ud800? No."), "characters that are none"),
    ],
)
def test_malformed_questions(record: Any, reason: str) -> None:
    assert reason in refused("twenty_questions", record)


# Car Dealer ----------------------------------------------------------------------------------------------------------
def test_a_sale_of_the_first_schema() -> None:
    found = draft("car_dealer", CAR)
    assert found.turns == (
        Turn("Start", "Hello. How can I help?", 0.0),
        Turn("A Tesla, please.", "For you, $45,500.", 45.5),
    )
    assert (found.final_observation, found.terminated, found.end_reason, found.success) == (
        "Deal.", True, "accepted", True,
    )  # fmt: skip
    assert found.info["answers"] == [
        "A Tesla, please.", "Deal. Output: Decision=Accept MSRP=$60,000 Buy Price=$45,500"
    ]  # fmt: skip
    assert found.info["outcome"] == {"sold": True, "msrp": 60000.0, "price": 45500.0}
    assert found.info["buyer"]["budget"] == 50000.0 and found.info["buyer"]["preferred_brands"] == "a Tesla"
    output = {"car_bought": False, "msrp": 60000, "buy_price": 45500}
    rejected = draft("car_dealer", {**CAR, "output": output})
    assert (rejected.end_reason, rejected.success, rejected.turns[-1].reward) == ("rejected", False, 0.0)
    assert rejected.info["answers"][-1] == "Deal. Output: Decision=Reject MSRP=$60,000"
    dear = draft("car_dealer", {**CAR, "output": {"car_bought": True, "buy_price": 250_000}})
    assert dear.turns[-1].reward == 90.0, "the most that the environment pays"
    unpriced = draft("car_dealer", {**CAR, "output": {"car_bought": True}})
    assert (unpriced.success, unpriced.turns[-1].reward) == (True, 0.0)


def test_a_sale_of_the_second_schema() -> None:
    """The buyer begins, speaks twice at the end, and the last price above 0 is that of the last line but one."""
    found = draft("car_dealer", CAR_B)
    assert found.turns == (Turn("Start\nHi.", "Hello.", 0.0), Turn("How much?", "This much.", 62.5))
    assert found.final_observation == "Fine. Thank you." and found.success
    assert found.info["outcome"] == {"sold": True, "price": 62500.0, "probability": 0.8}
    assert found.info["buyer"]["budget"] == 90000.0
    doubtful = draft("car_dealer", changed(CAR_B, "lines", 4, "purchase_prob", to=49))
    assert (doubtful.success, doubtful.end_reason, doubtful.turns[-1].reward) == (False, "rejected", 0.0)
    thousands = draft("car_dealer", changed(CAR_B, "lines", 4, "purchase_price", to="61.5k"))
    assert thousands.turns[-1].reward == 61.5
    lines = [{**line, "purchase_price": None} for line in CAR_B["lines"]]
    assert draft("car_dealer", {**CAR_B, "lines": lines}).end_reason == "rejected"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (changed(CAR, "lines", 1, "role", to="Boss"), "role of line 1 is 'Boss'; known are seller, dealer, agent"),
        (changed(CAR, "lines", 1, "text"), "line 1 lacks text; it has ['role']"),
        (changed(CAR, "output"), "it has no output, and no line has a purchase_price"),
        (changed(CAR, "output", "car_bought"), "output lacks car_bought"),
        (changed(CAR, "output", "buy_price", to="a lot"), "buy_price is 'a lot'; it must be a number, such as 45000"),
        (changed(CAR, "output", "buy_price", to=-5), "buy_price is -5; it must be dollars, at least 0"),
        (changed(CAR, "output", "buy_price", to="9" * 20), "must be a number of at most 1e+12"),
        (
            changed(CAR_B, "lines", 4, "purchase_prob", to=180),
            "purchase_prob of line 4 is 180; it must be a probability",
        ),
        (changed(CAR, "buyer_info", "budget", to="much"), "budget is 'much'"),
        ({**CAR, "buyer_info": "polite"}, "buyer_info is 'polite'; it must be an object"),
        ({**CAR, "lines": CAR["lines"][2:3]}, "the seller says nothing"),
        ({**CAR, "lines": []}, "the seller says nothing"),
    ],
)
def test_malformed_sales(record: Any, reason: str) -> None:
    assert reason in refused("car_dealer", record)


# All layouts ---------------------------------------------------------------------------------------------------------
RECORDS: Mapping[str, list[Any]] = {
    "maze": [MAZE, MAZE[:2]],
    "maze_po": [MAZE_PO],
    "text_nav": [TEXT_NAV],
    "text_nav_po": [TEXT_NAV_PO],
    "wordle": [WORDLE, LOST_GAME, wordle(("zzzzz", "", -10), ("house", "ggggg", 0)), wordle(*[("zzzzz", "", -1)] * 6),
               wordle(*[("house", "bbbbb", -1)] * 2, done=False),
               wordle(*[("aroma", "bbbbb", -1)] * 5, ("zzzzz", "", -2))],
    "chess": [WON, LOST, WON[:2], TWO_MATES],
    "chess_endgames": [ENDGAME],
    "twenty_questions": [QUESTIONS, {**QUESTIONS, "word": "Unobtainium"}, {**QUESTIONS, "correct": False},
                         {**QUESTIONS, "lines": ["Is it alive? No."] * 20, "correct": False}],
    "guess_my_city": [CITY, {"lines": ["Is it Bombay? Yes, it is!"], "correct": True, "word": "bombay,india"}],
    "car_dealer": [CAR, CAR_B, {**CAR, "lines": CAR["lines"][:-1]}, {**CAR, "output": {"car_bought": False}}],
}  # fmt: skip
# Of Twenty Questions the one with a word that is unknown, and the one whose right question is said to be wrong.
UNPLAYED = {"wordle": 2, "chess": 2, "chess_endgames": 1, "text_nav": 1, "text_nav_po": 1, "twenty_questions": 2,
            "car_dealer": 1}  # fmt: skip


def test_every_layout_has_records_here() -> None:
    assert set(RECORDS) == set(LAYOUTS)


@pytest.mark.parametrize("task", RECORDS)
def test_an_imported_dataset_verifies(task: str, shared: Path, tmp_path: Path) -> None:
    values, folder = RECORDS[task], of_all_records(task, shared)
    found = verify(str(folder))
    assert found.problem is None
    assert (found.episodes, found.unplayed) == (len(values), UNPLAYED.get(task, 0))
    episodes = trajectories(folder)
    without = sum("no_replay" in episode.info["imported"] for episode in episodes)
    assert without == found.unplayed
    for episode in episodes:
        assert episode.behavior_policy == "lmrl_gym" and episode.info["imported"]["file"] == f"{task}.json"
        assert episode.seed == episode_seed(task, episode.task_version, "train", episode.index)
        assert "no_replay" in episode.info["imported"] or replay(episode) is None
    layout = load_layout(task)
    entries = read_entries(file(tmp_path, "lines.jsonl.gz", values), lists=layout.lists)
    found_turns = [layout.draft(layout.read(entry.value), {}).turns for entry in entries]
    assert found_turns == [episode.turns for episode in episodes]


@pytest.mark.parametrize("task", RECORDS)
def test_records_of_any_shape_are_drafts_or_malformed(task: str) -> None:
    rng = random.Random(1)
    junk = [None, True, 0, -1, 2.5, 10**400, "", "x", "g g g g g", "\ud800", [], {}, [[]], [{}], {"text": 3}, "? ? ?"]
    layout, kept = load_layout(task), 0
    for _ in range(400):
        record = copy.deepcopy(rng.choice(RECORDS[task]))
        for _ in range(rng.randrange(1, 3)):
            place: Any = record
            while isinstance(place, dict | list) and place:
                key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
                if rng.random() < 0.4 or not isinstance(place[key], dict | list):
                    if rng.random() < 0.2:
                        del place[key]
                    else:
                        place[key] = copy.deepcopy(rng.choice(junk))
                    break
                place = place[key]
        with suppress(MalformedRecord, LeftOutRecord):
            layout.draft(layout.read(record), {})
            kept += 1
    for value in junk:
        with pytest.raises(MalformedRecord):
            layout.draft(layout.read(value), {})
    assert kept < 300


def test_an_imported_row_that_was_changed_is_noticed(shared: Path) -> None:
    def problem(task: str, number: int = 0, **changes: Any) -> str:
        episode = trajectories(of_all_records(task, shared))[number]
        return str(_check_episode(to_row(replace(episode, **changes)))[1])

    def other(task: str, number: int, place: int, **changes: Any) -> tuple[Turn, ...]:
        turns = trajectories(of_all_records(task, shared))[number].turns
        return tuple(turn._replace(**changes) if at == place else turn for at, turn in enumerate(turns))

    for task, number in [("twenty_questions", 1), ("car_dealer", 1), ("text_nav", 0), ("wordle", 0), ("chess", 2)]:
        assert problem(task, number) == "None"
    assert "turn 1 is Turn(observation='No.', action='Is it small? Is it red?', reward=0.0), by the rules" in problem(
        "twenty_questions", 1, turns=other("twenty_questions", 1, 1, reward=0.0)
    )
    assert "by the rules it is" in problem("twenty_questions", 1, success=False)
    assert "num_invalid is 1, by the rules it is 0" in problem("twenty_questions", 1, num_invalid=1)
    assert "end_reason is 'bored'" in problem("twenty_questions", 1, end_reason="bored")
    assert "by the rules it is" in problem("car_dealer", 1, turns=other("car_dealer", 1, 1, reward=50.0))
    for task in ("twenty_questions", "car_dealer", "guess_my_city"):
        assert "does not replay: turn 0, reward" in problem(task, turns=other(task, 0, 0, reward=-0.5))
    assert "all are 0, but the last may be 1" in problem("text_nav", turns=other("text_nav", 0, 0, reward=1.0))
    assert "the reward of guess 1 is 5" in problem("wordle", turns=other("wordle", 0, 1, reward=5.0))
    assert "no move of Black leads" in problem("chess", 2, turns=other("chess", 2, 1, observation=NO_WAY))
    assert "does not replay" in problem("chess", 0, success=False)
    # A row cannot excuse itself from being played where all episodes can be.
    lazy = {"imported": {"file": "x", "place": "line 1", "no_replay": "its texts are TextWorld's"}}
    assert "known reasons are: none, such episodes always replay" in problem("maze", info=lazy)


# The dataset ---------------------------------------------------------------------------------------------------------
def test_the_folder_is_as_of_a_build(tmp_path: Path) -> None:
    train = file(tmp_path, "fully_observed_maze_data.jsonl", [MAZE, "no episode", MAZE[:3], MAZE])
    held_out = file(tmp_path, "maze_eval.json", [MAZE])
    folder = tmp_path / "out"
    manifest = import_files("maze", {"train": [train], "validation": [held_out]}, folder, shard_records=3)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "README.md", "lmrl_gym/returns.png", "lmrl_gym/stats.json", "lmrl_gym/train-00000-of-00002.parquet",
        "lmrl_gym/train-00001-of-00002.parquet", "lmrl_gym/validation-00000-of-00001.parquet",
        "tasks/test-00000-of-00001.parquet",
    ]  # fmt: skip
    assert read_manifests(folder) == [manifest]
    assert get_dataset_config_names(str(folder)) == ["lmrl_gym", "tasks"]
    plain = load_dataset(str(folder))
    assert {split: rows.num_rows for split, rows in plain.items()} == {"train": 3, "validation": 1}
    assert plain["train"]["index"] == [0, 2, 3], "the malformed record leaves a gap"
    assert plain["train"]["episode_id"][1] == "maze-lmrl_gym-train-0000002"
    assert list(load_episodes(str(folder), config="lmrl_gym", streaming=True)) == list(plain["train"])
    assert list(load_trajectories(str(folder))) == trajectories(folder), "what was imported is the default"
    with pytest.raises(ValueError, match=r"'episodes' not found. Available: \['lmrl_gym', 'tasks'\]"):
        load_episodes(str(folder), config="episodes")
    with pytest.raises(ValueError, match=r"'tasks' has no episodes but the columns task, .* there are lmrl_gym, tasks"):
        load_episodes(str(folder), "test", config="tasks")
    assert len(load_starts(str(folder))) == 800
    assert manifest["summary"]["episodes"] == 4 and manifest["splits"]["train"]["episodes"] == 3
    # MAZE returns -1 - 4 - 1 - 1 - 1 + 0 = -8, its first three steps -6.
    assert manifest["summary"]["mean_return"] == pytest.approx((3 * -8 - 6) / 4)
    assert manifest["splits"]["train"]["end_reasons"] == {"goal": 2, "record_end": 1}
    found = manifest["imported"]
    assert (found["records"], found["malformed"], found["left_out"], found["no_replay"]) == (5, 1, 0, {})
    assert found["problems"] == [{
        "file": "fully_observed_maze_data.jsonl", "place": "line 2", "kind": "malformed",
        "reason": "the record is 'no episode'; it must be an object with text_history, rewards, dones",
    }]  # fmt: skip
    assert [(f["name"], f["split"], f["bytes"]) for f in found["files"]] == [
        (train.name, "train", train.stat().st_size), (held_out.name, "validation", held_out.stat().st_size),
    ]  # fmt: skip
    card = (folder / "README.md").read_text()
    assert "`lmrl data import maze fully_observed_maze_data.jsonl --validation maze_eval.json`" in card
    assert "Of 5 records 4 are here; 1 were malformed, and 0 left out on purpose" in card
    assert "4 episodes replay exactly" in card and "## Reference scores" not in card
    assert "| `record_end` | 1 (25.0%) | the record ends there" in card


def test_an_import_lies_beside_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The build's reference scores are its own matter; here two episodes will do.
    score = build_module.reference_score
    monkeypatch.setattr(build_module, "reference_score", lambda task, policy, _, kwargs: score(task, policy, 2, kwargs))
    folder = tmp_path / "maze"
    build(make_plan("maze", episodes={"train": 3}), folder, workers=1)
    imported(tmp_path, "maze", [MAZE])
    assert get_dataset_config_names(str(folder)) == ["episodes", "lmrl_gym", "tasks"]
    found = [
        [one.behavior_policy for one in load_trajectories(str(folder), config=name)] for name in (None, "lmrl_gym")
    ]
    assert found == [["behavior"] * 3, ["lmrl_gym"]]
    card = (folder / "README.md").read_text()
    assert "`episodes` by `behavior`, `lmrl_gym` imported, see below" in card and "## Reference scores" in card
    assert verify(str(folder))[1:] == (4, 800, None, 0, 0)


def test_an_import_that_is_there_is_left_alone_and_others_are_refused(tmp_path: Path) -> None:
    folder = imported(tmp_path, "maze", [MAZE])
    parquet = folder / "lmrl_gym/train-00000-of-00001.parquet"
    written = parquet.stat().st_mtime_ns
    imported(tmp_path, "maze", [MAZE])
    assert parquet.stat().st_mtime_ns == written
    with pytest.raises(FileExistsError, match="already has a dataset 'lmrl_gym', built from another plan"):
        imported(tmp_path, "maze", [MAZE, MAZE])
    imported(tmp_path, "maze", [MAZE, MAZE], overwrite=True)
    assert len(trajectories(folder)) == 2


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("task", ["maze", "wordle"])
def test_an_interrupted_import_goes_on(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [*RECORDS[task], 7] * 3
    path = file(tmp_path, "records.json", values)
    import_files(task, {"train": [path]}, tmp_path / "whole", shard_records=4)
    parts, write = list[str](), imports_module.write_rows

    def stopping(rows: Any, work: Path, name: str, *rest: Any) -> None:
        if len(parts) == 2:
            raise KeyboardInterrupt
        parts.append(name)
        write(rows, work, name, *rest)

    def counting(rows: Any, work: Path, name: str, *rest: Any) -> None:
        parts.append(name)
        write(rows, work, name, *rest)

    monkeypatch.setattr(imports_module, "write_rows", stopping)
    with pytest.raises(KeyboardInterrupt):
        import_files(task, {"train": [path]}, tmp_path / "broken", shard_records=4)
    work = tmp_path / "broken/.build/lmrl_gym"
    assert sorted(found.name for found in work.glob("*.parquet")) == ["train-00000.parquet", "train-00001.parquet"]
    assert not (tmp_path / "broken/lmrl_gym/stats.json").exists()
    (work / "train-00000.parquet").write_bytes(b"damaged")
    with pytest.raises(FileExistsError, match="unfinished build of 'lmrl_gym' from another plan"):
        import_files(task, {"train": [path]}, tmp_path / "broken", shard_records=5)
    parts.clear()
    monkeypatch.setattr(imports_module, "write_rows", counting)
    import_files(task, {"train": [path]}, tmp_path / "broken", shard_records=4)
    # The damaged part and those that were missing; of 9 and of 21 records.
    missing = {"maze": [0, 2], "wordle": [0, 2, 3, 4, 5]}[task]
    assert parts == [f"train-{number:05d}.parquet" for number in missing]
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_strict_ends_at_the_first_malformed_record_and_leaves_nothing(tmp_path: Path) -> None:
    path = file(tmp_path, "walks.jsonl", [MAZE, MAZE[3:4], changed(MAZE, 0, "reward", to=5), MAZE])
    with pytest.raises(
        ValueError, match=r"^walks.jsonl, line 3: the reward of action 0, 'move up', is 5; by the rules"
    ):
        import_files("maze", {"train": [path]}, tmp_path / "out", strict=True)
    assert not (tmp_path / "out").exists()
    import_files("maze", {"train": [path]}, tmp_path / "out")
    with pytest.raises(ValueError, match=r"walks.jsonl, line 3: .*; mend the file, or import without --strict"):
        import_files("maze", {"train": [path]}, tmp_path / "out", strict=True)
    assert len(trajectories(tmp_path / "out")) == 3, "a finished import is not removed"


def test_left_out_records_are_counted_and_not_fatal(tmp_path: Path) -> None:
    fen = test_positions()[0].fen
    taboo = chess_record(fen, [chess.Board(fen).san(next(iter(chess.Board(fen).legal_moves)))], 0, done=False)
    folder = imported(tmp_path, "chess_endgames", [taboo, ENDGAME], strict=True)
    (manifest,) = read_manifests(folder)
    assert (manifest["imported"]["left_out"], manifest["imported"]["malformed"]) == (1, 0)
    assert [episode.index for episode in trajectories(folder)] == [1]


def test_files_without_an_episode_are_an_error(tmp_path: Path) -> None:
    wrong, empty = file(tmp_path, "wrong.json", [CAR, CAR]), file(tmp_path, "empty.json", [])
    with pytest.raises(
        ValueError, match=r"none of the 2 records of wrong.json is an episode of maze, such as wrong.json"
    ):
        import_files("maze", {"train": [wrong]}, tmp_path / "out")
    with pytest.raises(ValueError, match=r"none of the 0 records of empty.json is an episode of maze$"):
        import_files("maze", {"train": [file(tmp_path, "a.json", [MAZE])], "validation": [empty]}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "mase"}, "unknown layout 'mase'; did you mean 'maze'"),
        ({"files": {}}, "there are no files to import"),
        ({"files": {"test": [Path("a")]}}, r"unknown splits \['test'\]; an import has train and validation"),
        ({"config": "tasks"}, "config is 'tasks'"),
        ({"env_kwargs": {"rewards": "standard"}}, "did you mean 'reward'"),
        ({"env_kwargs": {"maze": "big"}}, "maze is 'big'"),
        ({"task": "text_nav", "env_kwargs": {"start": "office"}}, "imports of text_nav take none"),
        ({"shard_records": 0}, "shard_records is 0"),
    ],
)
def test_impossible_imports_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {"task": "maze", "files": {"train": [file(tmp_path, "a.json", [MAZE])]}, **arguments}
    with pytest.raises(ValueError, match=message):
        import_files(folder=tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_missing_and_doubled_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.json is no file"):
        import_files("maze", {"train": [tmp_path / "nowhere.json"]}, tmp_path / "out")
    paths = [file(tmp_path, name, [MAZE]) for name in ("a.json", "b.json")]
    with pytest.raises(ValueError, match="a file is given twice, or two have the same content"):
        import_files("maze", {"train": paths[:1], "validation": paths[1:]}, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train_data.jsonl", "train"),
        ("eval_data.jsonl", "validation"),
        ("guess_my_city_eval_bc.json", "validation"),
        ("guess_my_city_train_bc.json", "train"),
        ("val.jsonl.gz", "validation"),
        ("VAL_BC.jsonl", "validation"),
        ("evaluated_policy.jsonl", "train"),
        ("retrieval.json", "train"),
        ("fully_observed_maze_data.jsonl", "train"),
    ],
)
def test_names_suggest_splits(name: str, split: str) -> None:
    assert guess_split(Path("eval") / name) == split


# The command ---------------------------------------------------------------------------------------------------------
def test_the_command_counts_and_lists(tmp_path: Path) -> None:
    train = file(tmp_path, "train.jsonl", [MAZE, *[changed(MAZE, 1, "reward", to=3)] * 12])
    held_out = file(tmp_path, "eval.json.gz", [MAZE[:4]])
    more = file(tmp_path, "more.json", [MAZE[:5]])
    output = tmp_path / "out"
    done = CliRunner().invoke(
        app, ["import", "maze", str(train), str(held_out), "--validation", str(more), "--output", str(output)]
    )
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "15 records, 3 episodes, of which 3 replay exactly 12 malformed, not imported:" in words
    assert "train.jsonl, line 2: the reward of action 1, 'go down', is 3; by the rules it is -4" in words
    assert "line 11:" in words and "line 12:" not in words and "and 2 more; lmrl_gym/stats.json lists" in words
    assert f"imported {output}, configuration lmrl_gym".replace(" ", "") in words.replace(" ", "")
    assert [len(trajectories(output, split)) for split in ("train", "validation")] == [1, 2]
    checked = CliRunner().invoke(app, ["verify", str(output)])
    assert "3 episodes replay exactly, 800 test starts are right" in " ".join(checked.output.split())


def test_the_command_says_what_could_not_be_played(tmp_path: Path) -> None:
    path = file(tmp_path, "games.jsonl", RECORDS["wordle"])
    output = tmp_path / "out"
    arguments = ["import", "wordle", str(path), "--split", "validation", "--output", str(output)]
    done = CliRunner().invoke(app, arguments)
    words = " ".join(done.output.split())
    assert "6 records, 6 episodes, of which 4 replay exactly 2 do not replay: no word of the list fits" in words
    checked = " ".join(CliRunner().invoke(app, ["verify", str(output)]).output.split())
    assert "4 episodes replay exactly, 2 imported ones cannot be played again and keep the rules, 4,096 test" in checked
    assert get_dataset_config_names(str(output)) == ["lmrl_gym", "tasks"]


def test_help_lists_the_layouts() -> None:
    done = CliRunner().invoke(app, ["import", "--help"])
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    for name, (_, words) in LAYOUTS.items():
        assert f"{name} {words}" in lines
        assert load_task(name).spec.id == name
