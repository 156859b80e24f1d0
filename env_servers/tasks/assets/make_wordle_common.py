"""Make wordle_common.txt, the bundled word list of Wordle, from SCOWL. Run by hand; standard library only.

    apt-get install scowl
    python env_servers/tasks/assets/make_wordle_common.py /usr/share/dict/scowl

Level 10 of SCOWL holds the most common English words. Of these the list takes every word that

- has five letters a-z: so no abbreviation, contraction or capitalised word, which also lie in files of their own;
- is of the category `words`, in spellings shared by all countries (`english`) or American (`american`);
- is no plain inflection in -s or -ed of a shorter word of the level (`games`, `flies`, `acted`, `tried`);
- is not in OFFENSIVE, the vulgar and insulting words found on reading the result through: there are none.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

FILES = ("english-words.10", "american-words.10")
OFFENSIVE: frozenset[str] = frozenset()
# Ending, and what stands in its place in the shorter word: games, boxes, flies; based, acted, tried.
INFLECTIONS = (("s", ""), ("es", ""), ("ies", "y"), ("d", ""), ("ed", ""), ("ied", "y"))


def is_inflection(word: str, known: frozenset[str]) -> bool:
    """Whether the word is a shorter word of `known` with -s or -ed; `need`, with no such word, is none."""
    if not word.endswith(("s", "ed")):
        return False
    return any(word.endswith(ending) and word.removesuffix(ending) + base in known for ending, base in INFLECTIONS)


def common_words(folder: Path) -> list[str]:
    """The words of the list, sorted, from SCOWL's folder of lists."""
    # The files are Latin-1; only words of plain a-z are kept.
    known = frozenset(word for name in FILES for word in (folder / name).read_text(encoding="latin-1").split())
    five = {word for word in known if re.fullmatch("[a-z]{5}", word)}
    return sorted(word for word in five if not is_inflection(word, known) and word not in OFFENSIVE)


def main() -> None:
    """Write the list beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with SCOWL's lists, such as /usr/share/dict/scowl")
    words = common_words(parser.parse_args().folder)
    target = Path(__file__).with_name("wordle_common.txt")
    target.write_text("\n".join(words) + "\n", encoding="ascii")
    print(f"{len(words)} words written to {target}")


if __name__ == "__main__":
    main()
