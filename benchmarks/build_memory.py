"""Peak memory of a dataset build as the number of episodes grows.

    python benchmarks/build_memory.py --task maze --episodes 10000 100000 --workers 2

Each size is built by a process of its own; the peak resident set is the operating system's figure for that process
and for the largest of its workers. Shards bound it: the ratio to the first size should stay near 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

CHILD = """
import resource, sys, time
from pathlib import Path
from hub_datasets.build import build
from hub_datasets.plan import make_plan
if __name__ == "__main__":
    begin = time.perf_counter()
    build(make_plan(sys.argv[1], episodes={"train": int(sys.argv[2])}), Path(sys.argv[3]), workers=int(sys.argv[4]))
    seconds = time.perf_counter() - begin
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(seconds, *peaks)
"""


def measure(task: str, episodes: int, workers: int) -> tuple[float, float, float]:
    """Seconds, and peak MiB of the main process and of its largest worker."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"{folder}/child.py"
        with open(script, "w") as file:
            file.write(CHILD)
        command = [sys.executable, script, task, str(episodes), f"{folder}/data", str(workers)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, own, worker = (float(text) for text in output.split())
    return seconds, own, worker


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="maze")
    parser.add_argument("--episodes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    print(f"{arguments.task}, {arguments.workers} processes")
    print(f"{'episodes':>10}{'seconds':>10}{'episodes/s':>12}{'main MiB':>10}{'worker MiB':>12}{'ratio of peak':>15}")
    first = 0.0
    for episodes in arguments.episodes:
        seconds, own, worker = measure(arguments.task, episodes, arguments.workers)
        first = first or max(own, worker)
        ratio = max(own, worker) / first
        print(f"{episodes:>10,}{seconds:>10.1f}{episodes / seconds:>12,.0f}{own:>10.0f}{worker:>12.0f}{ratio:>15.2f}")


if __name__ == "__main__":
    main()
