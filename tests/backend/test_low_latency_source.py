"""Words of data and flag in the PTX: one store and one load of 64 bits each, and no fence or signal between them."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest

from tilelink import compiler
from tilelink.backend import store
from tilelink.backend.context import signature
from tilelink.backend.emit import emit
from tilelink.lowering.bind import bind
from tilelink.planning.plan import make_plan
from tilelink.runtime.cuda.compile_offline import compile_source
from tilelink.target import target
from tilelink.verifier import verify


def built(dtype: str, processor: str, deadline: bool, *, rows: int = 8, columns: int = 200) -> Any:
    module = next(one for one in compiler.library() if any(p.name.startswith("all_reduce_") for p in one.programs))
    program = module.program("all_reduce_one_shot_pushed")
    bound = bind(program, module.schedule("words", program), {"M": rows, "N": columns}, 2, target(processor), dtype)
    plan = make_plan(bound)
    verify(plan)
    result = emit(bound, plan.thresholds)
    (kernel,) = result.kernels
    types, constants = signature(kernel, bound), {} if deadline else {"debug_block": None}
    types |= {"debug_block": "*i64"} if deadline else {}
    function = getattr(store.load(store.save(result.text)), kernel.name)
    return compile_source(
        function, types, constants, bound.target, num_warps=kernel.num_warps, num_stages=kernel.num_stages
    )


@pytest.mark.parametrize(("dtype", "processor", "deadline"), [("f32", "sm_90", False), ("bf16", "sm_80", True)])
def test_words_are_stored_and_loaded_at_once_and_nothing_is_fenced(dtype: str, processor: str, deadline: bool) -> None:
    text = str(built(dtype, processor, deadline).asm["ptx"])
    assert re.search(
        r"mov\.b64 %word, \{%r\d+, %r\d+\};\s*@%chosen st\.relaxed\.sys\.global\.b64 \[%rd\d+\], %word;", text
    )
    assert "ld.volatile.global.b64" in text
    for other in ("fence", "membar", "red.release", "ld.acquire", "st.release"):
        assert other not in text, other
    assert ("%globaltimer" in text) is deadline
    assert ("atom.relaxed.sys.global.cas" in text) is deadline


@pytest.mark.parametrize(
    ("rows", "columns", "words", "deadline"),
    [(1, 64, 32, False), (1, 128, 128, True), (16, 16, 128, False), (4, 128, 256, False)],
)
def test_no_word_is_loaded_by_several_warps_of_which_one_is_counted(
    rows: int, columns: int, words: int, deadline: bool
) -> None:
    """Where a tile has 64 words for 128 threads, two warps would load each, and the sum would count one of them.

    The other one may have looked before the word came, and its data may be what the program goes on with. Words of one
    warp are counted by each warp.
    """
    text = built("bf16", "sm_90", deadline, rows=rows, columns=columns).asm["ttgir"]
    shapes = re.findall(r"tt\.load .*isVolatile = true.*tensor<([\dx]+)x!tt\.ptr<i64>", text)
    assert len(shapes) >= 2 and {prod(map(int, shape.split("x"))) for shape in shapes} == {words}
