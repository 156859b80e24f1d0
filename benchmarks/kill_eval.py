"""An evaluation killed again and again against one that was left alone: is the result the same?

    python benchmarks/kill_eval.py --model scripted:random --task maze --episodes 4000
    python benchmarks/kill_eval.py --model models/maze-bc --task maze --episodes 800

The run is begun, killed (SIGKILL) after a random time, and begun again with the same command, `--kills` times; then it
may end. Compared are the episodes, byte for byte, and header and scores without their date. It says how many episodes
were there at each kill, so that one can see that it was killed while it played. Exit status 1 where they differ.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from eval_harness.log import EPISODES, HEADER, RESULTS

LMRL = (sys.executable, "-c", "from env_servers.cli import main; main()")


def told(folder: Path) -> dict[str, Any]:
    """What is to be equal."""
    header, results = (json.loads((folder / name).read_text()) for name in (HEADER, RESULTS))
    for record in (header, results["header"]):
        record.pop("created")
    return {"episodes": (folder / EPISODES).read_bytes(), "header": header, "results": results}


def main() -> None:
    """Run, kill, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="scripted:random")
    parser.add_argument("--task", default="maze")
    parser.add_argument("--episodes", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    rng, home = random.Random(arguments.seed), Path(tempfile.mkdtemp())
    words = [*LMRL, "eval", "--model", arguments.model, "--task", arguments.task]
    words += ["--episodes", str(arguments.episodes), "--batch", str(arguments.batch), "--output"]
    began = time.monotonic()
    subprocess.run([*words, str(home / "whole")], check=True, capture_output=True)
    whole = time.monotonic() - began
    print(f"uninterrupted: {arguments.episodes} episodes, {whole:.1f} s", flush=True)
    log = home / "killed" / EPISODES
    kills = at_work = 0
    while kills < arguments.kills:
        before = log.read_bytes().count(b"\n") if log.exists() else 0
        process = subprocess.Popen([*words, str(home / "killed")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") > before):
            time.sleep(0.005)  # it has begun to play
        time.sleep(rng.uniform(0, whole / arguments.kills))
        ended = process.poll() is not None
        process.kill()
        process.wait()
        if ended:
            break
        kills += 1
        now = log.read_bytes().count(b"\n")
        at_work += now < arguments.episodes
        print(f"kill {kills}: {now} episodes", flush=True)
    subprocess.run([*words, str(home / "killed")], check=True, capture_output=True)
    same = told(home / "whole") == told(home / "killed")
    print(f"{kills} kills, {at_work} before the last episode; the result is {'the same' if same else 'NOT the same'}")
    shutil.rmtree(home)
    sys.exit(not same)


if __name__ == "__main__":
    main()
