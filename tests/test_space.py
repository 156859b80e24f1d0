"""A Space: the files fit each other, what they install runs, what cannot be there is refused, and the Hub gets them."""

from __future__ import annotations

import base64
import configparser
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_server import HubServer, client_environment
from typer.testing import CliRunner

import env_servers.processes as processes
from env_servers import space as space_module
from env_servers.serve import TOKENS, app, parse_tokens, read_tokens
from env_servers.space import pinned, write_space, write_wheel
from env_servers.tasks import load_task
from hub_datasets.spaces import push_space

ROOT = Path(__file__).parent.parent
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
GOOD = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the command writes it."""
    made = tmp_path_factory.mktemp("space") / "mine"
    done = run_serve("--space", str(made), "--tasks", "maze,wordle", "--max-sessions", "7", "--option", "maze=umaze")
    assert "wrote" in done and "maze, wordle" in done
    return made


def run_serve(*words: str) -> str:
    """What `lmrl serve` prints; its errors are raised."""
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def front_matter(folder: Path) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", (folder / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return dict(yaml.safe_load(found[1]))


def dockerfile(folder: Path) -> dict[str, list[str]]:
    """Its instructions, by name; continued lines are joined."""
    found: dict[str, list[str]] = {}
    for line in (folder / "Dockerfile").read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest)
    return found


# The files -----------------------------------------------------------------------------------------------------------


def test_the_files_say_the_same(folder: Path) -> None:
    card, image = front_matter(folder), dockerfile(folder)
    manifest = yaml.safe_load((folder / "openenv.yaml").read_text())
    assert card["sdk"] == "docker" and {"openenv", "lmrl"} <= set(card["tags"]) and card["base_path"] == "/"
    assert len(card["short_description"]) <= 60 and card["license"] == "mit" and card["title"] == "LMRL environments"
    command, [health] = json.loads(image["CMD"][0]), image["HEALTHCHECK"]
    port = command[command.index("--port") + 1]
    assert {port, str(card["app_port"]), image["EXPOSE"][0], str(manifest["port"])} == {"8000"}
    assert f"http://127.0.0.1:{port}/health" in health
    assert image["FROM"] == [f"python:{sys.version_info.major}.{sys.version_info.minor}-slim-trixie"]
    assert image["USER"] == ["lmrl"] and not any("apt-get" in line for line in image["RUN"])
    copied = image["COPY"][0].split()[:-1]
    assert sorted([*copied, "Dockerfile", "README.md", "openenv.yaml"]) == sorted(os.listdir(folder))
    assert (manifest["spec_version"], manifest["type"], manifest["runtime"]) == (1, "space", "fastapi")
    assert manifest["validation"]["reward"]["range"] == [load_task("maze").spec.min_return, 0.0]
    assert manifest["validation"]["network"] == {"mode": "no-network"}
    assert manifest["version"] == version("lmrl") and "app" not in manifest
    text = (folder / "README.md").read_text()
    [wheel] = folder.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in text and TOKENS in text and "${" not in text
    for task in ("maze", "wordle"):
        assert f"| `{task}` | {load_task(task).spec.version} |" in text
    assert "chess" not in text


def test_the_command_serves_what_was_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of CMD, read by the command itself."""
    seen: list[Any] = []
    monkeypatch.setattr(processes, "run_server", lambda *given: seen.append(given) or 0)
    command = json.loads(dockerfile(folder)["CMD"][0])
    assert command[:2] == ["lmrl", "serve"] and command[command.index("--host") + 1] == "0.0.0.0"
    words = [*command[2:], "--port", "0"]
    run_serve(*words)
    monkeypatch.setenv(TOKENS, f" {GOOD}1 {GOOD}2\n")
    run_serve(*words)
    for settings, listening, _ in seen:
        listening.close()
        assert settings.tasks == {"maze": {"maze": "umaze"}, "wordle": {}}
        assert (settings.limits.sessions, settings.limits.sessions_per_client) == (7, 256)
        assert settings.trust_proxy and settings.workers == 1 and settings.record is None
    assert [list(settings.tokens) for settings, _, _ in seen] == [[], [f"{GOOD}1", f"{GOOD}2"]]


