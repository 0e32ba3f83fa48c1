"""The wheel is small, holds the package alone and works in an environment of its own."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".typed", ".html", ".css", ".js", ".svg", ""}
LARGEST = 1.65e6
"""Bytes of the wheel; docs/releases.md says what it holds."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USES = {"audio", "bench", "docs", "onnx", "ray", "serve", "studio", "track", "tune"}
GRAPHICS = re.compile(r"nvidia|cuda|cupy|triton", re.I)


@pytest.mark.slow
def test_the_wheel_works_where_only_its_dependencies_are(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "-q", "-w", tmp_path]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the builder of wheels is not at hand")
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < LARGEST
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert all(name.startswith("monge/") for name in names)
    assert {Path(name).suffix for name in names} <= SUFFIXES
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    # the dependencies of this environment, but not the package under test
    packages = [path for path in sys.path if path.endswith("site-packages")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(packages), MONGE_RUNS=str(tmp_path))
    for words in (["--version"], ["fit", "gaussian", "iris", "-q"], ["sample", "gaussian-iris"]):
        done = subprocess.run(
            [tmp_path / "env" / "bin" / "monge", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    code = "import monge; print(monge.__file__)"
    where = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert str(tmp_path) in where.stdout


def test_extras_are_named_by_use():
    assert set(PROJECT["optional-dependencies"]) >= USES


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_an_extra_adds_no_packages_for_graphics_cards(extra, tmp_path):
    """What pip would install beside what is here, which is torch for the processor."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--report", report]
    done = subprocess.run([*command, f"{ROOT}[{extra}]"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("the registry of packages is not at hand")
    names = [each["metadata"]["name"] for each in json.loads(report.read_text())["install"]]
    assert "torch" not in names
    assert not [name for name in names if GRAPHICS.search(name)]
