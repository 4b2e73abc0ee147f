"""README and examples do what they say."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tilelink
from docs import pages
from tests.tiers import thorough
from tests.unit.two_ranks import run_on_two_ranks
from tilelink import errors
from tilelink.backend.names import DERIVED, FRAME
from tilelink.cli import app
from tilelink.errors import TileLinkError
from tilelink.frontend.parser import parse_text
from tilelink.verifier import RULES

ROOT = Path(__file__).parents[1]


def run(path: Path) -> str:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_here(path: Path) -> str:
    """As `run`, in this process, which has imported everything and has a server that forks CPU ranks."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            assert ended.code in (None, 0), ended.code
    return said.getvalue()


def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(code.strip().splitlines()) <= 35
    script = tmp_path / "readme.py"
    script.write_text(code)
    assert "@triton.jit" in run_here(script)


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", text, re.M)
    assert targets
    assert all(re.search(rf"^{t}:", makefile, re.M) for t in targets)


@pytest.mark.parametrize("page", ["language", "lowered"])
def test_the_programs_of_a_page_parse(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"```tilelink\n(.*?)```", text, re.S)
    whole = [b for b in blocks if b.startswith(("program", "schedule"))]
    assert whole
    for block in whole:
        module = parse_text(block)
        assert module.programs or module.schedules


def test_the_programs_of_the_tour_run(tmp_path: Path) -> None:
    tour, heading, _ = (ROOT / "docs" / "language.md").read_text().partition("\n## Declarations\n")
    assert heading
    blocks = re.findall(r"```tilelink\n(.*?)```", tour, re.S)
    assert len(blocks) >= 4
    for block in blocks:
        (tmp_path / "tour.tl").write_text(block)
        done = CliRunner().invoke(app, ["run", str(tmp_path / "tour.tl"), "--all", "--ranks", "3"])
        assert done.exit_code == 0, done.output


def test_the_function_of_the_language_page_is_a_program_that_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "language.md").read_text(), re.S)
    script = tmp_path / "language.py"
    use = """
import torch
tables = {"source": torch.tensor([[1, 0, 2], [0, 0, 1], [2, 1, 0]])}
given = [{"x": torch.randn(3, 5)} for _ in range(3)]
made = tilelink.compile(gather_scaled, ranks=3, dims={"B": 3, "N": 5, "scale": 0.5}, tables=tables)(given)
for rank in range(3):
    rows = torch.stack([given[int(s)]["x"][b] for b, s in enumerate(tables["source"][rank])])
    torch.testing.assert_close(made[rank]["y"], rows * 1.5)
"""
    script.write_text(f"{code}{use}")
    assert parse_text(run_here(script)).programs[0].name == "gather_scaled"


def test_the_names_that_the_language_page_forbids_are_forbidden() -> None:
    text = (ROOT / "docs" / "language.md").read_text()
    (listed,) = re.findall(r"\bThe\s+names\s+are\s+(.*?)\.\n\n", text, re.S)
    assert set(re.findall(r"`(\w+)`", listed)) == FRAME
    (derived,) = re.findall(r"of a tensor\s+`x`\s+these are (.*?)\. The\s+names", text, re.S)
    assert set(re.findall(r"`x_(\w+)`", derived)) == set(DERIVED)


@pytest.mark.parametrize("name", sorted(FRAME))
def test_a_name_that_kernels_use_is_refused_with_another_one(name: str) -> None:
    text = "program p(M):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n"
    text += f"        {name} = x[i]\n        y[i] = {name}\n"
    with pytest.raises(TileLinkError, match=rf"(?s){name}"):
        tilelink.compile(tilelink.parse(text).program(), ranks=1, dims={"M": 8})


def test_the_code_of_the_search_page_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "search.md").read_text(), re.S)
    script = tmp_path / "search.py"
    script.write_text(code)
    assert "schedule found for gemm_rs_" in run_here(script)


