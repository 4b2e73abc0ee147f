"""Words of data and flag in the PTX: one store and one load of 64 bits each, and no fence or signal between them."""

from __future__ import annotations

import re

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


def ptx(dtype: str, processor: str, deadline: bool) -> str:
    module = next(one for one in compiler.library() if any(p.name.startswith("all_reduce_") for p in one.programs))
    program = module.program("all_reduce_one_shot_pushed")
    bound = bind(program, module.schedule("words", program), {"M": 8, "N": 200}, 2, target(processor), dtype)
    plan = make_plan(bound)
    verify(plan)
    result = emit(bound, plan.thresholds)
    (kernel,) = result.kernels
    types, constants = signature(kernel, bound), {} if deadline else {"debug_block": None}
    types |= {"debug_block": "*i64"} if deadline else {}
    function = getattr(store.load(store.save(result.text)), kernel.name)
    compiled = compile_source(
        function, types, constants, bound.target, num_warps=kernel.num_warps, num_stages=kernel.num_stages
    )
    return str(compiled.asm["ptx"])


@pytest.mark.parametrize(("dtype", "processor", "deadline"), [("f32", "sm_90", False), ("bf16", "sm_80", True)])
def test_words_are_stored_and_loaded_at_once_and_nothing_is_fenced(dtype: str, processor: str, deadline: bool) -> None:
    text = ptx(dtype, processor, deadline)
    assert re.search(r"mov\.b64 %word, \{%r\d+, %r\d+\};\s*@%p st\.relaxed\.sys\.global\.b64 \[%rd\d+\], %word;", text)
    assert "ld.volatile.global.b64" in text
    for other in ("fence", "membar", "red.release", "ld.acquire", "st.release"):
        assert other not in text, other
    assert ("%globaltimer" in text) is deadline
    assert ("atom.relaxed.sys.global.cas" in text) is deadline
