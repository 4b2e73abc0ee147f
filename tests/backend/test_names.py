# pyright: basic
"""Names of generated source: the frame's own are all known, so that no name of a user is one of them."""

from __future__ import annotations

import re
import symtable
from dataclasses import replace

import pytest

from tests.backend.samples import emitted, numbered
from tests.compiler.library import SIZES, cases, fitted, in_turn
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.backend.names import DERIVED, FRAME, user_names
from tilelink.errors import EmitError
from tilelink.ir.program import Assign
from tilelink.ir.visitor import statements
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan
from tilelink.target import target

STEMS = (
    r"acc|k|c|v|offs|offs_\w+|\w+_tile|\w+_remote|channel|end_\w+|start_\w+|held|held_tile|total|pad|step|box|number|row|column"
    r"|best|place|rising|top|sums|first_\w+|segment|within|there|ends"
    r"|buffer|phase|previous|result_buffer|result_phase|iteration|part|piece|pieces|rows|columns|offsets|\w+_pointers|\w+_next"
    r"|like|product|following|whole|most_\w+|least_\w+|\w+_pieces|tile_buffer|tile_phase|before|operand|later|later_phase|start|stop|\w+_awaited"
)
NUMBERED = re.compile(rf"({STEMS})|.*_[0-9]+|.*_boxes_[0-9]+x[0-9]+(_swizzled)?(_at_[0-9]+)?|THRESHOLDS_.*")
"""Temporaries, which a writer keeps apart from the names of users, and names that tell what they are by themselves."""
FAR = re.compile(r"_.*_(load|store)_.*")
"""Functions in which no name of a user stands."""
ROLE = re.compile(r"_.*_(loader|consumer|storer)")
"""Functions of roles, for which the emitter refuses stages with their names."""
CONSTANT = re.compile(r"\b(\w+): gl\.constexpr = ")
"""Constants of functions in Gluon, which are kept apart from the names of users."""


def used(text: str) -> set[str]:
    """Every name in the functions of a module, and those that the module binds."""
    tables, found = [symtable.symtable(text, "module", "exec")], set()
    while tables:
        table = tables.pop()
        tables += [one for one in table.get_children() if not FAR.fullmatch(one.get_name())]
        # Python 3.14 evaluates annotations in functions of its own, whose parameter is called ".format".
        found |= {s.get_name() for s in table.get_symbols() if s.get_name().isidentifier()}
    found -= set(CONSTANT.findall(text))
    return {name for name in found if not any(one.fullmatch(name) for one in (NUMBERED, FAR, ROLE))}


def users(bound: Bound) -> set[str]:
    """The names of a program, and those made of them."""
    found = set(bound.tensors) | set(bound.stages) | {f"_{name}" for name in bound.stages}
    for stage in bound.stages.values():
        found |= {*stage.tiles, *(s.name for s in statements(stage.stage.body) if isinstance(s, Assign))}
    ends = (*DERIVED, *(f"{kind}_thresholds" for kind in ("tile", "peer", "rank")), "m", "l", "acc")
    return found | {f"{name}_{end}" for name in found for end in ends}


@thorough(unless=lambda dialect, machine, share: share == 3 and (dialect, machine) != ("triton", "cpu"))
@pytest.mark.parametrize(
    ("dialect", "machine"), [("triton", "cpu"), ("triton", "sm_90"), ("traced", "sm_90"), ("triton_dist", "sm_90")]
)
@pytest.mark.parametrize("share", [3, 1])
def test_every_name_that_is_no_users_is_one_of_the_frame(dialect: str, machine: str, share: int) -> None:
    """share: one in so many programs."""
    unknown: dict[str, str] = {}
    for program, schedule in (case for case in in_turn(cases()) if one_in(share, case[0].name)):
        dims = {p.name: p.example or (SIZES[k % 4] if p.kind == "dim" else 2) for k, p in enumerate(program.params)}
        dims = fitted((program, schedule), dims)
        try:
            bound = bind(program, schedule, dims, 4, target(machine), "bf16", dialect=dialect)
            text = numbered(emit(bound, make_plan(bound).thresholds).text)
        except EmitError:  # the dialect cannot say it
            continue
        unknown |= dict.fromkeys(used(text) - users(bound) - FRAME, program.name)
    assert not unknown


