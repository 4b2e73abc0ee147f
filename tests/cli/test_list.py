"""What `tilelink list` says of programs: names, sizes, schedules, and a line on what each is."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from tilelink import compiler
from tilelink.cli import app

OWN = """# Two ways to double. They
# are alike.

program one(M = 8):
    x : in  [M]
    y : out [M]

    compute f(i: M):
        y[i] = x[i] * 2.0

schedule small for one:
    f tile(i=4)

# Notes on what follows.

# Its sum, by a number
# of one's own. Slow.
program other(M, s: f32, activation: function):
    x : in  [M]
    b : in  [M] = 0
    y : out [M]

    compute f(i: M):
        y[i] = activation(x[i] * s + b[i])

schedule default for other:
    f tile(i=8)
"""


def tilelink(*args: str) -> Result:
    return CliRunner().invoke(app, [*args])


def test_each_program_of_the_library_is_listed() -> None:
    """With its sizes and its schedules, and each file with a line on what it is."""
    lines = tilelink("list").stdout.splitlines()
    heads = [line for line in lines if line.startswith("  ") and not line.startswith("    ")]
    for module in compiler.library():
        name = Path(module.file).stem
        assert any(line.startswith(f"{name}: ") and line.endswith(".") for line in lines), name
        for program in module.programs:
            names = dict.fromkeys(["default", *(one.name for one in module.schedules_of(program))])
            (head,) = [line for line in heads if line.startswith(f"  {program.name}(")]
            assert head.endswith(": " + ", ".join(names)), program.name
            assert all(one.name in head for one in program.params)
    assert len(heads) == sum(len(module.programs) for module in compiler.library())
    assert "  top_k_gate(M = 32, E = 8, k = 2): default, small, gpu" in heads


def test_a_file_is_listed_with_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "mine.tl"
    path.write_text(OWN)
    assert tilelink("list", str(path)).stdout.splitlines() == [
        "mine: Two ways to double.",
        "  one(M = 8): default, small",
        "  other(M, s: f32), --set also activation, b: default",
        "    Its sum, by a number of one's own.",
    ]


def test_a_comment_right_above_the_first_program_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.tl"
    path.write_text(OWN.replace("alike.\n\n", "alike.\n"))
    assert tilelink("list", str(path)).stdout.splitlines()[:2] == [
        "mine: Two ways to double.",
        "  one(M = 8): default, small",
    ]


def test_a_program_of_the_library_is_listed_alone_by_its_name() -> None:
    lines = tilelink("list", "all_gather_ring").stdout.splitlines()
    assert [line for line in lines if line.startswith("  ")] == ["  all_gather_ring(Ms, K): default, ring, chunks"]


def test_a_list_for_programs_to_read() -> None:
    (file,) = json.loads(tilelink("list", "m2n", "--json").stdout)["files"]
    (program,) = file["programs"]
    assert (file["name"], program["name"], program["schedules"]) == ("m2n", "m2n", ["default", "copy_sms"])
    assert program["head"] == "m2n(Ms, N, K, A: i32 = 1) over attention = ranks[0 : A], experts = ranks[A :]"


def test_what_cannot_be_listed_is_said(tmp_path: Path) -> None:
    done = tilelink("list", "m3n")
    assert done.exit_code == 1 and "did you mean m2n?" in done.stderr
    path = tmp_path / "mine.tl"
    path.write_text(OWN.replace("y[i] = x[i] * 2.0", "y[i] = z[i]"))
    done = tilelink("list", str(path))
    assert done.exit_code == 1 and "unknown" in done.stderr and not done.stdout
