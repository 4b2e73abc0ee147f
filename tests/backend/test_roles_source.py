# pyright: basic
"""Kernels whose warps have roles: their source, and what Triton makes of it."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.backend.offline import compile_all
from tests.backend.samples import in_dialect, numbered
from tests.conftest import Golden
from tests.lowering import test_roles_counted as counted
from tests.lowering import test_roles_epilogue as epilogue
from tests.runtime.ptx import text
from tests.tiers import thorough
from tilelink import compiler
from tilelink.artifact import Boxes, TensorPointer
from tilelink.backend import store
from tilelink.backend.context import Emitted, shared_layout, signature
from tilelink.backend.emit import emit
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import EmitError
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan
from tilelink.runtime.cuda.compile_offline import compile_source, resources

TEXT = """program relay(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    u : in        [N, K]
    bias : in     [N]
    h : symmetric [M, K]
    c : local     [M, N]
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute gemm(i: M, j: N):
        consumer_tile_wait(h[i, :])
        c[i, j] = {value}
        producer_tile_notify(c[i, j])

    compute keep(i: M, j: N):
        consumer_tile_wait(c[i, j])
        y[i, j] = c[i, j]

schedule one for relay:
    send on {send}, tile(i=128)
    gemm on sm, tile(i={i}, j={j}, k=64), order(group(i, 2)), roles({roles}){more}
    keep on sm(4), tile(i={i}, j={j})
"""
DOT = "dot(h[i, :], w[j, :].T)"


@cache
def bound(
    value: str = DOT, i: int = 128, j: int = 256, roles: str = "consumers=2, buffers=4", on: str = "sm_90",
    send: str = "sm(4)", K: int = 320, N: int = 512, more: str = "",
) -> Bound:  # fmt: skip
    module = compiler.parse(TEXT.format(value=value, i=i, j=j, roles=roles, send=send, more=more), "relay.tl")
    sizes = {"M": 768 if not more else 128 * 131, "N": N, "K": K}
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target=on)


def emitted(made: Bound, dialect: str = "triton") -> Emitted:
    made = in_dialect(made, dialect)
    return emit(made, make_plan(made).thresholds)


def joined(source: str) -> list[str]:
    """The lines of a module, with those that go on below as one, without indentation before what is added."""
    lines: list[str] = []
    for line in source.splitlines():
        last = lines[-1] if lines and not lines[-1].lstrip().startswith(("#", "gl.warp_specialize")) else ""
        opened = sum(last.count(one) for one in "([") - sum(last.count(one) for one in ")]")
        if opened > 0:
            lines[-1] += f"{' ' if last.endswith(',') else ''}{line.strip()}"
        else:
            lines.append(line)
    return lines


def functions(source: str) -> dict[str, list[str]]:
    """The lines of each function of a module, without comments and constants."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in joined(source):
        if match := re.match(r"def (\w+)\(", line):
            name = match[1]
            found[name] = []
        elif name and line.strip() and not line.strip().startswith("#") and "constexpr = " not in line:
            found[name].append(line.strip())
    return found


def test_a_kernel_reads_as_its_roles(golden: Golden) -> None:
    source = emitted(bound(K=320)).text
    begin = source.index("@gluon.jit\ndef _gemm_loader")
    golden("relay_roles", numbered(source[begin : source.index("@triton.jit", begin)]))


def test_each_role_does_its_part_in_the_order_of_the_lowered_program() -> None:
    made = functions(emitted(bound()).text)
    kinds = {
        "wait": r"token \+= dl\.wait\(", "free": r"roles\.wait\(empty", "expect": r"roles\.expect\(full",
        "load": r"roles\.load", "full": r"roles\.wait\(full", "multiply": r"acc = roles\.multiply",
        "retire": r"acc = roles\.retire", "release": r"roles\.arrive\(empty",
        "room": r"roles\.wait\(drained", "fill": r"result_ring.*\.store",
        "fence": r"roles\.fence", "staged": r"roles\.arrive\(staged", "result": r"roles\.wait\(staged",
        "store": r"roles\.store_part", "stored": r"roles\.stored", "drained": r"roles\.arrive\(drained",
        "notify": r"dl\.notify\(", "end": r"dl\.publish",
    }  # fmt: skip

    def order(name: str) -> list[str]:
        return [kind for line in made[name] for kind, pattern in kinds.items() if re.match(pattern, line)]

    assert order("_gemm_loader") == ["wait", "free", "expect", "load", "load"]
    first = ["full", "multiply", "retire"]
    assert order("_gemm_consumer") == [
        *first,
        *first,
        "release",
        "retire",
        "release",
        "room",
        "fill",
        "fence",
        "staged",
    ]
    assert order("_gemm_storer") == [
        "result", "store", "stored", "result", "store", "stored", "drained", "stored", "drained", "notify", "end"
    ]  # fmt: skip
    assert sum(line.startswith("(_gemm_consumer") for line in made["gemm"]) == 2


def test_a_kernel_takes_descriptors_of_its_operands_and_of_its_result() -> None:
    kernel = next(one for one in emitted(bound()).kernels if one.name == "gemm")
    boxes = {(a.tensor, a.box, a.swizzle) for a in kernel.parameters if isinstance(a, Boxes)}
    assert boxes == {("h", (64, 64), 128), ("w", (256, 64), 128), ("c", (64, 64), 128)}
    assert not any(isinstance(a, TensorPointer) for a in kernel.parameters)
    assert (kernel.num_warps, kernel.programs_per_cta) == (4, 1)
    types = signature(kernel, bound())
    assert types["w_boxes_256x64_swizzled"] == f"tensordesc<bf16[256, 64],{shared_layout(16, 128)}>"


def compiled(made: Bound, dialect: str = "triton"):
    result = emitted(made, dialect)
    return dict(zip([one.name for one in result.kernels], compile_all(made, result), strict=True))["gemm"]


FORMS = {
    "two consumers": ({}, 2 * 2 * 4, 12),
    "one product in flight": ({"roles": "consumers=2, buffers=3, in_flight=1"}, 2 * 2 * 4, 12),
    "three consumers": ({"i": 192, "j": 128, "roles": "consumers=3, buffers=4"}, 3 * 2 * 4, 16),
    "more rows": ({"i": 256, "j": 128, "roles": "consumers=2, buffers=3"}, 2 * 2 * 2 * 4, 12),
    "computed results": ({"value": f"silu({DOT} * 0.5) + 1.0"}, 2 * 2 * 4, 12),
    "a vector of columns": ({"value": f"gelu({DOT} + bias[j])"}, 2 * 2 * 4, 12),
    "a vector, and columns that are cut": ({"value": f"silu({DOT} + bias[j])", "N": 648}, 2 * 2 * 4, 12),
    "halved tiles": ({"more": ", halve_tail"}, 2 * 2 * 2 * 4, 12),
    "two products": ({"value": f"silu({DOT}) * dot(h[i, :], u[j, :].T)", "j": 128}, 2 * 2 * 4, 12),
    "two products, halved tiles": (
        {"value": f"silu({DOT}) * dot(h[i, :], u[j, :].T)", "j": 128, "more": ", halve_tail"},
        2 * 2 * 2 * 4,
        12,
    ),
    "the larger one": ({"value": f"maximum({DOT}, 0.0)"}, 2 * 2 * 4, 12),
}


COMBINED = {
    "a vector of columns", "computed results", "halved tiles", "two products", "two consumers", "the larger one",
}  # fmt: skip
"""Others have what these have, and more."""


@thorough(unless=lambda form: form not in COMBINED)
@pytest.mark.parametrize("form", FORMS)
def test_products_are_those_of_groups_of_warps_and_nothing_spills(form: str) -> None:
    options, products, warps = FORMS[form]
    kernel = compiled(bound(**options))
    ptx = text(kernel)
    assert len(re.findall(r"wgmma\.mma_async", ptx)) == products
    assert kernel.metadata.num_warps == warps and "setmaxnreg.inc" in ptx
    found = resources(kernel)
    assert found["STACK"] == 0 and found["LOCAL"] == 0
    assert kernel.metadata.shared <= 227 * 1024
    assert kernel.metadata.shared >= 0.75 * 227 * 1024  # so that an SM has one such block
    # A barrier of all threads of the block would wait for other roles for ever.
    assert not re.search(r"bar\.sync\s+0;", ptx)


EVENTS = {
    "poll": r"ld\.acquire\.sys\.global\.b32",
    "proxy": r"fence\.proxy\.async\.global;",
    "load": r"cp\.async\.bulk\.tensor\.2d\.shared::\w+\.global",
    "store": r"cp\.async\.bulk\.tensor\.2d\.global\.shared",
    "read": r"cp\.async\.bulk\.wait_group\.read",
    "written": r"cp\.async\.bulk\.wait_group\s+0",
    "together": r"bar\.warp\.sync 0xffffffff",
    "release": r"red\.release\.gpu\.global\.add",
    "visible": r"fence\.proxy\.async\.shared",
    "fill": r"stmatrix",
    "product": r"wgmma\.mma_async",
}


def test_signals_are_ordered_with_what_is_loaded_and_stored() -> None:
    lines = text(compiled(bound())).splitlines()
    found = [kind for line in lines for kind, pattern in EVENTS.items() if re.search(pattern, line)]
    assert found.count("poll") >= 1 and found.count("release") == 1
    poll = found.index("load") - found[: found.index("load")][::-1].index("poll") - 1
    assert found[poll : poll + 4] == ["poll", "together", "proxy", "load"]
    at = found.index("release")
    assert found[at - 3 : at] == ["written", "proxy", "together"]
    assert "store" in found[:at] and "read" in found[:at]
    last_fill = max(n for n, kind in enumerate(found) if kind == "fill")
    assert "visible" in found[last_fill:]


def test_other_dialects_and_processors_have_programs_without_roles() -> None:
    for dialect in ("traced", "triton_dist"):
        assert "gluon" not in emitted(bound(), dialect).text
    small = bound(i=64, j=64, on="sm_80")
    assert "gluon" not in emitted(small).text and "roles" in str(small.schedule)


def test_a_stage_with_the_name_of_a_role_is_told_so() -> None:
    text = TEXT.replace("keep", "_gemm_storer").format(
        value=DOT, i=128, j=256, roles="consumers=2, buffers=4", send="sm(4)", more=""
    )
    module = compiler.parse(text, "relay.tl")
    sizes = {"M": 768, "N": 512, "K": 320}
    made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    with pytest.raises(EmitError, match="'_gemm_storer' would be that of functions") as caught:
        emitted(made)
    assert "gemm has roles" in str(caught.value.hint)


def test_the_handshake_of_a_kernel_with_a_copy_engine_compiles() -> None:
    """Its functions use vectors, which Gluon wants a layout of."""
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm")
    more = (
        "schedule roles for ag_gemm like h200:\n    gemm flatten off, split_k_tail off, roles(consumers=2, buffers=4)\n"
    )
    schedule = compiler.parse(f"{program}\n{module.schedule('h200', program)}\n{more}").schedules[1]
    sizes = {"Ms": 1024, "N": 512, "K": 320}
    plan = compiler.plan(program, schedule, ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    source = functions(emitted(plan.bound).text)["gemm"]
    assert any(line.startswith("dl.begin_copies(") for line in source) and source[-1].startswith("dl.count_program(")
    ptx = text(compiled(plan.bound))
    assert not re.search(r"bar\.sync\s+0;", ptx)
    assert len(re.findall(r"atom\.\w+\.release\.sys|atom\.global\.sys\.release|red\.\w*\.?release\.sys", ptx)) >= 0
    assert {one.name: one.num_warps for one in gpu_artifact(plan).kernels}["gemm"] == 4


def test_a_wait_of_a_loader_may_have_a_deadline() -> None:
    """It is that of one warp, and its few registers are enough."""
    made = bound(send="copy_engine")
    result = emitted(made)
    kernel = next(one for one in result.kernels if one.name == "gemm")
    function = store.load(store.save(result.text)).gemm
    types = signature(kernel, made) | {"debug_block": "*i64"}
    found = compile_source(function, types, {}, "sm_90", num_warps=kernel.num_warps, num_stages=kernel.num_stages)
    ptx = text(found)
    assert len(re.findall(r"atom\.relaxed\.sys\.global\.cas\.b64", ptx)) >= 1
    assert not re.search(r"bar\.sync\s+0;", ptx) and resources(found)["STACK"] == 0


def test_consumers_wait_after_the_product_and_prefetch_what_they_add() -> None:
    body = epilogue.BODY.replace("acc = acc + r[i, j]", "acc = acc + 1.0")
    source = functions(emitted(epilogue.bound(body, ranks=3, dtype=" f32")).text)
    kinds = {
        "poll": r"token \+= dl\.wait\(", "first": r"\w+_next\w* = gl\.load\(\w+_pointers\w*\)", "piece": r"for piece",
        "next": r"\w+_next\w* = gl\.load\(\w+_pointers\w* \+", "fill": r"result_ring",
        "multiply": r"acc\w* = roles\.multiply",
    }  # fmt: skip
    found = [kind for line in source["_gemm_consumer"] for kind, pattern in kinds.items() if re.match(pattern, line)]
    assert found[-7:] == ["poll", "poll", "first", "first", "piece", "next", "next", "fill"][-7:]
    assert found.index("poll") > max(n for n, kind in enumerate(found) if kind == "multiply")
    assert not any("dl.wait(" in line for line in source["_gemm_loader"])
    assert sum("_gemm_store_g(peer" in line for line in source["_gemm_storer"]) == 2 * 3
    assert any(line.startswith("elif peer == 2") for line in source["_gemm_store_g"])
    assert sum("dl.notify(" in line for line in source["_gemm_storer"]) == 4


def test_the_loader_waits_after_the_product_and_loads_what_consumers_add() -> None:
    source = functions(emitted(epilogue.bound(ranks=3)).text)
    loader, consumer = source["_gemm_loader"], source["_gemm_consumer"]
    polls = [n for n, line in enumerate(loader) if "dl.wait(" in line]
    loads = [n for n, line in enumerate(loader) if line.startswith("roles.load_parts(")]
    assert len(polls) == 2 and loads[0] < polls[0] and polls[1] < loads[1]
    assert [loader[n].partition("(")[2].partition("_")[0] for n in loads] == ["x", "parts", "parts", "r"]
    assert not any("dl.wait(" in line or "gl.load(" in line for line in consumer)
    taken = [line.partition("_tile")[0] for line in consumer if "= roles.take(" in line]
    assert taken == ["parts", "parts", "r"]


@thorough(unless=lambda ranks, has_deadline: has_deadline == (ranks == 4))
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("has_deadline", [False, True])
def test_an_epilogue_with_waits_and_peers_compiles_without_spills(ranks: int, has_deadline: bool) -> None:
    made = epilogue.bound(ranks=ranks)
    result = emitted(made)
    kernel = next(one for one in result.kernels if one.name == "gemm")
    function = store.load(store.save(result.text)).gemm
    types, known = signature(kernel, made), {} if has_deadline else {"debug_block": None}
    types |= {"debug_block": "*i64"} if has_deadline else {}
    found = compile_source(function, types, known, "sm_90", num_warps=kernel.num_warps, num_stages=kernel.num_stages)
    assert not re.search(r"bar\.sync\s+0;", text(found))
    assert resources(found)["STACK"] == 0 and resources(found)["LOCAL"] == 0


DIRECT = """program direct(Ms, N, K):
    x     : in        [ranks, Ms, K]
    w     : in        [N, K]
    parts : symmetric [ranks, Ms, N]
    y     : out       [Ms, N]

    compute gemm(q: ranks - 1, i: Ms, j: N):
        tile_push_data(parts[rank, i, j] @ (rank + 1 + q), dot(x[rank + 1 + q, i, :], w[j, :].T))
        producer_tile_notify(parts[rank, i, j] @ (rank + 1 + q))

    compute own(i: Ms, j: N):
        acc = dot(x[rank, i, :], w[j, :].T)
        for (q: ranks - 1):
            consumer_tile_wait(parts[rank + 1 + q, i, j])
            acc += parts[rank + 1 + q, i, j]
        y[i, j] = acc

schedule one for direct:
    gemm on sm, tile(i=128, j=256, k=64), order(q, group(i, 8)), roles(consumers=2, buffers=4)
    own in gemm epilogue, tile(i=128, j=256, k=64), roles(consumers=2, buffers=4)
"""


@thorough(unless=lambda ranks: ranks == 2)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_single_kernel_stores_at_peers_and_ends_the_launch(ranks: int) -> None:
    """Nothing else tells peers that the launch has ended. Its own copy of what it stores at peers is loaded."""
    module = compiler.parse(DIRECT, "direct.tl")
    sizes = {"Ms": 1024, "N": 512, "K": 320}
    plan = compiler.plan(module.program(), module.schedules[0], ranks=ranks, dims=sizes, dtype="bf16", target="sm_90")
    result = emitted(plan.bound)
    (kernel,) = result.kernels
    boxes = {(one.tensor, one.owner) for one in kernel.parameters if isinstance(one, Boxes)}
    assert boxes == {("x", None), ("w", None), ("y", None), *(("parts", rank) for rank in (None, *range(ranks)))}
    assert functions(result.text)["gemm"][-1].startswith("dl.finish_launch(")
    (found,) = compile_all(plan.bound, result)
    assert resources(found)["STACK"] == 0 and not re.search(r"bar\.sync\s+0;", text(found))


def test_the_rows_of_a_tile_that_a_launch_cuts_are_stored_by_consumers() -> None:
    source = functions(emitted(counted.bound()).text)
    consumer, storer = source["_product_consumer"], source["_product_storer"]
    at = consumer.index("if whole:")
    assert "result_ring.index" in consumer[at + 1] and consumer[at + 2] == "else:"
    assert re.match(r"roles\.store_rows\(y \+ \w+, .*, mask=\(rows\w*\[:, None\] < end_r\)\)$", consumer[at + 3])
    assert [line.split("(")[0] for line in consumer[at + 4 : at + 6]] == ["roles.fence", "roles.arrive"]
    places = [n for n, line in enumerate(storer) if line.startswith("roles.store_part(")]
    assert places and all(storer[n - 1] == "if whole:" for n in places)
    for lines in (consumer, storer, source["_product_loader"]):  # every role takes the same tiles
        assert sum(line.startswith("for number in range(pid, tl.max(ends, 0), num_programs):") for line in lines) == 1
        assert "if first_r < end_r:" in lines


def test_what_consumers_store_is_stored_before_the_storer_is_told() -> None:
    made = counted.bound(T=8192, N=1792, K=4096, E=40)
    (found,) = (
        one for one, kernel in zip(compile_all(made, emitted(made)), made.kernels, strict=True)
        if kernel.name == "product"
    )  # fmt: skip
    ptx = text(found)
    events = {
        "rows": r"st\.global\.b32 \[ %rd\d+ \+ 0 \], \{", "meet": r"bar\.sync\s+\d+, 128",
        "arrive": r"mbarrier\.arrive", "fence": r"fence\.proxy\.async",
    }  # fmt: skip
    lines = [kind for line in ptx.splitlines() for kind, pattern in events.items() if re.search(pattern, line)]
    ends = [n for n, kind in enumerate(lines) if kind == "rows" and lines[n + 1] != "rows"]
    assert len(ends) == 2 * 2 and all(lines[n + 1] == "meet" for n in ends)  # two pieces of two consumers
    assert not re.search(r"bar\.sync\s+0;", ptx)
    assert resources(found)["STACK"] == 0 and resources(found)["LOCAL"] == 0


def test_consumers_may_wait_for_what_they_do_not_read() -> None:
    """Of such a tensor, which has several buffers, they know the signals alone."""
    text = epilogue.RING.format(first="(rank + s) % ranks", roles=", roles(consumers=2, buffers=4)")
    module = compiler.parse(text, "ring.tl")
    sizes = {"M": 256, "N": 256, "K": 128}
    plan = compiler.plan(module.program(), module.schedules[0], ranks=3, dims=sizes, dtype="bf16", target="sm_90")
    result = emitted(plan.bound)
    kernel = next(one for one in result.kernels if one.name == "gemm")
    assert plan.bound.tensors["xs"].buffers > 1
    assert not any(isinstance(one, TensorPointer) and one.tensor == "xs" for one in kernel.parameters)
    compile_all(plan.bound, result)


SCALED = """program scaled(M, N, KB, B):
    x : in  [M, KB * B] f8e4m3
    w : in  [N, KB * B] f8e4m3
    u : in  [KB, M] f32
    v : in  [KB] f32
    y : out [M, N]

    compute gemm(i: M, j: N):
        total = zeros(f32)
        for (h: KB by 1):
            part = dot(x[i, h * B : (h + 1) * B], w[j, h * B : (h + 1) * B].T)
            total += part * (u[h, i] * v[h])[:, None]
        y[i, j] = total

schedule one for scaled:
    gemm on sm, tile(i=128, j=128, k=128), roles(consumers=2, buffers=4)
"""


def test_scales_of_an_iteration_are_multiplied_before_those_of_the_next_are_loaded() -> None:
    module = compiler.parse(SCALED, "scaled.tl")
    sizes = {"M": 512, "N": 512, "KB": 4, "B": 128}
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims=sizes, dtype="bf16", target="sm_90")
    lines = functions(emitted(made).text)["_gemm_consumer"]
    after = lines[next(n for n, line in enumerate(lines) if "roles.multiply(" in line) :]
    (scale,) = (n for n, line in enumerate(after) if "u_tile * v_tile" in line)
    name = after[scale].split(" = ")[0]
    loads = [n for n, line in enumerate(after) if "gl.load(" in line]
    (added,) = (n for n, line in enumerate(after) if re.search(rf"^total.* \* {name}\)$", line))
    assert scale < min(loads) and max(loads) < added  # registers of scales are free when the next ones are loaded
