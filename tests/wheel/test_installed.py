"""The built wheel, installed away from the checkout: nothing is missing and the main job runs."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from importlib.metadata import entry_points, version
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TILEWRIGHT = Path(sys.executable).parent / "tilewright"
FOLDERS = ("agent", "harness", "knowledge", "skills")


def test_the_package_under_test_is_the_installed_one() -> None:
    for folder in FOLDERS:
        module = importlib.import_module(f"tilewright.{folder}")
        assert module.__file__ is not None
        assert Path(module.__file__).is_relative_to(sys.prefix)


def test_no_bare_folder_name_is_installed() -> None:
    for folder in FOLDERS:
        assert not list((Path(sys.prefix) / "lib").glob(f"python*/site-packages/{folder}"))


def test_every_file_of_the_checkout_is_in_the_wheel() -> None:
    for folder in FOLDERS:
        module = importlib.import_module(f"tilewright.{folder}")
        installed = Path(str(module.__file__)).parent
        wanted = {
            p.relative_to(ROOT / folder)
            for p in (ROOT / folder).rglob("*")
            if p.is_file() and "__pycache__" not in p.parts
        }
        found = {p.relative_to(installed) for p in installed.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
        assert wanted == found


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_can_be_imported(folder: str) -> None:
    package = importlib.import_module(f"tilewright.{folder}")
    names = [m.name for m in pkgutil.walk_packages(package.__path__, f"tilewright.{folder}.")]
    assert names
    apart = [n for n in names if not n.endswith("__main__")]
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            "import importlib, sys\nfor n in sys.argv[1:]: importlib.import_module(n)",
            *apart,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_data_that_the_product_reads_is_there() -> None:
    assert (files("tilewright.knowledge") / "directions.toml").is_file()
    assert (files("tilewright.knowledge") / "targets" / "cuda-90.toml").is_file()
    for skill in ("triage", "memory"):
        assert (files(f"tilewright.skills.{skill}") / "SKILL.md").is_file()


def test_the_skills_are_found_by_their_entry_points() -> None:
    assert {p.name for p in entry_points(group="tilewright.skills")} >= {"triage", "memory"}


def test_the_console_script_knows_its_version() -> None:
    done = subprocess.run([TILEWRIGHT, "--version"], capture_output=True, text=True, check=True)
    assert version("tilewright") in done.stdout


def test_a_kernel_is_optimised_from_another_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [TILEWRIGHT, "optimize", ROOT / "examples" / "rms_norm.py", "--rounds", "1", "--run", "run", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "finished"
    assert last["rounds"] == 1
    assert last["best"]["baseline"] == "start"
    checked = subprocess.run([TILEWRIGHT, "fsck", "run"], capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