def test_chess_brings_its_engine(tmp_path: Path) -> None:
    write_space(tmp_path / "both", {"chess": {"opponent": "stockfish"}, "maze": {}}, [])
    write_space(tmp_path / "random", {"chess": {"opponent": "random"}}, [])
    for name, lines in (("both", 1), ("random", 0)):
        runs = dockerfile(tmp_path / name)["RUN"]
        assert sum("apt-get install --yes --no-install-recommends stockfish" in line for line in runs) == lines
        assert re.search(r"^chess==", (tmp_path / name / "requirements.txt").read_text(), re.MULTILINE)
    assert "(not in chess, whose opponent draws" in (tmp_path / "both/README.md").read_text()
    assert "(not in" not in (tmp_path / "random/README.md").read_text()
    assert front_matter(tmp_path / "random")["title"] == "LMRL: Chess"


def test_packages_are_those_of_setup_cfg_at_the_versions_here(folder: Path) -> None:
    def names(text: str) -> set[str]:
        return {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in text.split("\n") if line}

    extras = SETUP["options.extras_require"]
    always = names(SETUP["options"]["install_requires"]) | names(extras["server"])
    assert always - set(space_module.FASTER) == set(space_module.ALWAYS)
    assert names(extras["chess"]) == set(space_module.CHESS)
    assert names(extras["data"]) == set(space_module.OF_PARTNERS["replay"])
    assert names(extras["api"]) == set(space_module.OF_PARTNERS["openai"])
    first, *pins = (folder / "requirements.txt").read_text().splitlines()
    assert [first] == [f"./{path.name}" for path in folder.glob("*.whl")]
    assert all(version(name) == there for name, _, there in (pin.partition("==") for pin in pins))
    listed = {pin.partition("==")[0] for pin in pins}
    # fastapi's, uvicorn's and typer's own needs are among them; what only tests or trainings need is not.
    assert {"starlette", "pydantic", "pydantic-core", "h11", "click", "websockets", "numpy"} <= listed
    assert not {"torch", "datasets", "chess", "pytest", "openai"} & listed
    assert "pyarrow" in {pin.partition("==")[0] for pin in pinned(["datasets"])}


# The wheel -----------------------------------------------------------------------------------------------------------


def test_the_wheel_is_this_package_whole(folder: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    assert wheel.read_bytes() == (folder / wheel.name).read_bytes(), "equal files give equal wheels"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = f"lmrl-{version('lmrl')}.dist-info"
        for line in archive.read(f"{about}/RECORD").decode().splitlines():
            name, digest, size = line.split(",")
            if name == f"{about}/RECORD":
                continue
            content = archive.read(name)
            own = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={own}", len(content))
            names.remove(name)
        assert names == {f"{about}/RECORD"}
        names = set(archive.namelist())
        assert (
            SETUP["options.entry_points"]["console_scripts"].strip()
            in archive.read(f"{about}/entry_points.txt").decode()
        )
    for package in SETUP["options"]["packages"].split():
        place = package.replace(".", "/")
        patterns = SETUP["options.package_data"].get(package, "").replace("\n", ",").split(",")
        for pattern in ["*.py", *filter(None, (one.strip() for one in patterns))]:
            found = [path for path in (ROOT / place).glob(pattern) if path.is_file()]
            assert found, f"setup.cfg: no {pattern} in {package}"
            missing = [path for path in found if str(path.relative_to(ROOT)) not in names]
            assert missing == []
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)


