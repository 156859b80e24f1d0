"""The action in what a chatty model says: by the task's grammar, for models that were not trained to say it alone.

What is marked as the answer goes first (`Action: move up`, **move up**, "move up", a line of its own), then what is
mentioned last. Where there is none the text itself goes to the environment, which does not understand it. Reasoning
between tags is taken out before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from env_servers.tasks import load_task

THINKING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
UNFINISHED = re.compile(r"<(think|thinking|reasoning)>(?!.*</\1>).*", re.DOTALL | re.IGNORECASE)
MARK = re.compile(
    r"\b(?:final\s+)?(?:action|answer|move|guess|command|question|response|output|reply)\b\W{0,4}"
    r"(?:\s*(?:is|would be|will be))?\s*[:=]\s*(?P<said>[^\n]+)",
    re.IGNORECASE,
)
QUOTED = re.compile(r"\*\*(.+?)\*\*|`+([^`\n]+)`+|\"([^\"\n]+)\"|“([^”\n]+)”|(?<!\w)'([^'\n]+)'(?!\w)")
SPEAKER = re.compile(r"^\s*(?:seller|dealer|salesperson|agent|assistant|me|you)\s*:\s*", re.IGNORECASE)
# A move in standard algebraic notation, blanks between its characters allowed.
SAN = re.compile(
    r"(?<![\w-])(O\s?-\s?O\s?-\s?O|O\s?-\s?O|0-0-0|0-0|[KQRBN]\s?[a-h]?\s?[1-8]?\s?x?\s?[a-h]\s?[1-8]|"
    r"[a-h]\s?x\s?[a-h]\s?[1-8](?:\s?=\s?[QRBN])?|[a-h]\s?[1-8]\s?=\s?[QRBN]|[a-h]\s?[1-8])\s?([+#])?(?![\w-])"
)
SPACED_WORD = re.compile(r"(?<![A-Za-z])((?:[A-Za-z][\s,-]+){4}[A-Za-z])(?![A-Za-z])")
WORD = re.compile(r"(?<![A-Za-z'])([A-Za-z]{5})(?![A-Za-z'])")
ADMISSIBLE = re.compile(r"Admissible commands:\s*(.+)", re.IGNORECASE)

Finder = Callable[[str, str], list[str]]  # of a piece of text and the observation: the actions in it, in order


def without_reasoning(text: str) -> str | None:
    """The text without what is between tags of reasoning; None where such a tag is not closed: it was cut there."""
    left = THINKING.sub("", text)
    return None if UNFINISHED.search(left) else left.strip()


def find_action(task: str, text: str, observation: str = "") -> str | None:
    """The action that a text means, as the task understands it; None where it means none.

    Args:
        task: Task id.
        text: What a model said, without reasoning.
        observation: What it answered, which in Text-Nav has the commands.
    """
    if task == "car_dealer":
        return _utterance(text)
    if task in ("twenty_questions", "guess_my_city"):
        return _question(text)
    finder = _finder(task)
    if finder is None:
        return text.strip() or None
    for pieces in (_marked(text), _quoted(text), _lines(text)):
        exact = [actions[0] for piece in pieces if len(set(actions := finder(piece, observation))) == 1]
        if exact:
            return exact[-1]  # who corrects himself means the last
    mentioned = finder(text, observation)
    return mentioned[-1] if mentioned else None


def _finder(task: str) -> Finder | None:
    spec = load_task(task).spec
    if spec.actions:
        return lambda text, _: _mentions(text, spec.actions)
    if task.startswith("text_nav"):
        return lambda text, observation: _mentions(text, _admissible(observation))
    if task == "wordle":
        return lambda text, _: _words(text)
    if task.startswith("chess"):
        return lambda text, _: _moves(text)
    return None


def _marked(text: str) -> list[str]:
    return [found["said"] for found in MARK.finditer(text)]


def _quoted(text: str) -> list[str]:
    return [next(part for part in found.groups() if part) for found in QUOTED.finditer(text)]


def _lines(text: str) -> list[str]:
    """Lines of a few words: whoever says an action alone says it so."""
    return [line for line in text.splitlines() if 0 < len(line.split()) <= 6]


def _mentions(text: str, actions: tuple[str, ...]) -> list[str]:
    """The named actions in a text, in order; of those that begin alike, the longest."""
    if not actions:
        return []
    names = sorted(actions, key=len, reverse=True)
    pattern = "|".join(r"\s+".join(map(re.escape, name.split())) for name in names)
    plain = {" ".join(name.lower().split()): name for name in actions}
    found = re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE)
    return [plain[" ".join(one[0].lower().split())] for one in found]


def _admissible(observation: str) -> tuple[str, ...]:
    found = ADMISSIBLE.findall(observation)
    return tuple(part.strip() for part in found[-1].split(",") if part.strip()) if found else ()


def _words(text: str) -> list[str]:
    """Words of five letters, as Wordle reads them. Spelt out ones go first: prose has none of these."""
    spelt = [re.sub(r"[^A-Za-z]", "", found[1]) for found in SPACED_WORD.finditer(text)]
    written = [found[1] for found in WORD.finditer(text)]
    capitals = [word for word in written if word.isupper()]
    chosen = spelt or capitals or (written if len(text.split()) <= 3 else [])
    return [" ".join(word.lower()) for word in chosen]


def _moves(text: str) -> list[str]:
    """Moves in standard algebraic notation, as the chess tasks read them: a blank between all characters."""
    found = []
    for one in SAN.finditer(text):
        move = re.sub(r"\s", "", one[1]).replace("0", "O") + (one[2] or "")
        found.append(" ".join(move))
    return found


def _question(text: str) -> str | None:
    """The last line's first question, or else the first of all; without mark, quotes and numbers before it."""
    lines = [line for line in (part.strip() for part in text.splitlines()) if line]
    for line in [*_marked(text), *reversed(lines)]:
        for sentence in _sentences(line):
            if sentence.endswith("?"):
                return sentence
    return None


def _sentences(line: str) -> Iterator[str]:
    bare = MARK.sub(lambda found: found["said"], line)
    for part in re.findall(r"[^.!?]+[.!?]+|[^.!?]+$", bare):
        yield re.sub(r"^[\s\"'“*#>\-\d.)]+|[\"'”*\s]+$", "", part)


def _utterance(text: str) -> str | None:
    """What is said, in one line: without the speaker's name, quotes around all of it, and lines of others."""
    said = []
    for line in text.splitlines():
        if re.match(r"^\s*(?:buyer|customer|user)\s*:", line, re.IGNORECASE):
            break
        if bare := SPEAKER.sub("", line).strip():
            said.append(bare)
    whole = " ".join(said)
    quoted = re.fullmatch(r"[\"“](.+)[\"”]", whole)
    return (quoted[1] if quoted else whole) or None
