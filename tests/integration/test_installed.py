"""loadgen beside other people's packages called `analysis` and `traces`: from its repository, and from a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.fakes.cli import LOADGEN, unhurried

ROOT = Path(__file__).parents[2]
OTHERS = "raise SystemExit('somebody else’s package was imported')"
SWEEP = ["sweep", "--target", "virtual:fcfs", "--input", "16", "--output", "1", "--slo", "e2e:250ms",
         "--window", "300s", "--rate", "3", "--runs", "1", "--quiet", "--out", "virtual"]  # fmt: skip
RUN = ["run", "--target", "emulator:fcfs-fast", "--rate", "30", "--input", "16", "--output", "4", "--slo", "e2e:10s",
       "--window", "3s", "--warmup", "500ms", "--min-requests", "20", "--quiet", "--json", "--out", "live"]  # fmt: skip


def occupied(folder: Path) -> Path:
    for name in ("analysis", "traces"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(OTHERS)
    return folder


def loadgen(
    cwd: Path, command: list[str], *arguments: str, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run([*command, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def works_in(cwd: Path, path: Path | None = None) -> None:
    swept = loadgen(cwd, LOADGEN, *SWEEP, path=path)
    assert swept.returncode == 0, swept.stderr
    ran = loadgen(cwd, unhurried("loadgen." if path else ""), *RUN, path=path)
    assert ran.returncode == 0, ran.stderr
    assert "waiting" in json.loads(ran.stdout)["verdict"]["server"]  # the observer's process did its work too


@pytest.mark.slow
def test_it_runs_in_a_folder_that_has_an_analysis_of_its_own(tmp_path: Path) -> None:
    works_in(occupied(tmp_path))


def test_a_wrong_package_that_was_imported_before_is_refused_by_name(tmp_path: Path) -> None:
    (occupied(tmp_path) / "traces" / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import traces, loadgen"], cwd=tmp_path, capture_output=True, text=True
    )
    assert f"loadgen needs its own package 'traces' ({ROOT / 'traces'}), not that of {tmp_path}" in done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(into), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if built.returncode and "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("the build backend cannot be fetched")
    assert built.returncode == 0, built.stderr
    (made,) = into.glob("*.whl")
    return made


@pytest.mark.slow
def test_a_wheel_takes_no_name_but_its_own(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"loadgen"}
    for source in ("analysis/verdict.py", "traces/read.py", "scenarios/demo.toml", "py.typed"):
        assert f"loadgen/{source}" in names
    source = zipfile.ZipFile(wheel).read("loadgen/experiment/runner.py").decode()
    assert "\nfrom loadgen.analysis.judge import judge_run\n" in source
    assert "\nfrom analysis" not in source


@pytest.mark.slow
def test_a_wheel_works_beside_another_traces_and_in_a_folder_with_an_analysis(wheel: Path, tmp_path: Path) -> None:
    installed = occupied(tmp_path / "site")
    zipfile.ZipFile(wheel).extractall(installed)
    works_in(occupied(tmp_path / "here"), installed)
