"""The report's page with many episodes in headless Chromium: its size, the time to write it, and to open and use it.

    python benchmarks/report_page.py --episodes 10000 --policy behavior

Two runs of the task, half of the episodes each, are played to a temporary folder. The same is done with a hundredth
of the episodes as the baseline: opening is meant to take no longer with more. Times are by the browser's own clock,
from the start of the navigation; `ready` is when a transcript is shown and the filters are there. Then, on the open
page, the milliseconds from a choice to the list that it makes: a filter, a search of all texts (which waits 250 ms for
more letters), the disagreements of the two runs. Needs what the tests of pages need (`tests/browser.py`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from eval_harness.report_page import write_html
from eval_harness.run import run
from eval_harness.score import score

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from browser import Browser

READY = "document.querySelector('#transcript h3') && !document.querySelector('.filters').hidden && performance.now()"
CHOOSE = """(async () => {
  const began = performance.now(), list = document.querySelector('#list'), rest = new Promise((done) => {
    const seen = new MutationObserver(() => { if (list.children.length) { seen.disconnect(); done(); } });
    seen.observe(list, { childList: true });
  });
  const one = document.getElementById('%s');
  one.value = '%s';
  one.dispatchEvent(new Event('%s'));
  await rest;
  return performance.now() - began;
})()"""
CHOICES = {
    "filter": ("outcome", "failure", "change"),
    "search": ("text", "to your left", "input"),
    "disagree": ("compare", "1", "change"),
}
COLUMNS = ("episodes", "MB", "score s", "write s", "loaded ms", "ready ms", *(f"{name} ms" for name in CHOICES))


def measure(browser: Browser, folder: Path, args: argparse.Namespace, episodes: int, width: int) -> list[float]:
    """A row of the table."""
    folders = [folder / f"{episodes}-{seed}" for seed in (0, 1)]
    for seed, one in enumerate(folders):
        if not one.exists():
            policy = f"scripted:{args.policy}"
            run(args.task, policy, episodes=episodes // 2, seed=seed, output=one, progress=False)
    began = time.perf_counter()
    scored = [score(one) for one in folders]
    between = time.perf_counter()
    page = folder / f"{episodes}.html"
    write_html(scored, page)
    written = time.perf_counter()
    browser.open(page.as_uri(), width=width)
    ready = browser.wait(READY)
    loaded = browser.ask("performance.getEntriesByType('navigation')[0].loadEventEnd")
    times = [browser.ask(CHOOSE % choice) for choice in CHOICES.values()]
    assert browser.complaints == [], browser.complaints
    size = page.stat().st_size / 1e6
    return [episodes, size, between - began, written - between, loaded, ready, *times]


def main() -> None:
    """Print a row per number of episodes and width of the window, and the ratios of the times to open."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="maze")
    parser.add_argument("--policy", default="behavior")
    parser.add_argument("--episodes", type=int, default=10_000, help="of both runs together")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement, the fastest counts")
    args = parser.parse_args()
    print("width " + " ".join(f"{name:>11}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "profile").mkdir()
        with Browser(folder / "profile") as browser:
            for width in (1280, 390):
                opened = []
                for episodes in (max(args.episodes // 100, 4), args.episodes):
                    rows = [measure(browser, folder, args, episodes, width) for _ in range(args.repeats)]
                    best = [min(column) for column in zip(*rows, strict=True)]
                    opened.append(best[5])
                    print(f"{width:5} " + " ".join(f"{value:11.1f}" for value in best), flush=True)
                print(
                    f"{width:5} ready, against a hundredth of the episodes: {opened[1] / opened[0]:.2f} times as long"
                )


if __name__ == "__main__":
    main()