TEXT = """
program p(M):
    x : in [ranks, M]
    h : symmetric [ranks, M]
    y : out [ranks, M]
    comm send(p: ranks, i: M):
        tile_push_data(h[rank, i] @ p, x[p, i])
        producer_tile_notify(h[rank, i] @ p)
    compute take(q: ranks, i: M):
        consumer_tile_wait(h[q, i])
        y[q, i] = h[q, i]
schedule s for p:
    send on copy_engine, tile(i=8)
    h channel(i=2)
"""


@pytest.mark.parametrize("name", ["float", "THRESHOLDS_h_tile", "h_boxes_8x8"])
def test_a_name_that_source_uses_is_refused(name: str) -> None:
    module = compiler.parse(TEXT.replace("q", name))
    bound = bind(module.programs[0], module.schedules[0], {"M": 16}, 2, target("cpu"), "f32")
    with pytest.raises(EmitError, match=f"the name '{name}' in stage take means something else"):
        emitted(bound)


def test_an_index_of_a_queue_is_no_temporary() -> None:
    module = compiler.parse(TEXT.replace("p: ranks, i: M", "channel: ranks, i: M").replace("@ p", "@ channel")
                            .replace("x[p,", "x[channel,"))  # fmt: skip
    bound = bind(module.programs[0], module.schedules[0], {"M": 16}, 2, target("cpu"), "f32")
    text = emitted(bound).text
    assert "channel = tile" in text and "for channel in" not in text and "for channel_1 in" in text


def test_a_tensor_is_not_called_as_the_module_of_a_users_function() -> None:
    head = "program p(M):\n    math : in [M]\n    y : out [M]\n"
    text = head + "    compute f(i: M):\n        y[i] = call math.exp(math[i])\n"
    bound = bind(compiler.parse(text).programs[0], None, {"M": 16}, 1, target("cpu"), "f32")
    with pytest.raises(EmitError, match="the name 'math' in stage f means something else") as refused:
        emitted(bound)
    assert refused.value.location is not None and refused.value.location.line == 2  # of the tensor, not of the stage
    assert refused.value.hint == "choose another name, such as math_"


STATE = """program p(M, N):
    q : in [M, N]
    k : in [N, N]
    y : out [M, N]
    compute f(i: M):
        v_m = q[i, :]
        v = {first}
        y[i, :] = {last} + v_m
"""


def test_names_like_those_of_a_softmax_state_are_taken_where_there_is_one() -> None:
    def text(first: str, last: str) -> str:
        module = compiler.parse(STATE.format(first=first, last=last))
        return emitted(bind(module.programs[0], None, {"M": 16, "N": 16}, 1, target("cpu"), "f32")).text

    assert "v_m = q_tile" in text("q[i, :] * 2.0", "v")
    with pytest.raises(EmitError, match="the name 'v_m' in stage f means something else"):
        text("online_softmax(f32)\n        v = attend(v, q[i, :], k[:, :], k[:, :], 1.0)", "finish(v)")


@pytest.mark.parametrize("name", ["i", "v"])
def test_a_tensor_that_a_pass_makes_is_not_called_as_an_index_or_a_value(name: str) -> None:
    text = STATE.format(first="q[i, :] * 2.0", last="v")
    bound = bind(compiler.parse(text).programs[0], None, {"M": 16, "N": 16}, 1, target("cpu"), "f32")
    bound = replace(bound, tensors={**bound.tensors, name: bound.tensors["k"]})
    with pytest.raises(EmitError, match=f"the name '{name}' in stage f means something else"):
        user_names(bound, bound.stages["f"])