def test_what_is_installed_serves_the_tasks(folder: Path, tmp_path: Path) -> None:
    """The wheel alone, installed without an index, started by the words of CMD; other packages are this machine's."""
    [wheel] = folder.glob("*.whl")
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True)
    command = json.loads(dockerfile(folder)["CMD"][0])[1:]
    words = [*command, "--port", "0", "--port-file", str(tmp_path / "port")]
    code = (
        f"import sys, env_servers.cli as c; assert c.__file__.startswith({str(target)!r}); "
        f"sys.argv = ['lmrl', *{words!r}]; c.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(target), TOKENS: GOOD}
    server = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=tmp_path)
    try:
        while not (tmp_path / "port").exists():
            assert server.poll() is None, "the server ended"
            time.sleep(0.05)
        url = (tmp_path / "port").read_text().strip().replace("0.0.0.0", "127.0.0.1")
        request = urllib.request.Request(f"{url}/tasks", headers={"Authorization": f"Bearer {GOOD}"})
        with urllib.request.urlopen(request) as reply:
            assert [task["id"] for task in json.load(reply)["tasks"]] == ["maze", "wordle"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/tasks")
    finally:
        server.terminate()
        assert server.wait(60) == 0


# What is refused, and tokens -----------------------------------------------------------------------------------------


def test_what_a_space_has_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text("{}")
    partner = {"partner": "openai:m@http://127.0.0.1:1", "partner_options": {"fallback": f"replay:{asked}"}}
    for served, words in (
        ({"other": {}}, "task other is of another package"),
        ({"twenty_questions": {"partner": "model:google/flan-t5-xl"}}, "kind 'model' needs more than such a Space"),
        ({"twenty_questions": {"partner": f"replay:{asked}"}}, "is of this machine, and the Space would lack it"),
        ({"twenty_questions": partner}, "is of this machine"),
        ({"chess": {"opponent": str(asked)}}, "is of this machine"),
    ):
        with pytest.raises(ValueError, match=words):
            write_space(tmp_path / "space", served, [])
    assert not (tmp_path / "space").exists()
    with pytest.raises(FileExistsError, match="holds something else"):
        write_space(tmp_path, {"maze": {}}, [])
    for words in (["--port", "1"], ["--host", "::1"], ["--record", "x"], ["--token-file", "x"], ["--port-file", "x"]):
        if words[0] == "--token-file":
            (tmp_path / "x").write_text(GOOD)
            monkeypatch.chdir(tmp_path)
        with pytest.raises(ValueError, match=f"leave {words[0]} out with --space: "):
            run_serve("--tasks", "maze", "--space", str(tmp_path / "space"), *words)


def test_partners_bring_what_they_need(tmp_path: Path) -> None:
    options = {"partner": "openai:m@https://example.org/v1", "partner_options": {"fallback": "replay:lmrl/x@v1"}}
    write_space(tmp_path / "space", {"twenty_questions": options, "maze": {}}, ["--partner", "openai:m@x"])
    pins = (tmp_path / "space/requirements.txt").read_text()
    assert "\nopenai==" in pins and "\ndatasets==" in pins and "\ntorch==" not in pins
    assert yaml.safe_load((tmp_path / "space/openenv.yaml").read_text())["validation"]["network"] == {"mode": "public"}
    assert "OPENAI_API_KEY" in (tmp_path / "space/README.md").read_text()
    assert json.loads(dockerfile(tmp_path / "space")["CMD"][0])[-2:] == ["--partner", "openai:m@x"]


def test_writing_again_replaces_what_was_written(tmp_path: Path) -> None:
    write_space(tmp_path / "space", {"maze": {}}, ["--max-sessions-per-client", "3"])
    assert "each address may have 3 sessions" in (tmp_path / "space/README.md").read_text()
    (tmp_path / "space/lmrl-0.0.1-py3-none-any.whl").write_text("old")
    (tmp_path / "space/notes.txt").write_text("mine")
    write_space(tmp_path / "space", {"wordle": {}}, [])
    assert len(list((tmp_path / "space").glob("*.whl"))) == 1 and (tmp_path / "space/notes.txt").exists()
    assert front_matter(tmp_path / "space")["title"] == "LMRL: Wordle"
    assert not list((tmp_path / "space").glob("*.part"))


def test_tokens_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# mine\n{GOOD}\n\n{GOOD}b # yours\n")
    assert read_tokens(file) == [GOOD, f"{GOOD}b"]
    assert parse_tokens([GOOD], "it") == [GOOD]
    for tokens, words in (([], "it holds no token; write one"), (["short-secret"], "token 0 of it is no token")):
        with pytest.raises(ValueError, match=words) as caught:
            parse_tokens(tokens, "it")
        assert "short-secret" not in str(caught.value)
    seen: list[Any] = []
    monkeypatch.setattr(processes, "run_server", lambda *given: seen.append(given) or 0)
    words = ["--tasks", "maze", "--port", "0", "--host", "0.0.0.0"]
    with pytest.raises(ValueError, match=f"give --token-file or {TOKENS}, or --insecure"):
        run_serve(*words)
    monkeypatch.setenv(TOKENS, f"{GOOD}c")
    run_serve(*words, "--token-file", str(file))
    assert list(seen[0][0].tokens) == [GOOD, f"{GOOD}b", f"{GOOD}c"]
    seen[0][1].close()
    monkeypatch.setenv(TOKENS, " ")  # set to nothing: whoever did that wanted a token
    with pytest.raises(ValueError, match=f"the environment variable {TOKENS} holds no token"):
        run_serve(*words, "--insecure")


# On the Hub ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    with HubServer(tmp_path_factory.mktemp("hub")) as server:
        yield server


def push(hub: HubServer, home: Path, *words: str, token: str | None = "hf_alice") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from env_servers.cli import main; main()", "push-space", *words]
    environment = {**client_environment(hub, home, token=token), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_push(folder: Path, hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{GOOD}1\n{GOOD}2\n")
    (folder / "notes.txt").write_text("mine")
    done = push(hub, tmp_path, str(folder), "--repo", "alice/play", "--token-file", str(tmp_path / "tokens"))
    assert done.returncode == 0, done.stderr
    assert f"pushed {hub.url}/spaces/alice/play" in done.stdout
    assert "--env wss://alice-play.hf.space" in done.stdout and GOOD not in done.stdout
    repository = hub.store.repositories["space", "alice/play"]
    assert repository.sdk == "docker" and not repository.private
    assert repository.secrets == {TOKENS: f"{GOOD}1 {GOOD}2"}
    files = {path.name for path in folder.iterdir()} - {"notes.txt"}
    commit = repository.commit_at("main")
    assert set(commit.files) == {*files, ".gitattributes"}
    for name in files:
        assert hub.read_file("space", "alice/play", name) == (folder / name).read_bytes()
    assert len(repository.history(commit)) == 2, "one commit on top of the first"
    again = push(hub, tmp_path, str(folder), "--repo", "alice/play")
    assert "already there, nothing changed" in again.stdout
    assert repository.commit_at("main").sha == commit.sha and len(repository.secrets) == 1
    # Another version of the package takes the place of the wheel that is there.
    other = tmp_path / "other"
    write_space(other, {"maze": {}}, [])
    [wheel] = other.glob("*.whl")
    wheel.rename(other / "lmrl-9.9.9-py3-none-any.whl")
    assert push(hub, tmp_path, str(other), "--repo", "alice/play").returncode == 0
    assert [name for name in repository.commit_at("main").files if name.endswith(".whl")] == [
        "lmrl-9.9.9-py3-none-any.whl"
    ]


def test_push_says_what_is_wrong(folder: Path, hub: HubServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_space(other, {"maze": {}}, [])
    (other / "requirements.txt").unlink()
    for given, options, error, message in (
        (tmp_path, {}, FileNotFoundError, "is no Space that `lmrl serve --space` wrote"),
        (other, {}, FileNotFoundError, "lacks requirements.txt; write it anew"),
        (folder, {"private": True, "tokens": [GOOD]}, ValueError, "leave --private or --token-file out"),
    ):
        with pytest.raises(error, match=message):
            push_space(given, "alice/never", **options)
    public, mine = ["--repo", "alice/public"], str(folder)
    assert push(hub, tmp_path, mine, *public).returncode == 0
    for words, token, message in (
        (public, None, "there is no token; log in"),
        (public, "hf_alice_ro", "the token of alice only reads"),
        (public, "hf_bob", "bob cannot publish to 'alice'; allowed: bob\n"),
        ([*public, "--private"], "hf_alice", "is there and public; make it private"),
    ):
        done = push(hub, tmp_path, mine, *words, token=token)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert push(hub, tmp_path, mine, "--repo", "acme/closed", "--private").returncode == 0
    assert hub.store.repositories["space", "acme/closed"].private


def test_push_leaves_other_spaces_alone(folder: Path, hub: HubServer, tmp_path: Path) -> None:
    code = (
        "from huggingface_hub import HfApi\n"
        "api = HfApi()\n"
        "api.create_repo('alice/chat', repo_type='space', space_sdk='docker')\n"
        "for name in ('app.py', 'Dockerfile'):\n"
        "    api.upload_file(path_or_fileobj=b'FROM x', path_in_repo=name, repo_id='alice/chat', repo_type='space')\n"
    )
    subprocess.run([sys.executable, "-c", code], env=client_environment(hub, tmp_path), check=True)
    done = push(hub, tmp_path, str(folder), "--repo", "alice/chat")
    assert done.returncode == 1 and "space alice/chat already has Dockerfile, which is not from lmrl" in done.stderr
    assert push(hub, tmp_path, str(folder), "--repo", "alice/chat", "--force").returncode == 0
    assert "app.py" not in hub.store.repositories["space", "alice/chat"].commit_at("main").files