PAGES = ("start", "overlap", "six_schedules", "gpus", "errors", "research", "diagnose")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_says(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its programs, code, commands and pictures (docs/pages.py). `--update-golden` writes what they give into it."""
    path = pages.DOCS / f"{name}.md"
    if request.config.getoption("--update-golden"):
        list(pages.update(path))
    text = path.read_text()
    played = pages.play(text, tmp_path, name)
    assert played.text == text
    assert played.text.count("\n$ tilelink") + len(re.findall("^```python", text, re.M)) > 0
    for picture, drawn in played.pictures.items():
        assert (pages.DOCS / "pictures" / picture).read_text() == drawn, picture


def test_what_a_page_says_is_compared(tmp_path: Path) -> None:
    text = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    assert pages.play(text, tmp_path).text == text.replace("3", "2")
    program = (
        "```tilelink\nprogram p(M):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = x[i]\n```\n"
    )
    command = "```console\n$ tilelink check p.tl -n 2 --set M=8\n{}```\n"
    said = pages.play(program + command.format("p: unsafe\n"), tmp_path).text
    assert said == program + command.format("p: safe on 2 ranks (cpu, bf16), M=8: default (2 tiles)\n")
    with pytest.raises(ValueError, match="0 times, not once"):
        pages.play(program + "```diff\n-        y[i] = z[i]\n+        y[i] = x[i]\n```\n", tmp_path)


def test_each_rule_has_a_refused_program_and_its_remedy() -> None:
    """On docs/errors.md, whose commands a test above runs: the first answer is of the rule, the last is `safe`."""
    _, *entries = re.split(r"^## (\w+)\n", (pages.DOCS / "errors.md").read_text(), flags=re.M)
    rules = dict(zip(entries[::2], entries[1::2], strict=True))
    assert set(rules) == set(RULES)
    of_rule = {one.rule.replace(" ", "_"): one.__name__ for one in errors.VerificationError.__subclasses__()}
    for rule, entry in rules.items():
        answers = re.findall(r"^```(?:console\n\$[^\n]*|text)\n(.*?)```", entry, re.S | re.M)
        assert answers[0].startswith(f"{of_rule[rule]}: "), rule
        assert re.match(r"safe\n$|\w+: safe on ", answers[-1]) and "**Remedy.**" in entry, rule


ALONE = ("04_search", "05_your_kernel", "10_mixture_of_experts")
"""Examples with a process of their own: they register what tests would find, or start processes."""


@thorough(unless=lambda path: path.stem not in (*ALONE, "06_experts"))  # pages of these, and their program, are run too
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path: Path) -> None:
    assert run(path) if path.stem in ALONE else run_here(path)


WATCHED = "import faulthandler, sys\nfaulthandler.dump_traceback_later(220, exit=True)\n"
"""Ranks that wait for one another for ever say where, before the run is ended."""


def run_by_torchrun(script: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=script.parent)
    assert done.returncode == 0, done.stderr[-6000:]


def run_forked(script: Path) -> None:
    run_on_two_ranks("tests.unit.script_ranks", [str(script)])


@pytest.mark.parametrize(("page", "least", "run_ranks"), [
    ("your_kernel", 6, run_forked), ("decode", 3, run_by_torchrun), ("modules", 7, run_forked),
])  # fmt: skip
def test_the_code_of_a_page_runs_on_two_ranks(
    page: str, least: int, run_ranks: Callable[[Path], None], tmp_path: Path
) -> None:
    """Without a GPU. One of the pages by the command that all of them give."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= least and "torchrun --nproc-per-node 2 script.py" in text
    runs_on_two_ranks(blocks, run_ranks, tmp_path)


def test_calls_in_models_run_on_two_ranks(tmp_path: Path) -> None:
    """The `py` blocks of the first page and of the README.

    No other group of ranks after theirs: torch has one store for both, in which a rank that comes first finds the
    addresses that the other one had in the first group, and waits for ever.
    """
    start, readme = (pages.DOCS / "start.md").read_text(), (ROOT / "README.md").read_text()
    (tmp_path / "first.tl").write_text("\n".join(re.findall(r"```tilelink\n(.*?)```", start, re.S)))
    (first,), (model,) = (re.findall(r"```py\n(.*?)```", text, re.S) for text in (start, readme))
    use = "mlp = MLP(32, 48)\nmlp(torch.randn(8, 32)).sum().backward()\nassert mlp.up.grad.norm() > 0\n"
    runs_on_two_ranks(
        [first, model, use, "rank = dist.get_rank()\ndist.destroy_process_group()\n"], run_forked, tmp_path
    )


def runs_on_two_ranks(blocks: Sequence[str], run_ranks: Callable[[Path], None], folder: Path) -> None:
    """Blocks that say which `rank` they run on end on both ranks."""
    script = folder / "script.py"
    code = [f"{WATCHED}sys.path.insert(0, {str(ROOT)!r})", *blocks, "open(f'rank {rank} is done', 'x').close()"]
    script.write_text("\n".join(code))
    run_ranks(script)
    assert {path.name for path in folder.glob("rank*")} == {"rank 0 is done", "rank 1 is done"}
