"""What users are told to type works today: commands that install Etrax, the table of versions, links."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from etrax._install import PUBLISHED, install_command

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_text_installs_as_it_can_be_installed_today():
    texts = release()
    paths = texts.readable()
    assert len(paths) > 100
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert texts.in_the_form_of_today(text) == text, path


@pytest.mark.parametrize(
    "text",
    ["pip install etrax", 'pip install "etrax[nir]"', "pip install 'etrax[nir]'", 'pip install -e ".[nir]"',
     "pip install -e .", r"pip install \"etrax[nir,viz]\""],
)  # fmt: skip
def test_every_way_to_write_the_command_is_seen(text):
    extras = re.findall(r"\[([\w,]+)\]", text)
    expected = install_command(*(extras[0].split(",") if extras else ()))
    assert release().in_the_form_of_today(f"`{text}`.").replace("\\", "") == f"`{expected}`."


def test_commands_of_other_packages_stay():
    text = 'pip install optax; pip install "jax[cuda12]"; pip install etraxion; pip install ./x'
    assert release().in_the_form_of_today(text) == text


def test_extras_that_are_named_are_there():
    extras = set(PROJECT["optional-dependencies"])
    for path in release().readable():
        for match in release().COMMAND.finditer(path.read_text(encoding="utf-8")):
            assert set((match["extras"] or "test").split(",")) <= extras, path


def test_the_install_page_has_every_extra_and_the_versions_of_both_stacks():
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for extra in PROJECT["optional-dependencies"]:
        assert f"`{extra}`" in text, extra
    for stack in ("311", "313"):
        for line in (ROOT / ".ci" / f"stack-{stack}.txt").read_text(encoding="utf-8").split():
            package, version = line.split("==")
            row = next((r for r in text.splitlines() if r.startswith("|") and package in r and version in r), None)
            assert row or package == "braintrace", line
    assert re.search(r"\bGPU\b", text) and re.search(r"\bTPU\b", text)


def test_no_link_is_printed_that_does_not_exist():
    """Until the project has addresses, no text has one of a repository or site of ours."""
    if PROJECT.get("urls"):
        pytest.skip("the project has addresses")
    ours = re.compile(r"(?:github\.com|readthedocs\.io|pypi\.org/project|github\.io)/?[\w./-]*etrax", re.IGNORECASE)
    for path in [*release().readable(), ROOT / "CONTRIBUTING.md", ROOT / "CITATION.cff", ROOT / "SECURITY.md"]:
        assert not ours.search(path.read_text(encoding="utf-8")), path
    assert not PUBLISHED
