"""Reports and pushed results: numbers equal the scores, texts of models stay text, pushing again replaces.

This file is also the script that talks with the test Hub: `python test_report.py <run folder> <run folder>`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from scipy import stats

from env_servers.policy import Action, Context, ScriptedPolicy
from env_servers.scores import Interval
from eval_harness import plots
from eval_harness.log import read_episodes
from eval_harness.report import escape_latex, labels, settings, to_csv, to_json, to_latex, to_markdown, to_table
from eval_harness.report_page import CHUNK, invalid_by_turn, learning_curves, write_html
from eval_harness.results import push_results, put_block, render_block, render_yaml
from eval_harness.run import evaluate_policy, run
from eval_harness.score import ScoredRun, score

ATTACK = "</script><img src=x onerror=alert(1)><!-- <script> {{note}} {{transcripts}} & \u2028 \"'"


def flow_results(first: str, second: str) -> Any:
    """Push, push the same, push another run of the task, then of another task; as a pull request; to nobody."""
    from huggingface_hub import HfApi

    api, one, two = HfApi(), score(first), score(second)
    api.create_repo("alice/maze-bc")
    api.upload_file(path_or_fileobj=b"# Mine\r\n\r\nWords.\r\n", path_in_repo="README.md", repo_id="alice/maze-bc")
    head = api.model_info("alice/maze-bc").sha
    pushed = push_results(one, "alice/maze-bc")
    again = push_results(one, "alice/maze-bc")
    other = push_results(two, "alice/maze-bc")
    proposed = push_results(one, "alice/maze-bc", create_pr=True)
    try:
        push_results(one, "alice/absent")
        missing = ""
    except FileNotFoundError as error:
        missing = str(error)
    commits = [commit.title for commit in api.list_repo_commits("alice/maze-bc")]
    return {"head": head, "pushed": pushed, "again": again, "other": other, "proposed": proposed, "missing": missing,
            "commits": commits}  # fmt: skip


if __name__ == "__main__":
    print("RESULT " + json.dumps(flow_results(sys.argv[1], sys.argv[2])))
    sys.exit()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ScoredRun]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        run(task, f"scripted:{name}", episodes=count, output=folder / f"{task}-{name}", progress=False).scored
        for task, name, count in (("maze", "random", 60), ("maze", "optimal", 25), ("maze_po", "best_memory", 1))
    ]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    """A model that answers with markup now and then, and has some in its name."""

    class Attacker:
        name = "attacker"

        def act(self, contexts: Sequence[Context]) -> list[Action]:
            return [
                Action("move down" if context.history else ATTACK, token_ids=(1, 2), finish_reason="length")
                for context in contexts
            ]

    identity = {
        "kind": "language model", "name": "org/<b>model</b>|x", "revision": "0123456789abcdef" * 2,
        "dtype": "float32", "device": "cpu", "rendering": "plain", "sampling": {"temperature": 0.5, "top_k": 0},
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("attacked") / "r"
    return evaluate_policy(
        "maze", Attacker(), identity=identity, env_kwargs={"start": [6, 6]}, episodes=3, output=folder, progress=False
    ).scored


# Tables ------------------------------------------------------------------------------------------------------------


def test_the_terminal_table_has_the_numbers_and_fits_80_columns(runs: list[ScoredRun]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(to_table(runs))
    text = console.export_text()
    assert "…" not in text
    assert [line.rstrip() for line in text.splitlines() if line.startswith("maze")] == [
        "maze",  # whose runs have different numbers of episodes, told by each
        "maze_po, 1 episode each",
    ]
    assert sum(line.startswith("25 episodes") for line in text.splitlines()) >= 1
    optimal = next(line for line in text.splitlines() if " -6.84 " in line)
    assert optimal.split()[1:] == ["-6.84", "100.0", "%", "7.8", "0.0", "%", "100.0", "100.0"]
    returns = [episode.trajectory.episode_return for episode in read_episodes(runs[1].folder)]
    low, high = stats.t.interval(0.95, 24, loc=-6.84, scale=stats.sem(returns))
    assert f"[{low:.2f}, {high:.2f}]" in text


def test_json_is_the_results_of_each_run_with_its_folder(runs: list[ScoredRun]) -> None:
    for record, scored in zip(json.loads(to_json(runs))["runs"], runs, strict=True):
        assert record.pop("folder") == str(scored.folder)
        assert record == json.loads((scored.folder / "results.json").read_text())


def test_markdown_has_a_table_per_task_and_escapes_names(runs: list[ScoredRun], attacked: ScoredRun) -> None:
    text = to_markdown([*runs, attacked])
    assert text.count("## Maze") == 2
    assert "| scripted:optimal | 25 | -6.84 [" in text
    assert r"| org/\<b\>model\</b\>\|x | 3 |" in text
    of_runs = text.partition("Intervals are 95 %")[0]  # what follows has tables of other widths
    rows = [line for line in of_runs.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {9}
    assert "revision 0123456789abcdef0123456789abcdef" in text and "temperature 0.5" in text


def test_csv_has_the_unrounded_numbers_a_line_per_run(runs: list[ScoredRun], attacked: ScoredRun) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv([*runs, attacked]))))
    assert [float(line["mean_return"]) for line in lines] == [r.summary.mean_return for r in [*runs, attacked]]
    assert lines[1]["model"] == "scripted:optimal" and lines[1]["score_paper"] == str(runs[1].normalized["paper"])
    assert (lines[2]["mean_return_low"], lines[2]["episodes"], lines[2]["asked_for"]) == ("", "1", "1")
    assert lines[3]["revision"] == "0123456789abcdef" * 2 and lines[3]["cut_actions"] == "9"


def test_latex_has_a_row_per_run_its_intervals_below_and_escapes_names(
    runs: list[ScoredRun], attacked: ScoredRun
) -> None:
    lines = to_latex([*runs, attacked]).splitlines()
    assert lines[1:3] == [r"\begin{tabular}{lrrrrrrr}", r"\toprule"] and r"\end{tabular}" in lines
    optimal = lines.index(next(line for line in lines if line.startswith("scripted:optimal")))
    assert lines[optimal] == (r"scripted:optimal & 25 & $-$6.84 & 100.0 \% & 7.8 & 0.0 \% & 100.0 & 100.0 \\")
    low, high = runs[1].summary.return_interval
    assert rf"{{\footnotesize {{[}}$-${-low:.2f}, $-${-high:.2f}]}}" in lines[optimal + 1]
    assert any(line.startswith("scripted:best\\_memory & 1 & ") for line in lines)
    assert all(line.count(" & ") == 7 for line in lines if line.endswith(r"\\") and "multicolumn" not in line)


def test_latex_escapes_all_that_it_would_read() -> None:
    assert escape_latex("a_b{c}%\\[x]^~#$&") == (
        r"a\_b\{c\}\%\textbackslash{}{[}x]\textasciicircum{}\textasciitilde{}\#\$\&"
    )


def test_labels_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    made = [
        run("maze", f"scripted:{name}", episodes=1, seed=seed, output=tmp_path / folder, progress=False).scored
        for folder, name, seed in (("a", "random", 0), ("b", "random", 1), ("c", "optimal", 0), ("d", "random", 1))
    ]
    assert labels(made) == [
        "scripted:random seed 0",
        f"scripted:random seed 1 ({tmp_path / 'b'})",
        "scripted:optimal",
        f"scripted:random seed 1 ({tmp_path / 'd'})",
    ]


def test_settings_tell_what_a_reader_needs_to_run_it_again(attacked: ScoredRun) -> None:
    told = settings(attacked)
    assert told["model"] == "org/<b>model</b>|x" and told["revision"] == "0123456789abcdef" * 2
    assert told["options of the task"] == '{"start": [6, 6]}'
    assert (told["temperature"], told["top k"], told["seed"], told["batch"]) == ("0.5", "0", "0", "32")
    assert "torch " in told["versions"] and "starts from" not in told


# Page --------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would see: tags with their attributes, text of scripts by id, text of table rows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.rows: list[list[str]] = []
        self._inside: str | None = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._inside = dict(attrs).get("id") or "main"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data
        elif self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def unpack(text: str) -> Any:
    """What a chunk of transcripts holds."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


