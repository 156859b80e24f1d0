"""The report's page in a headless Chromium: leaderboards sort, transcripts are found, compared and drawn."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from typer.testing import CliRunner

from env_servers.policy import Action, Context, ScriptedPolicy
from eval_harness import cli
from eval_harness.log import read_episodes
from eval_harness.report_page import PageTable, write_html
from eval_harness.run import evaluate_policy
from eval_harness.score import ScoredRun

ATTACK = "</script><img src=x onerror=\"document.title='broken in'\"> <b>Straße</b> &amp;"
START = {"start": [5, 3]}


def played(folder: Path, task: str, name: str, words: Sequence[str], **options: Any) -> ScoredRun:
    """Two episodes of a model that says these words in turn, the last of them again and again."""

    class Talker:
        name = "talker"

        def act(self, contexts: Sequence[Context]) -> list[Action]:
            said = [words[min(len(context.history), len(words) - 1)] for context in contexts]
            return [Action(text, token_ids=(1,), finish_reason="length" if text == ATTACK else "stop") for text in said]

    identity = {"kind": "language model", "name": name, "revision": None}
    output = folder / f"{task} {name[:4]}"
    return evaluate_policy(
        task, Talker(), identity=identity, env_kwargs=options, episodes=2, output=output, progress=False
    ).scored


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ScoredRun]:
    """Two models that go from (5, 3) to the goal at (8, 6), one of which stumbles; one of Wordle; one of chess."""
    folder = tmp_path_factory.mktemp("it's a folder")
    right = ["move right"] * 3
    return [
        played(folder, "maze", "good", [*right, "move down"], **START),
        played(folder, "maze", "attacker <b>x</b>", ["move up", ATTACK, "move down", *right, "move down"], **START),
        played(folder, "wordle", "good", ["h o u s e", "nonsense", "s l o t h"]),
        played(folder, "chess", "pawn", ["e 4", "Z 9"], opponent="random", max_moves=2),
    ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="module")
def address(runs: list[ScoredRun], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html(runs, path, over_tasks=[PageTable("Pairs <i>", ["Pair", "Better"], [["a over b", "-0.5 <b>"]], "Note.")])
    return path.as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Browser]:
    browser.open(address)
    browser.wait("document.querySelector('#transcript h3') !== null")
    yield browser
    assert browser.complaints == []
    assert browser.ask("document.title") == "Evaluation report"
    assert browser.ask("document.querySelectorAll('img, main b').length") == 0


def texts(page: Browser, selector: str) -> list[str]:
    found: list[str] = page.ask(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")
    return found


def choose(page: Browser, name: str, text: str) -> None:
    """Choose an option by its text."""
    page.ask(
        f"(() => {{ const one = document.getElementById({json.dumps(name)});"
        f" one.value = [...one.options].find(o => o.text === {json.dumps(text)}).value;"
        " one.dispatchEvent(new Event('change')); })()"
    )


def opened(page: Browser, words: str) -> None:
    """Wait until the open transcript is the one whose heading has these words."""
    page.wait(f"document.querySelector('#transcript .bar')?.textContent.includes({json.dumps(words)})")


def slide(page: Browser, place: int, gallery: int = 0) -> None:
    page.ask(
        f"(() => {{ const one = document.querySelectorAll('.gallery input')[{gallery}]; one.value = {place};"
        " one.dispatchEvent(new Event('input')); })()"
    )


# Leaderboards ------------------------------------------------------------------------------------------------------


def test_a_leaderboard_sorts_by_the_column_that_is_clicked(page: Browser) -> None:
    table = "[aria-label='Results on Maze (fully observed)']"
    names = f"{table} tbody th"
    assert texts(page, names) == ["good", "attacker <b>x</b>"], "the highest return first"
    page.click(f"{table} thead th:nth-child(3) button")
    assert texts(page, names) == ["attacker <b>x</b>", "good"]
    assert page.ask(f'document.querySelector("{table} [aria-sort]").textContent') == "Return"
    page.click(f"{table} thead th:nth-child(5) button")  # lengths 9 and 6
    assert texts(page, names) == ["attacker <b>x</b>", "good"]
    page.press("Enter")
    assert texts(page, names) == ["good", "attacker <b>x</b>"]


def test_the_section_over_tasks_has_a_row_per_model_and_the_tables_given(page: Browser) -> None:
    rows = texts(page, "#over-tasks [aria-label='Scores over tasks'] tbody tr")
    assert len(rows) == 3 and rows[0].startswith("good–2 of 3 tasks")
    assert texts(page, "#over-tasks h3") == ["Pairs <i>"]
    assert texts(page, "#over-tasks [aria-label='Pairs <i>'] td") == ["−0.5 <b>"]


# Transcripts -------------------------------------------------------------------------------------------------------


def test_search_finds_texts_whatever_their_case_and_marks_them(page: Browser) -> None:
    page.ask("document.getElementById('text').focus()")
    page.type("<B>stra")
    page.wait("document.getElementById('count').textContent === '2 of 8 episodes'")
    opened(page, "attacker <b>x</b>")
    assert texts(page, "#transcript mark") == ["<b>Stra"]
    assert ATTACK in texts(page, "#transcript .message p")
    page.ask("document.getElementById('text').select()")
    page.type("nowhere")
    page.wait("document.querySelector('#transcript .empty') !== null")
    page.click("#transcript .step")
    page.wait("document.getElementById('count').textContent === '8 episodes'")


@pytest.mark.parametrize(
    ("outcome", "count"),
    [
        ("Success", 4), ("No success", 4), ("With invalid actions", 6), ("Truncated (cut by a limit)", 2),
        ("With actions cut at the token limit", 2), ("Ended by: out of tries", 2),
    ],
)  # fmt: skip
def test_outcomes_filter(page: Browser, outcome: str, count: int) -> None:
    choose(page, "outcome", outcome)
    page.wait(f"document.getElementById('count').textContent === '{count} of 8 episodes'")
    assert len(texts(page, "#list button")) == count


def test_worst_and_best_come_first(page: Browser) -> None:
    choose(page, "order", "Worst: lowest return first")
    page.wait("document.querySelector('#list .value').textContent === '\\u221211'")  # -1 -4 -1, -1 -1 -1, -1 -1 0
    choose(page, "order", "Best: highest return first")
    page.wait("document.querySelector('#list .value').textContent === '\\u22122'")  # of chess: 0, -1, -1


def test_two_runs_are_compared_side_by_side(page: Browser) -> None:
    choose(page, "model", "good, Maze (fully observed)")
    assert texts(page, "#compare option") == ["Nothing", "attacker <b>x</b>, Maze (fully observed)"]
    choose(page, "compare", "attacker <b>x</b>, Maze (fully observed)")
    opened(page, "good against attacker <b>x</b>")
    assert texts(page, "#count") == ["2 disagreements in 2 episodes of both"]
    assert page.ask("document.getElementById('order').selectedOptions[0].text") == "Largest difference first"
    assert texts(page, "#list .value")[:2] == ["−5 → −11", "−6"]
    assert texts(page, "#transcript h4") == ["good", "attacker <b>x</b>"]
    assert [len(texts(page, f"#transcript section:nth-child({n}) .turns li")) for n in (1, 2)] == [6, 9]
    choose(page, "model", "good, Wordle")
    opened(page, "good, Wordle")
    assert texts(page, "#compare option") == ["Nothing"], "nothing else was played on these episodes"


def test_an_address_names_an_episode(page: Browser, address: str) -> None:
    page.click("#list li:nth-child(5) button")
    opened(page, "good, Wordle")
    named = page.ask("location.href")
    assert named == f"{address}#episode-4"
    page.open(named)
    opened(page, "good, Wordle")


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(page: Browser, width: int) -> None:
    page.resize(width, 800)
    for model in ("pawn, Chess", "attacker <b>x</b>, Maze (fully observed)"):
        choose(page, "model", model)
        opened(page, model)
        assert page.ask("document.documentElement.scrollWidth") == width
        assert page.ask("(one => one.scrollWidth - one.clientWidth)(document.getElementById('transcript'))") == 0
    choose(page, "compare", "good, Maze (fully observed)")
    opened(page, "against good")
    assert page.ask("document.documentElement.scrollWidth") == width


def test_all_that_can_be_chosen_has_a_name(page: Browser) -> None:
    nameless = page.ask(
        "[...document.querySelectorAll('button, select, input')].filter(one =>"
        " !one.textContent.trim() && !one.labels?.length && !one.getAttribute('aria-label')).length"
    )
    assert nameless == 0


# States ------------------------------------------------------------------------------------------------------------


def test_the_maze_shows_the_way_to_the_action_chosen(page: Browser) -> None:
    choose(page, "model", "attacker <b>x</b>, Maze (fully observed)")
    opened(page, "attacker")
    label = "document.querySelector('.gallery svg').getAttribute('aria-label')"
    assert page.ask(label) == "Maze, the agent in row 8, column 6"
    # Up from (5, 3), a word that is no move, down again, three to the right, down.
    for place, cell in enumerate([(5, 3), (4, 3), (4, 3), (5, 3), (5, 4), (5, 5), (5, 6)]):
        slide(page, place)
        assert page.ask(label) == f"Maze, the agent in row {cell[0]}, column {cell[1]}"
    assert page.ask("document.querySelector('.gallery .way').getAttribute('d')").count("L") == 6
    page.click(".turns li:nth-child(1) .draw")
    assert page.ask(label) == "Maze, the agent in row 4, column 3"
    page.click(".controls .step")
    assert texts(page, ".gallery figcaption") == ["at the start"]
    page.ask("document.querySelector('.gallery input').focus()")
    page.press("ArrowRight")
    assert texts(page, ".gallery figcaption") == ["after action 1 of 9"]


def test_wordle_colours_each_letter_by_its_mark(page: Browser, runs: list[ScoredRun]) -> None:
    choose(page, "model", "good, Wordle")
    opened(page, "good, Wordle")
    (trajectory, _), *_ = read_episodes(runs[2].folder)
    word = trajectory.info["word"]
    expected = ["g" if a == b else "y" if a in word else "b" for a, b in zip("house", word, strict=True)]
    kinds = page.ask("[...document.querySelectorAll('.gallery .tile')].map(one => one.classList[1])")
    assert kinds[:5] == expected and kinds[5:10] == ["refused"] * 5
    assert texts(page, ".gallery .letter")[:6] == ["H", "O", "U", "S", "E", "not a word"]
    assert texts(page, ".gallery figcaption") == [f"after action 6 of 6. Hidden word: {word}"]
    slide(page, 1)
    kinds = page.ask("[...document.querySelectorAll('.gallery .tile')].map(one => one.classList[1])")
    assert kinds == [*expected, *["empty"] * 25]


def test_the_chess_board_is_the_position_and_shows_what_moved(page: Browser) -> None:
    choose(page, "model", "pawn, Chess")
    opened(page, "pawn, Chess")
    slide(page, 0)
    label = "document.querySelector('.gallery svg').getAttribute('aria-label')"
    assert page.ask(label).count("pawn") == 16 and page.ask(label).startswith(
        "Chess board: black rook a8, black knight b8"
    )
    assert page.ask("document.querySelectorAll('.changed').length") == 0
    slide(page, 1)
    assert "white pawn e4" in page.ask(label) and "white pawn e2" not in page.ask(label)
    assert page.ask("document.querySelectorAll('.changed').length") == 4  # of e4 and of the answer
    slide(page, 2)  # a move that cannot be read
    assert page.ask("document.querySelectorAll('.changed').length") == 0


# Commands ----------------------------------------------------------------------------------------------------------


def test_commands_name_the_episode_for_a_shell_and_are_copied(page: Browser, runs: list[ScoredRun]) -> None:
    choose(page, "model", "good, Maze (fully observed)")
    opened(page, "good, Maze")
    (trajectory, _), *_ = read_episodes(runs[0].folder)
    watch, play = [shlex.split(text) for text in texts(page, ".command code")]
    assert watch == ["lmrl", "play", "--from", f"{runs[0].folder}:0"] and "'" in watch[3]
    assert play == ["lmrl", "play", "maze", "--seed", str(trajectory.seed), "--option=start=[5, 3]"]
    page.click(".command button")
    page.wait("['Copied', 'Marked'].includes(document.querySelector('.command button').textContent)")


def test_report_writes_all_forms_and_opens_the_page(
    runs: list[ScoredRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def show(url: str) -> bool:
        shown.append(url)
        return len(shown) == 1

    monkeypatch.setattr("webbrowser.open", show)
    monkeypatch.chdir(tmp_path)
    folders = [str(run.folder) for run in runs[:2]]
    done = CliRunner().invoke(cli.report_app, [*folders, "--open", "--csv", "a.csv", "--latex", "a.tex"])
    assert done.exit_code == 0, done.output
    page = runs[0].folder.parent / "report.html"
    assert shown == [page.as_uri()] and page.read_text().startswith("<!doctype html>")
    assert (tmp_path / "a.csv").read_text().startswith("task,") and "toprule" in (tmp_path / "a.tex").read_text()
    done = CliRunner().invoke(cli.report_app, [folders[0], "--open", "--html", "mine.html"])
    assert shown[1] == (tmp_path / "mine.html").as_uri()
    assert "no browser was found here; open mine.html in one yourself" in done.output


def test_a_script_of_a_task_without_pictures_shows_words_alone(browser: Browser, tmp_path: Path) -> None:
    policy = ScriptedPolicy("asker", lambda context: "Is it alive?")
    scored = evaluate_policy("twenty_questions", policy, episodes=1, output=tmp_path / "r", progress=False).scored
    write_html([scored], tmp_path / "page.html")
    browser.open((tmp_path / "page.html").as_uri())
    browser.wait("document.querySelectorAll('.turns li').length === 20")
    assert browser.ask("document.querySelectorAll('.gallery, .draw, #over-tasks').length") == 0
    assert browser.ask("document.getElementById('compare-label').hidden") is True
    assert browser.complaints == []
