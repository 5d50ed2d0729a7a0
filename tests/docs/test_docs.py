"""Every code block of the README and the documentation is run, or, where it sets up a machine, looked through."""

import ast
import json
import os
import re
import shlex
import subprocess
from importlib.metadata import metadata
from pathlib import Path

import processes
import pytest
from omegaconf import OmegaConf

import verl_ext
from verl_ext import plugin
from verl_ext.settings import Settings

ROOT = Path(verl_ext.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```|^<!--python\n(.*?)^-->", re.MULTILINE | re.DOTALL)
"""A fenced block with its language, or Python in a comment, which readers do not see: what a block needs to run."""


def blocks(page):
    return [(found[1] or "python", found[2] or found[3]) for found in BLOCK.finditer(page.read_text())]


def of(*languages):
    return [page for page in PAGES if any(language in languages for language, _ in blocks(page))]


def test_every_block_is_in_a_language_that_is_run_or_is_output():
    found = {language for page in PAGES for language, _ in blocks(page)}
    assert found <= {"python", "bash", "yaml", "text"}


@pytest.mark.parametrize("page", of("python"), ids=lambda page: page.stem)
def test_the_python_of_a_page_runs_from_top_to_bottom(page):
    namespace = {"__name__": page.stem}
    try:
        for language, code in blocks(page):
            if language == "python":
                exec(compile(code, str(page), "exec"), namespace)  # noqa: S102
    finally:
        plugin.activate()


@pytest.mark.parametrize("page", of("yaml"), ids=lambda page: page.stem)
def test_the_yaml_of_a_page_is_settings(page):
    for language, code in blocks(page):
        if language == "yaml":
            assert Settings.of(OmegaConf.create(code)) != Settings()


COMMANDS = dict.fromkeys(
    line
    for page in of("bash")
    for language, code in blocks(page)
    if language == "bash"
    for line in (line.partition("#")[0].strip() for line in code.splitlines())
    if line
)


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.slow] * line.startswith("verl-ext doctor"), id=line) for line in COMMANDS],
)
def test_a_command_works_or_names_what_there_is(line, a_run):
    words = shlex.split(line)
    known = {
        "make": lambda: run(["make", "--dry-run", *words[1:]]),
        "pip": lambda: extras_exist(words),
        "export": lambda: variable_is_documented(words[1]),
        "verl-ext": lambda: succeeded(processes.verl_ext(*words[1:], env=ENVIRONMENT, cwd=a_run)),
    }
    known[words[0]]()


@pytest.fixture
def a_run(tmp_path):
    """A directory with the dumps of a run in it, as the pages name them."""
    rows = [
        {"input": "?", "output": "!", "gts": "", "score": 1.0, "step": 1, "task": task} for task in ("sum", "proof")
    ]
    dump = tmp_path / "outputs" / "my-run" / "rollout" / "1.jsonl"
    dump.parent.mkdir(parents=True)
    dump.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


ENVIRONMENT = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "verl_ext.autoload", "RAY_ADDRESS": "local"}


def run(command):
    succeeded(subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300))


def succeeded(done):
    assert done.returncode == 0, done.stdout + done.stderr


def extras_exist(words):
    wanted = re.findall(r"verl-ext\[(\w+)\]", " ".join(words))
    assert set(wanted) <= set(metadata("verl-ext").get_all("Provides-Extra"))
    assert words[1] == "install"


def variable_is_documented(assignment):
    name, _, value = assignment.partition("=")
    assert f"`{name}={value}`" in (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("example", sorted((ROOT / "docs" / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs(example):
    succeeded(processes.run(example.read_text(), env=ENVIRONMENT, cwd=ROOT))


# --- what must be on a page ------------------------------------------------------------------------------------------


def test_every_error_is_on_the_page_of_errors():
    page = (ROOT / "docs" / "errors.md").read_text()
    sources = "".join(file.read_text() for file in (ROOT / "verl_ext").rglob("*.py"))
    assert set(re.findall(r"^class (\w+)\(VerlExtError", sources, re.MULTILINE)) == set(
        re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    )


def test_every_warning_is_on_it_by_the_words_that_it_begins_with():
    page = (ROOT / "docs" / "errors.md").read_text()
    for file in sorted((ROOT / "verl_ext").rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) in (
                "warn_once",
                "warn",
            ):
                begins = beginning(call.args[1])
                assert begins in page, f"{file.name}: {begins!r} is not in docs/errors.md"


def beginning(message):
    """The longest piece of a message that is the same whatever it is about."""
    texts = [part.value for part in ast.walk(message) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return max((text.strip(" ,.;:'\"") for text in texts), key=len)[:24]


def test_every_option_and_every_variable_is_on_the_page_of_configuration():
    page = (ROOT / "docs" / "configuration.md").read_text()
    for option in Settings.__dataclass_fields__:
        assert f"`+verl_ext.{option}" in page
    assert plugin.DISABLE in page


def test_every_patch_site_that_guards_values_is_on_the_page_of_the_plugin():
    page = (ROOT / "docs" / "plugin.md").read_text()
    plugin.activate()
    for name, site in plugin._sites.items():
        guarded = next(line for line in page.splitlines() if line.endswith("it names the site and the way out |"))
        assert (site.guard is not None) == (f"`{name}`" in guarded)
