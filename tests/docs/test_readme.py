"""What the README shows is what happens: its commands run, its output blocks are real.

Run as a program, it writes the real output into the blocks.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
MORPHLING = Path(sys.executable).with_name("morphling")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"<!-- output: (?P<command>.+?) -->\n```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The fenced blocks of the README in that language, in order."""
    return [text for kind, text in FENCE.findall(README.read_text(encoding="utf-8")) if kind == language]


def commands(language: str = "sh") -> list[str]:
    """Every command line of the README's `sh` blocks, without comments and prompts; `\\` joins lines.

    Blocks in `bash` take minutes or need more than is installed for tests; what they name is looked at, not run.
    """
    lines = "\n".join(blocks(language)).replace("\\\n", " ").splitlines()
    bare = [" ".join(shlex.split(line.removeprefix("$ "), comments=True)) for line in lines]
    return [line for line in bare if line]


def playground(folder: Path) -> Path:
    """A folder that looks like a checkout to relative paths, so that run folders do not land in the real one."""
    for name in ("scenarios", "device_profiles", "network_traces"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one `morphling …` command in ``folder`` with the environment of this interpreter and a plain terminal."""
    program, *words = shlex.split(command)
    assert program == "morphling", f"the README shows a command that this test does not know how to run: {command}"
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(
        [str(MORPHLING), *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def settled(text: str) -> list[str]:
    """Lines of output without what differs from run to run: the time in a run folder's name, wall time, widths."""
    text = re.sub(r"\d{8}T\d{6}Z(-\d+)?", "<UTC time>", text)
    lines = (" ".join(settled_line(line).split()) for line in text.splitlines())
    return [line for line in lines if line]


def settled_line(line: str) -> str:
    if re.search(r"\bwall[ _]time", line, re.IGNORECASE):
        line = re.sub(r"\d+(\.\d+)?(\s*(s|ms|min)\b)?", "<wall time>", line)
    return re.sub(r"([─━═-])\1+", r"\1", line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return playground(tmp_path_factory.mktemp("readme"))


def test_it_opens_with_the_two_commands():
    assert commands()[:2] == ["make run", "make test"]


def test_every_command_runs(folder):
    """In the order shown, in one folder, because later commands use what earlier ones left."""
    for command in commands():
        if command.startswith("make "):
            # Running make here would build a second environment; its targets are what can go stale.
            words = ["make", "-n", *command.split()[1:]]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        else:
            done = run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_what_long_commands_name_is_there(folder):
    long = [shlex.split(command) for command in commands("bash")]
    assert {words[1] for words in long if words[0] == "morphling"} == {"compare", "figures", "emulate"}
    for words in long:
        for word in words:
            if "/" in word:
                assert (ROOT / word).is_file(), word
            if word.startswith("--") and words[0] == "morphling":
                assert word in run(f"morphling {words[1]} --help", folder).stdout
    known = run("morphling strategies", folder).stdout
    (asked,) = [words[words.index("--strategies") + 1] for words in long if "--strategies" in words]
    assert all(f"\n{name} " in f"\n{known}" for name in asked.split(","))


def test_there_is_a_real_output_block():
    assert "morphling run scenarios/quickstart.yaml" in [
        m["command"] for m in OUTPUT.finditer(README.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("match", list(OUTPUT.finditer(README.read_text(encoding="utf-8"))), ids=lambda m: m["command"])
def test_output_is_what_the_readme_says(match, folder):
    done = run(match["command"], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert settled(done.stdout) == settled(match["text"]), "run `make readme` and look at what changed"


def test_the_python_blocks_run(folder):
    assert blocks("python")
    code = "\n".join(blocks("python"))
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_yaml_blocks_are_scenarios(folder):
    for number, text in enumerate(blocks("yaml")):
        (folder / "scenarios" / f"readme{number}.yaml").write_text(text, encoding="utf-8")
        done = run(f"morphling check scenarios/readme{number}.yaml", folder)
        assert done.returncode == 0, done.stdout + done.stderr


def test_settling_hides_only_what_differs():
    text = "run folder  runs/a-20260101T000000Z-2\n│ wall time │ 0.123 s │\n━━━━\niteration time   12.5 s\n"
    assert settled(text) == [
        "run folder runs/a-<UTC time>",
        "│ wall time │ <wall time> │",
        "━",
        "iteration time 12.5 s",
    ]


def refresh() -> None:
    """Write the real output of each marked command into the README."""

    def real(match: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as name:
            done = run(match["command"], playground(Path(name)))
        if done.returncode:
            raise SystemExit(f"{match['command']} failed:\n{done.stdout}{done.stderr}")
        text = "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())
        return f"<!-- output: {match['command']} -->\n```text\n{text}\n```"

    README.write_text(OUTPUT.sub(real, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    refresh()