@pytest.fixture(scope="module")
def page(runs: list[ScoredRun], attacked: ScoredRun, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html([*runs, attacked], path)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    return Page(path)


def test_texts_of_models_never_become_markup(page: Page) -> None:
    names = [tag for tag, _ in page.tags]
    chunks = -(-(60 + 25 + 1 + 3) // CHUNK)
    assert names.count("script") == chunks + 2
    assert not {"img", "b", "iframe", "object", "link", "base", "form"} & set(names)
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)
    turns = unpack(page.scripts[f"chunk-{chunks - 1}"])[-1]["turns"]
    assert turns[0][1] == ATTACK


def test_the_page_asks_for_nothing_outside_and_runs_one_script(page: Page) -> None:
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    digest = base64.b64encode(hashlib.sha256(page.scripts["main"].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not any({"src", "href"} & set(attributes) for _, attributes in page.tags)


def test_every_transcript_is_in_the_page(page: Page, runs: list[ScoredRun], attacked: ScoredRun) -> None:
    index = json.loads(page.scripts["index"])
    assert [entry["label"] for entry in index["runs"]] == labels([*runs, attacked])
    shown = [
        item
        for number in range(-(-len(index["episodes"]) // CHUNK))
        for item in unpack(page.scripts[f"chunk-{number}"])
    ]
    logged = [(n, episode) for n, one in enumerate([*runs, attacked]) for episode in read_episodes(one.folder)]
    assert len(logged) == len(shown) == len(index["episodes"]) == 89
    for (number, (trajectory, actions)), item, entry in zip(logged, shown, index["episodes"], strict=True):
        reason = index["reasons"].index(trajectory.end_reason)
        assert entry == [
            number, trajectory.index, reason, trajectory.episode_return, int(trajectory.success),
            trajectory.num_turns, trajectory.num_invalid, int(trajectory.truncated),
            sum(action.finish_reason == "length" for action in actions),
        ]  # fmt: skip
        assert [turn[:3] for turn in item["turns"]] == [list(turn) for turn in trajectory.turns]
        assert [bool(turn[3]) for turn in item["turns"]] == [action.legal for action in actions]
        assert item["last"] == trajectory.final_observation
        assert int(item["about"]["seed"]) == trajectory.seed
    assert shown[-1]["turns"][0][3:] == [0, 1] and shown[0]["turns"][0][3:] == [1, 0]


def test_the_pages_table_has_the_numbers_of_the_scores(page: Page, runs: list[ScoredRun]) -> None:
    maze = page.rows.index(next(row for row in page.rows if row[:2] == ["Model", "Episodes"]))
    header, optimal, random = page.rows[maze], page.rows[maze + 2], page.rows[maze + 3]  # the attacker leads
    assert header[:4] == ["Model", "Episodes", "Return", "Success"]
    assert optimal[0] == "scripted:optimal" and optimal[1] == "25" and optimal[2].startswith("−6.84[−")
    assert random[4] == f"{runs[0].summary.mean_length:.1f}"
    assert optimal[6:] == ["100.0", "100.0"]
    single = next(row for row in page.rows if row[0] == "scripted:best_memory")
    assert "[" not in single[2]  # one episode has no interval


def test_a_run_that_goes_on_is_marked(runs: list[ScoredRun], tmp_path: Path) -> None:
    lines = (runs[0].folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "header.json").write_bytes((runs[0].folder / "header.json").read_bytes())
    (tmp_path / "episodes.jsonl").write_bytes(b"".join(lines[:7]))
    assert "| 7 of 60 |" in to_markdown([score(tmp_path)])


# Figures -----------------------------------------------------------------------------------------------------------


def test_bins_are_integers_where_returns_are_and_hold_every_value() -> None:
    assert plots.choose_bins([-3.0, 0.0, -1.0]) == plots.Bins(-3.5, 1.0, 4)
    for values in ([-101.0, 0.0], [0.25, 0.5, 1.0], [2.5], [-401.0, 1.0, 0.5], [7.0]):
        bins = plots.choose_bins(values)
        assert bins.number <= plots.MAX_BINS
        for value in values:
            index = bins.bin_of(value)
            assert bins.start + index * bins.width <= value <= bins.start + (index + 1) * bins.width


def test_ticks_are_round_and_inside() -> None:
    assert plots.ticks(-101, 0) == [-100, -75, -50, -25, 0]
    assert plots.ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_histogram_columns_are_as_tall_as_their_counts() -> None:
    svg = plots.histogram_figure([plots.Values("a", [0.0, 0.0, 0.0, 0.0, -1.0, -1.0, -3.0])])
    tall = [float(number) for number in re.findall(r'height="([\d.]+)"><title>', svg)]
    assert tall == [plots.PANEL / 4, plots.PANEL / 2, plots.PANEL]
    assert re.findall(r"<title>([^<]*): (\d)</title>", svg) == [("−3", "1"), ("−1", "2"), ("0", "4")]


def test_mean_figure_survives_one_episode_and_escapes_names() -> None:
    nan = float("nan")
    svg = plots.mean_figure([plots.MeanReturn("<a>&", -1.0, Interval(nan, nan))])
    assert "<a>" not in svg and "&lt;a&gt;&amp;" in svg and "nan" not in svg


def test_lines_go_through_their_points_and_need_no_interval() -> None:
    nan = float("nan")
    lines = [
        plots.Line("<a>", [(0, 0.0), (10, 100.0)], [Interval(nan, nan), Interval(50.0, 100.0)]),
        plots.Line("b", [(5, 50.0)]),
    ]
    svg = plots.line_figure(lines, "Turn", "Invalid actions, %")
    assert "<a>" not in svg and "nan" not in svg
    x0, y0, x1, y1 = re.findall(r'class="line c0" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', svg)[0]
    (x, y) = re.findall(r'class="mark c1" cx="([\d.]+)" cy="([\d.]+)"', svg)[0]
    assert float(x) == pytest.approx((float(x0) + float(x1)) / 2, abs=0.1)
    assert float(y) == pytest.approx((float(y0) + float(y1)) / 2, abs=0.1)
    (top, bottom) = re.findall(r'class="line c0 bound" d="M[\d.]+ ([\d.]+)V([\d.]+)"', svg)[0]
    assert float(bottom) == pytest.approx(float(y1)) and float(top) == pytest.approx(float(y), abs=0.1)


def test_the_share_of_invalid_actions_is_of_those_that_still_play() -> None:
    assert invalid_by_turn([20, 10, 9], [5, 1, 9]) == [(1, 25.0), (2, 10.0)]
    assert invalid_by_turn([2, 2, 1], [0, 1, 1]) == [(1, 0.0), (2, 50.0)]


def test_learning_curves_are_of_checkpoints_and_of_what_a_policy_logged(tmp_path: Path) -> None:
    def measured(model: str, value: float) -> ScoredRun:
        policy = ScriptedPolicy("walker", lambda context: "move down")
        identity = {"kind": "language model", "name": model, "revision": None}
        folder = tmp_path / model.replace("/", "-")
        options = {"start": [6, 6]}
        scored = evaluate_policy(
            "maze", policy, identity=identity, env_kwargs=options, episodes=1, output=folder, progress=False
        ).scored
        return replace(scored, summary=scored.summary._replace(mean_return=value))

    learnt = tmp_path / "learnt"
    learnt.mkdir()
    log = [{"step": 5, "loss": 1.0}, {"step": 10, "eval_return": -9.0}, {"step": 20, "eval_return": -7.5}]
    (learnt / "training_log.json").write_text(json.dumps(log))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "training_log.json").write_text("[1, 2")
    models = {
        "m/checkpoint-200": -3.0,
        "m/checkpoint-90": -5.0,
        str(learnt): -7.0,
        str(broken): -8.0,
        "x/checkpoint-5": 0,
    }
    measures = [measured(model, value) for model, value in models.items()]
    lines = {line.name: line.points for line in learning_curves(measures, list(models))}
    assert lines == {
        f"{learnt}, as it learnt": [(10.0, -9.0), (20.0, -7.5)],
        "m, checkpoints": [(90.0, -5.0), (200.0, -3.0)],
    }


# Results on the Hub ------------------------------------------------------------------------------------------------


def test_the_yaml_says_value_dataset_and_how_it_was_measured(attacked: ScoredRun) -> None:
    (entry,) = yaml.safe_load(render_yaml(attacked, "https://example.org/log"))
    assert entry["dataset"] == {"id": "lmrl/maze", "task_id": "maze"}
    assert entry["value"] == attacked.summary.mean_return == -5.0  # -4 for the attack, then -1 and 0
    assert entry["date"] == attacked.header.created
    assert entry["source"] == {"url": "https://example.org/log"}
    for part in ("episodes 3", "return -5.00 [-5.00, -5.00]", "temperature 0.5", "seed 0", "score (paper) 101.2"):
        assert part in entry["notes"]


def test_a_block_is_put_in_replaced_and_leaves_the_rest(runs: list[ScoredRun]) -> None:
    card = "---\nlicense: mit\n---\n# A model\n\nWords.\n"
    maze, other = render_block(runs[0]), render_block(runs[2])
    once = put_block(card, "maze", maze)
    assert once.startswith(card) and once.count("lmrl-results -->") == 2
    assert put_block(once, "maze", maze) == once
    both = put_block(once, "maze_po", other)
    assert maze in both and other in both
    again = put_block(both + "\nMore words.\n", "maze", render_block(runs[1]))
    assert maze not in again and render_block(runs[1]) in again and other in again
    assert again.count("### Maze (fully observed)") == 1 and again.endswith("\nMore words.\n")
    assert put_block("", "maze", maze).startswith("<!-- lmrl-results -->\n")
    with pytest.raises(ValueError, match="are not a pair"):
        put_block(once.replace("<!-- /lmrl-results -->", ""), "maze", maze)


def test_an_incomplete_run_is_not_pushed(runs: list[ScoredRun], tmp_path: Path) -> None:
    lines = (runs[0].folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "header.json").write_bytes((runs[0].folder / "header.json").read_bytes())
    (tmp_path / "episodes.jsonl").write_bytes(lines[0])
    with pytest.raises(ValueError, match="holds 1 of 60 episodes"):
        push_results(score(tmp_path), "alice/model")


def test_results_go_to_the_hub_in_one_commit_each(runs: list[ScoredRun], tmp_path: Path) -> None:
    from hub_server import HubServer, client_environment

    with HubServer(tmp_path / "hub") as hub:
        # Another process commits in between, once: the push is made anew on top of that.
        hub.faults([{"match": "POST /api/models/alice/maze-bc/commit", "skip": 1, "status": 412, "times": 1}])
        done = subprocess.run(
            [sys.executable, __file__, str(runs[1].folder), str(runs[0].folder)],
            env=client_environment(hub, tmp_path / "home"), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        saw = json.loads(done.stdout.split("RESULT ")[1])
        card = hub.read_file("model", "alice/maze-bc", "README.md").decode()
        record = yaml.safe_load(hub.read_file("model", "alice/maze-bc", ".eval_results/maze.yaml"))
    assert saw["pushed"][2] and not saw["again"][2] and saw["again"][1] == saw["pushed"][1]
    assert saw["other"][2] and saw["proposed"][3]
    assert saw["commits"].count("Results on maze: 25 episodes") == 1
    assert saw["commits"].count("Results on maze: 60 episodes") == 1
    assert "model alice/absent does not exist" in saw["missing"]
    assert card.startswith("# Mine\r\n\r\nWords.\r\n") and card.count("### Maze") == 1
    assert render_block(runs[0]) in card
    assert record[0]["value"] == runs[0].summary.mean_return


def test_policies_of_one_run_of_many_episodes_are_listed_once(tmp_path: Path) -> None:
    """Chunks end exactly where episodes do."""
    policy = ScriptedPolicy("down", lambda context: "move down")
    scored = evaluate_policy(
        "maze", policy, env_kwargs={"start": [7, 6]}, episodes=2 * CHUNK, output=tmp_path / "r", progress=False
    ).scored
    write_html([scored], tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert sorted(page.scripts) == ["chunk-0", "chunk-1", "index", "main"]
    assert [len(unpack(page.scripts[f"chunk-{n}"])) for n in (0, 1)] == [CHUNK, CHUNK]
