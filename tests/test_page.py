"""The page that a server shows, played in a headless Chromium with keys and clicks."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvicorn
from browser import Browser
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse

from env_servers import tasks
from env_servers.processes import address_of, bind
from env_servers.rooms import Limits, Rooms
from env_servers.server import create_app
from env_servers.task import Env, EpisodeError, Step, TaskSpec
from env_servers.tasks import make_env
from hub_datasets.rows import from_row

TOKEN = "a~token>of?the~tests+/="  # in base64 it has + and /, which a subprotocol must not
MARKUP = "<img src=x onerror=\"document.title='broken in'\"> <b>bold</b> &amp; </script>"


class Parrot(Env):
    """Says markup, and does what it is told: ends, fails, takes its time. Its rewards are no round numbers.

    Args:
        greeting: What it says first.
    """

    spec: ClassVar[TaskSpec] = TaskSpec(
        id="parrot",
        version="3",
        title="Parrot <i>&amp;</i> co.",
        summary=f"Talk to a parrot. {MARKUP}",
        instructions=f"Say something. {MARKUP}",
        memory=None,
        max_turns=9,
        max_action_tokens=9,
        min_return=-1,
        max_return=1,
        end_reasons=("fed_up",),
        test_episodes=1,
    )

    def __init__(self, *, greeting: str = MARKUP) -> None:
        self._greeting, self._said = greeting, ""

    def _reset(self, rng: random.Random) -> str:
        self._said = ""
        return self._greeting

    def _step(self, action: str) -> Step:
        self._said += action
        if action == "fall":
            raise EpisodeError("a secret of the server")
        if action == "end":
            return Step.end(MARKUP, 0.2, "fed_up", success=False, cut=True)
        return Step.ongoing(f"{MARKUP} {action}", 0.3, legal=action != "no")

    @property
    def info(self) -> dict[str, Any]:
        return {"mark_up": MARKUP, "said": self._said}

    def draw(self) -> str:
        return f"{MARKUP}\n{self._said}"


class Server:
    """A server in a thread; a context manager.

    Args:
        names: Its tasks.
        prefix: Of a proxy before it, which lets nothing else through and asks the server by a name of its own.
    """

    def __init__(self, *names: str, tokens: Sequence[str] = (), port: int = 0, prefix: str = "") -> None:
        self.rooms = Rooms({name: {} for name in names}, Limits())
        app = create_app(self.rooms, tokens)

        async def behind(scope: Any, receive: Any, send: Any) -> None:
            if prefix and scope["type"] != "lifespan":
                asked, path = dict(scope["headers"])[b"host"], scope["path"]
                headers = [pair for pair in scope["headers"] if pair[0] != b"host"]
                headers += [(b"host", b"inside:1"), (b"x-forwarded-host", asked)]
                short = path.removeprefix(prefix) or "/" if path.startswith(prefix) else "/not-here"
                scope = {**scope, "path": short, "raw_path": short.encode(), "headers": headers}
            await app(scope, receive, send)

        self._listening = bind("127.0.0.1", port)
        self.url = address_of(self._listening) + (prefix or "/")
        self._server = uvicorn.Server(uvicorn.Config(behind, lifespan="on", log_config=None, ws_max_size=65536))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._listening.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "TASKS", {**tasks.TASKS, "parrot": f"{__name__}:Parrot"})
        with Server("maze", "wordle", "text_nav", "parrot") as server:
            yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one
        assert one.ask("localStorage.length + document.cookie.length") == 0


def begin(browser: Browser, task: str, seed: object = "", options: str = "") -> None:
    """Choose a task and begin an episode."""
    browser.wait("!document.querySelector('#choice').disabled")
    fields = {"task": task, "seed": str(seed), "options": options}
    browser.ask("; ".join(f"document.querySelector('#{one}').value = {json.dumps(fields[one])}" for one in fields))
    browser.click("#setup button")
    browser.wait("document.querySelector('#waiting').hidden")


def say(browser: Browser, text: str) -> None:
    """Type an action, send it with Enter and wait for what comes."""
    browser.type(text)
    browser.press("Enter")
    browser.wait("document.querySelector('#waiting').hidden && !document.querySelector('#text').value")


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.ask(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.innerText)")
    return found


def text(browser: Browser, selector: str) -> str:
    (found,) = texts(browser, selector)
    return found


def copied(browser: Browser) -> Any:
    """The transcript that the button puts into the clipboard."""
    allowed = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.call("Browser.grantPermissions", permissions=allowed, origin=browser.ask("location.origin"))
    browser.click("#copy")
    browser.wait("document.querySelector('#done').innerText === 'Copied.'")
    return json.loads(browser.ask("navigator.clipboard.readText()"))


def played(task: str, seed: int, actions: Sequence[str], options: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """Messages, rewards and info of the same episode played here."""
    env = make_env(task, options)
    messages, rewards = [{"role": "user", "content": env.reset(seed)}], []
    for action in actions:
        step = env.step(action)
        rewards.append(step.reward)
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": step.observation}]
    return messages, rewards, env.info


def test_a_wordle_is_won_and_read_back_as_a_row(browser: Browser) -> None:
    """`fatal` is the word of seed 3; the marks of `train` are those of the paper's rule, worked out by hand.

    The server is reached through a proxy alone, below a path without a slash at its end.
    """
    with Server("wordle", prefix="/somewhere/below") as server:
        browser.open(server.url)
        begin(browser, "wordle", 3)
        assert browser.ask("document.activeElement.id") == "text"
        assert text(browser, "#instructions").startswith("You play Wordle")
        say(browser, "t r a i n")
        say(browser, "zzzzz")
        browser.wait("document.querySelector('#picture').textContent.includes('not in the list')")
        assert text(browser, "#picture").splitlines()[:3] == ["1  T R A I N", "   y b y b b", "2  (not in the list)"]
        assert text(browser, "#score") == "Return −2 · action 2 of 6 · seed 3"
        say(browser, "f a t a l")

        assert texts(browser, ".environment .said") == ["Wordle:", "y b y b b", "(an empty message)", "g g g g g"]
        assert texts(browser, ".agent .said") == ["t r a i n", "zzzzz", "f a t a l"]
        marks = [one.split("\n") for one in texts(browser, ".paid")]
        assert marks == [
            ["✓ legal", "reward −1", "return −1"],
            ["✗ not legal", "reward −1", "return −2"],
            ["✓ legal", "reward 0", "return −2"],
        ]
        assert text(browser, "#verdict") == "Success"
        assert text(browser, "#reason") == "End reason: solved. Return −2 in 3 actions."
        assert texts(browser, "#info dt")[0] == "word" and texts(browser, "#info dd")[0] == "fatal"
        assert browser.ask("document.activeElement.id") == "banner"
        assert browser.ask("document.querySelector('#say').hidden")

        row = copied(browser)
        messages, rewards, info = played("wordle", 3, ["t r a i n", "zzzzz", "f a t a l"])
        assert (row["messages"], row["rewards"], row["info"]) == (messages, rewards, info)
        episode = from_row(row)
        assert (episode.seed, episode.success, episode.num_invalid, episode.end_reason) == (3, True, 1, "solved")
        assert browser.complaints == []

        browser.click("#again")
        browser.wait("document.querySelectorAll('.turn.environment').length === 1")
        assert browser.ask("document.querySelector('#banner').hidden") and text(browser, "#score").startswith(
            "Return 0"
        )


def test_a_maze_is_walked_by_buttons_and_arrow_keys(browser: Browser, served: Server) -> None:
    """From row 5, column 5: right to the stem, then three times down; the first step up is a bump into a wall."""
    browser.open(f"{served.url}#task=maze&seed=3")
    browser.wait("!document.querySelector('#choice').disabled")
    assert browser.ask("document.querySelector('#task').value") == "maze"
    browser.click("#setup button")
    browser.wait("document.activeElement.parentNode.id === 'actions'")
    assert texts(browser, "#actions button") == ["move left", "move right", "move up", "move down"]
    browser.click("#actions button:nth-child(3)")
    browser.wait("document.querySelectorAll('.paid').length === 1")
    for number, key in enumerate(("ArrowRight", "ArrowDown", "ArrowDown"), start=2):
        browser.press(key)
        browser.wait(f"document.querySelectorAll('.paid').length === {number}")
    assert texts(browser, ".agent .said") == ["move up", "move right", "move down", "move down"]
    browser.wait("document.querySelector('#picture').textContent.split('\\n')[7].includes('@')")
    browser.press("Enter")  # the last button has the focus
    browser.wait("!document.querySelector('#banner').hidden")
    assert text(browser, "#reason") == "End reason: goal. Return −4 in 5 actions."
    assert browser.complaints == []


def test_what_others_say_is_text_and_never_markup(browser: Browser, served: Server) -> None:
    browser.open(served.url)
    begin(browser, "parrot")
    say(browser, MARKUP)
    say(browser, "no")
    say(browser, "yes")
    say(browser, "end")
    assert texts(browser, ".environment .said") == [
        MARKUP,
        f"{MARKUP} {MARKUP}",
        f"{MARKUP} no",
        f"{MARKUP} yes",
        MARKUP,
    ]
    assert text(browser, "#task option:checked") == "Parrot <i>&amp;</i> co."
    assert text(browser, "#instructions") == f"Say something. {MARKUP}"
    assert texts(browser, "#info dd") == [MARKUP, f"{MARKUP}noyesend"]
    browser.wait("document.querySelector('#picture').textContent.endsWith('noyesend')")
    assert text(browser, "#picture") == f"{MARKUP}\n{MARKUP}noyesend"
    assert browser.ask("document.images.length + document.querySelectorAll('b, i').length") == 0
    assert text(browser, "#verdict") == "No success"
    assert text(browser, "#reason") == "End reason: fed up (a limit cut the episode). Return 1.1 in 4 actions."
    from_row(copied(browser))  # 0.3 + 0.3 + 0.3 + 0.2 added plainly would be 1.0999999999999999, and refused
    assert browser.ask("document.title") == "LMRL environments" and browser.complaints == []


def test_seeds_are_exact_and_options_reach_the_environment(browser: Browser, served: Server) -> None:
    """Seeds of a dataset have up to 63 bits, more than a number of JavaScript."""
    seed = 2**63 - 1
    browser.open(served.url)
    begin(browser, "parrot", seed, 'greeting="[1, 2]"\n')
    say(browser, "end")
    row = copied(browser)
    messages, rewards, info = played("parrot", seed, ["end"], {"greeting": "[1, 2]"})
    assert (row["messages"], row["rewards"], row["info"]) == (messages, rewards, info)
    assert (row["seed"], row["env_kwargs"]) == (seed, {"greeting": "[1, 2]"})
    assert text(browser, "#score").endswith(f"seed {seed}")
    begin(browser, "wordle", seed, "feedback=standard")
    assert texts(browser, ".environment .said") == ["Wordle:"] and text(browser, "#problem") == ""

    for given, options, words in (
        (2**63, "", "whole number from 0 to 9223372036854775807"),
        (-1, "", "whole number"),
        ("x", "", "whole number"),
        ("", "greeting", "“greeting” is no option of the form name=value"),
        ("", "seed=4", "“seed=4” is no option"),
        ("", "colour=red", "The server says: unknown option of task 'wordle' 'colour'; known: vocab"),
        ("", "vocab=/etc/passwd", "a client may choose: 'common'"),
    ):
        begin(browser, "wordle", given, options)
        assert words in text(browser, "#problem"), (given, options)
    begin(browser, "wordle")
    assert text(browser, "#problem") == "" and browser.complaints == []


def test_a_token_is_asked_for_and_stays_in_the_tab(browser: Browser) -> None:
    with Server("wordle", tokens=[TOKEN]) as server:
        browser.open(server.url)
        browser.wait("document.activeElement.id === 'token'")
        assert text(browser, "#problem") == "This server asks for a token. Enter it under “Token”."
        for given, words in (
            ("wrong", "The server does not accept this token."),
            ("größer", "A token has ASCII characters alone, and no spaces."),
        ):
            browser.ask("document.querySelector('#token').select()")
            browser.type(given)
            browser.press("Enter")
            browser.wait(f"document.querySelector('#problem').innerText === {json.dumps(words)}")
            assert browser.ask("document.querySelector('#choice').disabled")
        browser.ask("document.querySelector('#token').select()")
        browser.type(TOKEN)
        browser.press("Enter")
        begin(browser, "wordle", 3)
        say(browser, "f a t a l")
        assert text(browser, "#verdict") == "Success" and text(browser, "#problem") == ""
        assert "token" not in browser.ask("location.href")
        browser.complaints.clear()  # the refusals are logged
        browser.open(server.url)
        begin(browser, "wordle")
        assert texts(browser, ".environment .said") == ["Wordle:"] and browser.complaints == []
        assert browser.ask("Object.values(sessionStorage)") == [TOKEN]
        browser.ask("sessionStorage.clear()")


def test_losses_are_told_and_only_a_new_episode_connects_again(browser: Browser, served: Server) -> None:
    browser.open(served.url)
    begin(browser, "parrot")
    browser.type("fall")
    browser.press("Enter")
    browser.wait("document.querySelector('#problem').innerText.endsWith('begin a new one.')")
    words = "The server says: something that the task needs failed; the episode is lost."
    assert text(browser, "#problem") == f"{words} This episode cannot go on; begin a new one."
    assert texts(browser, ".agent") == [] and browser.ask("document.querySelector('#say').hidden")
    browser.click("#again")
    browser.wait("document.activeElement.id === 'text'")
    assert text(browser, "#problem") == ""
    browser.ask("document.querySelector('#text').value = 'x'.repeat(70000)")
    browser.press("Enter")
    browser.wait("document.querySelector('#problem').innerText.startsWith('The message was too long')")

    with Server("wordle") as server:
        browser.open(server.url)
        begin(browser, "wordle", 3)
        say(browser, "t r a i n")
    browser.wait("document.querySelector('#problem').innerText.endsWith('begin a new one.')")
    assert "restarts" in text(browser, "#problem") and browser.ask("document.querySelector('#say').hidden")
    assert len(texts(browser, ".turn.agent")) == 1  # what was played stays to be read
    browser.click("#again")
    browser.wait("document.querySelector('#problem').innerText.startsWith('The server does not answer.')")
    with Server("wordle", port=int(server.url.rstrip("/").rpartition(":")[2])):
        browser.click("#again")
        browser.wait("document.querySelectorAll('.turn.environment').length === 1")
        say(browser, "f a t a l")
        assert text(browser, "#verdict") == "Success"


@pytest.mark.parametrize("task", ["maze", "text_nav", "parrot"])
def test_a_phone_has_room_for_it(browser: Browser, served: Server, task: str, tmp_path: Path) -> None:
    """360 pixels wide: nothing to scroll sideways, and what there is to do is in view and a thumb high."""
    browser.open(served.url, width=360, height=740)
    begin(browser, task, 3)
    for _ in range(3):
        if task == "maze":
            browser.click("#actions button")
            browser.wait("document.querySelector('#waiting').hidden")
        else:
            say(browser, "W" * 60 if task == "parrot" else "t r a i n")
    top, bottom = browser.ask(
        "(({top, bottom}) => [top, bottom])(document.querySelector('#foot').getBoundingClientRect())"
    )
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth && innerWidth === 360")
    assert 0 < top < bottom <= 740
    small = "[...document.querySelectorAll('button, input, select')].map(one => one.offsetHeight).filter(Boolean)"
    assert min(browser.ask(small)) >= 36
    browser.shoot(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").read_bytes()[16:24] == (360).to_bytes(4) + (740).to_bytes(4)


def test_all_that_can_be_used_has_a_name_and_dark_is_dark(browser: Browser, served: Server) -> None:
    browser.open(served.url)
    begin(browser, "wordle")
    browser.ask("for (const one of document.querySelectorAll('details')) one.open = true")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "combobox", "log", "alert", "status", "group", "image", "main", "complementary"}
    named = [(n["role"]["value"], n["name"]["value"]) for n in nodes if n.get("role", {}).get("value") in roles]
    assert [one for one in named if not one[1] and one[0] not in ("alert", "status", "group")] == []
    assert {"log", "textbox", "combobox", "button", "main", "complementary", "image"} <= {role for role, _ in named}
    assert ("textbox", "Your action") in named and ("log", "Transcript") in named
    assert browser.ask("document.querySelector('#log').ariaLive") == "polite"
    pages = []
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        pages.append(browser.ask("getComputedStyle(document.body).backgroundColor"))
    assert pages == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]
    browser.call("Emulation.setEmulatedMedia", features=[])


def test_the_page_needs_nothing_from_elsewhere_and_may_stand_in_a_frame() -> None:
    client = TestClient(create_app(Rooms({"maze": {}}, Limits()), [TOKEN]))
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    assert "unsafe" not in policy and "frame-ancestors" not in policy and "x-frame-options" not in answer.headers
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    lines = [line for line in answer.text.splitlines() if "http://" in line or "https://" in line]
    assert [line for line in lines if "http://www.w3.org/2000/svg" not in line] == []


def test_pages_of_other_sites_may_not_play() -> None:
    """A proxy may tell which host the browser asked; a page cannot."""
    own, outside = "http://testserver", "https://outside.example"
    with TestClient(create_app(Rooms({"maze": {}}, Limits()))) as client:
        for origin, forwarded in ((own, ""), (outside, "outside.example"), (outside, "outside.example, inside:1")):
            headers = {"origin": origin, "x-forwarded-host": forwarded}
            with client.websocket_connect("/ws", headers=headers) as play:
                play.send_json({"type": "state"})
                assert play.receive_json()["type"] == "state"
        for origin, forwarded in ((outside, ""), (outside, "other.example"), ("null", ""), ("http://[", "")):
            headers = {"origin": origin, "x-forwarded-host": forwarded}
            with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect("/ws", headers=headers):
                pass
            assert refused.value.status_code == 403
