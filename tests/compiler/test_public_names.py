"""The public names, and that importing them is cheap."""

import subprocess
import sys

import pytest

import tilelink


def test_importing_loads_neither_torch_nor_triton_nor_a_parser() -> None:
    code = "import sys, tilelink; print(sorted({'torch', 'triton', 'lark', 'numpy', 'rich'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("name", tilelink.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(tilelink, name) is not None
    assert name in dir(tilelink)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tilelink.nothing


def test_a_schedule_is_built_by_a_chain() -> None:
    built = tilelink.schedule("p").tile("gemm", i=32).buffers("xs", 3)
    assert str(built) == "schedule custom for p:\n    gemm tile(i=32)\n    xs buffers 3\n"


def test_subpackages_import_in_any_order() -> None:
    code = "import tilelink; import tilelink.scheduling.schedule as v; from tilelink.lowering import orders; "
    code += "print(tilelink.schedule('p', name='x').name, v.Schedule.__name__, orders.TILE.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["x", "Schedule", "tile"], done.stderr
