"""The wheel, built from the sdist, holds the package as it stands in the tree: code, grammar, templates, programs."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.house import sources


def tracked_files() -> list[str]:
    git = shutil.which("git")
    if git is None or not (sources.ROOT / ".git").exists():
        pytest.skip("needs a git checkout to tell the package's files from what lies around")
    listing = subprocess.run([git, "ls-files", "-z"], cwd=sources.ROOT, capture_output=True, text=True, check=True)
    return [name for name in listing.stdout.split("\0") if name and (sources.ROOT / name).is_file()]


def build(files: list[str], folder: Path) -> tuple[zipfile.ZipFile, set[str]]:
    """Builds from a copy of `files` alone, so that nothing built earlier slips in: the wheel, and the sdist's files."""
    tree, dist = folder / "tree", folder / "dist"
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sources.ROOT / name, tree / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(tree)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        return zipfile.ZipFile(wheel), {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.slow
def test_the_wheel_holds_the_package(tmp_path: Path) -> None:
    files = tracked_files()
    package = {name for name in files if name.startswith("tilelink/")}
    built, source = build(files, tmp_path)
    assert source >= {"README.md", "CHANGELOG.md", "LICENSE", "constraints.txt", "pyproject.toml", *package}
    with built as wheel:
        names = set(wheel.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "tilelink = tilelink.cli:app" in wheel.read(entry_points).decode()
    assert {name for name in names if ".dist-info/" not in name} == package
    assert {Path(name).suffix for name in package} >= {".py", ".j2", ".lark", ".tl", ".typed", ".html"}
