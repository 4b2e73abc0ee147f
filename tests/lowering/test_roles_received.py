"""`roles` of a stage of which a launch decides what only its loader may read: counts that peers tell, segments that a
stage computes, and tiles that wait and notify whether they are there or not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.lowered import parse_lowered
from tests.lowering.roles_interpreter import run_roles
from tilelink import compiler
from tilelink.backend import roles as emitted_roles
from tilelink.backend.emit import emit
from tilelink.errors import EmitError, RolesError, ScheduleError
from tilelink.ir.program import Wait
from tilelink.lowering.bound import Bound, with_bodies
from tilelink.lowering.listing import listing
from tilelink.lowering.rings import ARRIVE, FENCE, Ring, Step
from tilelink.lowering.role_statements import entries_of, late_waits
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.target import target
from tilelink.verifier import refusals, verify

Inputs = Sequence[Mapping[str, torch.Tensor]]
TOLD = """program told(K, N, C, E):
    count : in        [ranks, E] <= C
    x     : in        [ranks, E, C, K]
    w     : in        [E, N, K]
    bias  : in        [E, N]
    n     : symmetric [ranks, E] <= C
    got   : symmetric [ranks, E, C, K]
    h     : local     [ranks, E, C, N]
    y     : out       [s: ranks, e: E, C[: n[s, e]], N]

    comm tell(p: ranks):
        tile_push_data(n[rank, :] @ p, count[p, :])
        producer_tile_notify(n[rank, :] @ p)

    comm send(p: ranks, e: E, c: C[: count[p, e]]):
        tile_push_data(got[rank, e, c, :] @ p, x[p, e, c, :])
        producer_tile_notify(got[rank, e, c, :] @ p)

    compute up(s: ranks, e: E, c: C[: n[s, e]], j: N):
        consumer_tile_wait(n[s, :])
        consumer_tile_wait(got[s, e, c, :])
        h[s, e, c, j] = dot(got[s, e, c, :], w[e, j, :].T) + bias[e, j][None, :]
        producer_tile_notify(h[s, e, c, j])

    compute keep(s: ranks, e: E, c: C[: n[s, e]], j: N):
        consumer_tile_wait(n[s, :])
        consumer_tile_wait(h[s, e, c, j])
        y[s, e, c, j] = h[s, e, c, j] * 2.0

schedule one for told:
    tell on sm(1)
    send on sm(2), tile(c=64)
    up   on sm, tile(c=128, j=128, k=64), roles(consumers=2, buffers=3)
    keep on sm(1), tile(c=64)
    got channel(c=128)
"""
COUNTS = [[[256, 0], [3, 130]], [[128, 129], [0, 0]]]
SEGMENTS = """program segments(T, N, K, E):
    count  : in    [E + 1] <= T
    pick   : in    [E] < E
    x      : in    [T, K]
    w      : in    [E, N, K]
    starts : local [E + 1] <= T offsets
    y      : out   [T[: starts[E]], N]

    compute begin():
        starts[:] = minimum(cumsum(count[:], axis=0), T)
        producer_tile_notify(starts[:])

    compute product(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        consumer_tile_wait(starts[:])
        y[r, j] = dot(x[r, :], w[pick[e], j, :].T)

schedule one for segments:
    begin on sm(1)
    product on sm, tile(r=128, j=128, k=64), roles(consumers=2, buffers=3)
"""
PUSHED = (
    ("    h     : local     [ranks, E, C, N]\n", "    back  : symmetric [ranks, E, C, N]\n"),
    ("[s: ranks, e: E, C[: n[s, e]], N]", "[p: ranks, e: E, C[: count[p, e]], N]"),
    ("h[s, e, c, j] = dot(got[s, e, c, :], w[e, j, :].T) + bias[e, j][None, :]\n",
     "tile_push_data(back[rank, e, c, j] @ s, dot(got[s, e, c, :], w[e, j, :].T) + bias[e, j][None, :])\n"),
    ("producer_tile_notify(h[s, e, c, j])", "producer_tile_notify(back[rank, e, c, j] @ s)"),
    ("keep(s: ranks, e: E, c: C[: n[s, e]], j: N):\n        consumer_tile_wait(n[s, :])\n"
     "        consumer_tile_wait(h[s, e, c, j])\n        y[s, e, c, j] = h[s, e, c, j] * 2.0",
     "keep(p: ranks, e: E, c: C[: count[p, e]], j: N):\n        consumer_tile_wait(back[p, e, c, j])\n"
     "        y[p, e, c, j] = back[p, e, c, j] * 2.0"),
)  # fmt: skip
"""What is multiplied goes back to the ranks that its rows came from."""
RELAY = """program relay(M, N, K):
    m  : in        [] <= M replicated
    x  : in        [M, K]
    w  : in        [N, K]
    xs : symmetric [ranks, M, K]
    y  : local     [ranks, M, N]
    v  : out       [ranks, M, K]

    comm gather(p: ranks, i: M):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    compute gemm(s: ranks, i: M[: m], j: N):
        consumer_tile_wait(xs[s, i, :])
        y[s, i, j] = dot(xs[s, i, :], w[j, :].T)
        producer_tile_notify(y[s, :, :])

    compute copy(s: ranks, i: M, k: K):
        consumer_tile_wait(y[s, :, :])
        v[s, i, k] = xs[s, i, k]

schedule one for relay:
    gather on sm(2), tile(i=64)
    gemm on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=4)
    copy on sm(1), tile(i=64, k=64)
"""


def bound(text: str = TOLD, *, ranks: int = 2, sms: int = 6, **sizes: int) -> Bound:
    module = compiler.parse(text, "told.tl")
    dims = sizes or {"K": 128, "N": 128, "C": 256, "E": 2}
    on = replace(target("sm_90"), sms=sms)
    return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims=dims, dtype="bf16", target=on)


def changed(changes: Sequence[tuple[str, str]]) -> str:
    """Return the first program with changes."""
    text = TOLD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def pushed() -> Bound:
    return bound(changed(PUSHED))


def inputs(counts: Sequence[Sequence[Sequence[int]]] = COUNTS) -> Inputs:
    """Return small whole numbers for two ranks. counts: [rank][peer][expert], the rows that a rank sends to a peer."""
    made = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=made).to(torch.bfloat16)

    return [
        {
            "count": torch.tensor(one, dtype=torch.int32), "x": numbers(2, 2, 256, 128), "w": numbers(2, 128, 128),
            "bias": numbers(2, 128),
        }
        for one in counts
    ]  # fmt: skip


def segments() -> tuple[Bound, Inputs]:
    """Return rows of three experts whose segments a stage computes, and inputs."""
    made = torch.Generator().manual_seed(4)
    x, w = (torch.randint(-2, 3, shape, generator=made).to(torch.bfloat16) for shape in ((384, 128), (3, 128, 128)))
    count, pick = (torch.tensor(one, dtype=torch.int32) for one in ([0, 130, 0, 128], [2, 0, 1]))
    return bound(SEGMENTS, ranks=1, T=384, N=128, K=128, E=3), [{"count": count, "pick": pick, "x": x, "w": w}]


def relay() -> tuple[Bound, Inputs]:
    """Return rows that peers send, of which a launch has some, and inputs."""
    made = torch.Generator().manual_seed(5)

    def numbers() -> torch.Tensor:
        return torch.randint(-2, 3, (256, 256), generator=made).to(torch.bfloat16)

    given = [{"m": torch.tensor(100, dtype=torch.int32), "x": numbers(), "w": numbers()} for _ in range(2)]
    return bound(RELAY, M=256, N=256, K=256), given


def test_the_loader_hands_on_what_a_peer_tells() -> None:
    made = bound()
    roles = made.stages["up"].roles
    assert roles is not None and roles.cut and roles.numbers is not None
    verify(make_plan(made))
    text = listing(made)
    assert "others x3: await known 0; take; arrive taken 0" in text
    again = parse_lowered(text)
    assert again.stages["up"].roles == roles and listing(again) == text


@pytest.mark.parametrize("counts", [COUNTS, [[[0, 0], [0, 0]]] * 2, [[[256, 256], [256, 256]]] * 2])
def test_roles_compute_what_a_peer_tells(counts: Any) -> None:
    made, given = bound(), inputs(counts)
    wanted = reference(made.source, given, made.numbers, dtype="bf16")
    found, _ = run_roles(made, given)
    for rank in range(2):
        for s in range(2):
            for e in range(2):
                rows = counts[s][rank][e]
                assert torch.equal(found[rank]["y"][s, e, :rows], wanted[rank]["y"][s, e, :rows])


@pytest.mark.parametrize("counts", [COUNTS, [[[1, 255], [0, 129]]] * 2])
def test_cut_tiles_are_stored_at_peers(counts: Any) -> None:
    made, given = pushed(), inputs(counts)
    verify(make_plan(made))
    wanted = reference(made.source, given, made.numbers, dtype="bf16")
    found, _ = run_roles(made, given)
    for rank in range(2):
        for p in range(2):
            for e in range(2):
                rows = counts[rank][p][e]
                assert torch.equal(found[rank]["y"][p, e, :rows], wanted[rank]["y"][p, e, :rows])


def wrong_rings(ring: Ring) -> dict[str, tuple[Ring, str]]:
    """Return rings that let a role read the integers of another tile, with what is said of each."""
    writer, reader = ring.writer, ring.reader
    unawaited = replace(reader, steps=reader.steps[1:])
    early = replace(reader, steps=(reader.steps[0], reader.steps[2], reader.steps[1]))
    unfenced = replace(writer, steps=tuple(step for step in writer.steps if step.word != FENCE))
    overwriting = replace(writer, steps=writer.steps[1:])
    fewer = replace(ring, barriers=(("known", 1), ("taken", 2)))
    never = replace(reader, steps=tuple(step for step in reader.steps if step.word != ARRIVE))
    later = (*(one for one in reader.steps if one.word != ARRIVE), Step(word=ARRIVE, what="taken", number=1))
    return {
        "read before": (replace(ring, reader=unawaited), "reads a buffer before it is loaded"),
        "released early": (replace(ring, reader=early), "writes a buffer that has not been read"),
        "no fence": (replace(ring, writer=unfenced), "reads a buffer before it is loaded"),
        "overwritten": (replace(ring, writer=overwriting), "writes a buffer that has not been read"),
        "one reader left out": (fewer, "wait for each other"),
        "never released": (replace(ring, reader=never), "wait for each other"),
        "another form": (replace(ring, reader=replace(reader, steps=later)), "than any kernel with such tiles"),
    }


@pytest.mark.parametrize("name", [
    "read before", "released early", "no fence", "overwritten", "one reader left out", "never released", "another form",
])  # fmt: skip
def test_rings_of_integers_that_go_wrong_are_refused(name: str) -> None:
    made = bound()
    stage = made.stages["up"]
    assert stage.roles is not None and stage.roles.numbers is not None
    ring, said = wrong_rings(stage.roles.numbers)[name]
    wrong = replace(stage, roles=replace(stage.roles, numbers=ring))
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "up": wrong})))
    assert isinstance(found, RolesError) and said in found.message, found.message


def test_roles_that_would_read_entries_themselves_are_refused() -> None:
    made = bound()
    stage = made.stages["up"]
    assert stage.roles is not None
    wrong = replace(stage, roles=replace(stage.roles, numbers=None))
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "up": wrong})))
    assert isinstance(found, RolesError) and "steps or numbers" in found.message


def test_a_stage_may_compute_the_segments_of_another() -> None:
    made, given = segments()
    roles = made.stages["product"].roles
    assert roles is not None and roles.numbers is not None
    verify(make_plan(made))
    (wanted,) = reference(made.source, given, made.numbers, dtype="bf16")
    ((found,), _) = run_roles(made, given)
    assert torch.equal(found["y"][:258], wanted["y"][:258])


VECTOR = (
    ("    w     :", "    u     : in        [ranks, E, C]\n    w     :"),
    ("    h     :", "    us    : symmetric [ranks, E, C]\n    h     :"),
    ("        producer_tile_notify(got[rank, e, c, :] @ p)\n",
     "        producer_tile_notify(got[rank, e, c, :] @ p)\n        tile_push_data(us[rank, e, c] @ p, u[p, e, c])\n"
     "        producer_tile_notify(us[rank, e, c] @ p)\n"),
    ("        h[s, e, c, j] = dot(got[s, e, c, :], w[e, j, :].T) + bias[e, j][None, :]\n",
     "        acc = dot(got[s, e, c, :], w[e, j, :].T)\n        consumer_tile_wait(us[s, e, c])\n"
     "        h[s, e, c, j] = acc * us[s, e, c][:, None]\n"),
    ("    got channel(c=128)\n", "    got channel(c=128)\n    us channel(c=128)\n"),
)  # fmt: skip
"""Numbers of rows that come with them, in order after the product."""
ENTRY = (
    ("c: C[: count[p, e]]", "c: C"),
    ("up(s: ranks, e: E, c: C[: n[s, e]]", "up(s: ranks, e: E, c: C"),
    ("        consumer_tile_wait(n[s, :])\n        consumer_tile_wait(got", "        consumer_tile_wait(got"),
    ("        h[s, e, c, j] = dot(got[s, e, c, :], w[e, j, :].T) + bias[e, j][None, :]\n",
     "        acc = dot(got[s, e, c, :], w[e, j, :].T)\n        consumer_tile_wait(n[s, :])\n"
     "        h[s, e, c, j] = acc + bias[min(n[s, e], E - 1), j][None, :]\n"),
)  # fmt: skip
WAITING_LATE = {
    "a tile that is not there": (VECTOR, "it waits after its product, also for tiles that are not there"),
    "an entry": (ENTRY, "it waits for n after its product, and its loader reads n before"),
}


def late(name: str) -> tuple[Bound, Inputs]:
    """Return rows whose tiles wait after their product, and inputs."""
    made = torch.Generator().manual_seed(6)
    u = torch.randint(-2, 3, (2, 2, 256), generator=made).to(torch.bfloat16)
    more = {"u": u} if name == "a tile that is not there" else {}
    return bound(changed(WAITING_LATE[name][0])), [{**one, **more} for one in inputs()]


@pytest.mark.parametrize("name", WAITING_LATE)
def test_the_loader_executes_waits_after_the_product_too(name: str) -> None:
    """The pass puts them before it. A lowered program in which they stand where they were is refused."""
    made, given = late(name)
    verify(make_plan(made))
    wanted = reference(made.source, given, made.numbers, dtype="bf16")
    found, _ = run_roles(made, given)
    for rank in range(2):
        for s in range(2):
            for e in range(2):
                rows = COUNTS[s][rank][e]
                assert torch.equal(found[rank]["y"][s, e, :rows], wanted[rank]["y"][s, e, :rows])
    stage = made.stages["up"]
    waits = [s for s in stage.stage.body if isinstance(s, Wait)]
    assert stage.stage.body[: len(waits)] == tuple(waits) and not late_waits(stage)
    product, *rest = stage.stage.body[len(waits) :]
    undone = with_bodies(made, {"up": (*waits[:-1], product, waits[-1], *rest)})
    said = [one.message for one in refusals(make_plan(undone)) if isinstance(one, RolesError)]
    assert any(WAITING_LATE[name][1] in message for message in said), said


def test_a_tile_that_is_not_there_notifies_after_its_loader_has_waited() -> None:
    """What it looks up is known before the launch. That its loader is past the waits, the storer learns from it."""
    made, _ = relay()
    roles = made.stages["gemm"].roles
    assert roles is not None and roles.numbers is not None
    verify(make_plan(made))
    without = RELAY.replace("        consumer_tile_wait(xs[s, i, :])\n        y", "        y")
    silent = bound(without, M=256, N=256, K=256).stages["gemm"].roles
    assert silent is not None and silent.numbers is None


def test_no_other_role_reads_what_the_loader_hands_on() -> None:
    made, _ = segments()
    plan = make_plan(made)
    roles = re.split(r"@gluon\.jit", emit(made, plan.thresholds).text)
    reading = [re.search(r"def (\w+)", one)[1] for one in roles if "tiles.entry(" in one]  # type: ignore[index]
    assert "_product_loader" in reading and not {"_product_consumer", "_product_storer"} & set(reading)


def test_an_entry_that_is_not_handed_on_is_not_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A role may read none that is written while programs run, whatever the emitter makes of the rings."""
    made, _ = segments()
    plan = make_plan(made)
    entries = entries_of(made.stages["product"])
    assert len(entries) > 1
    monkeypatch.setattr(emitted_roles, "entries_of", lambda _: entries[:1])
    with pytest.raises(EmitError, match="that the loader does not hand on"):
        emit(made, plan.thresholds)


SUMS = """program sums(K, N, C, E):
    m     : in        [E] <= C replicated
    pick  : in        [ranks, E] < E
    x     : in        [ranks, E, C, K]
    w     : in        [E, N, K]
    got   : symmetric [ranks, E, C, K]
    told  : symmetric [ranks, E] < E
    h     : local     [E, C, N]
    y     : out       [e: E, C[: m[e]], N]

    comm send(p: ranks, e: E, c: C):
        tile_push_data(got[rank, e, c, :] @ p, x[p, e, c, :])
        producer_tile_notify(got[rank, e, c, :] @ p)

    comm tell(p: ranks):
        tile_push_data(told[rank, :] @ p, pick[p, :])
        producer_tile_notify(told[rank, :] @ p)

    compute up(e: E, c: C[: m[e]], j: N):
        consumer_tile_wait(told[:, :])
        total = zeros(f32)
        for (s: ranks):
            consumer_tile_wait(got[s, e, c, :])
            total += dot(got[s, e, c, :], w[pick[s, e], j, :].T)
        h[e, c, j] = total
        producer_tile_notify(h[e, c, j])

    compute keep(e: E, c: C[: m[e]], j: N):
        consumer_tile_wait(h[e, c, j])
        y[e, c, j] = h[e, c, j] * 2.0

schedule one for sums:
    send on sm(1), tile(c=64)
    tell on sm(1)
    up   on sm, tile(c=128, j=128, k=64), roles(consumers=2, buffers=3)
    keep on sm(1), tile(c=64)
    got channel(c=128)
"""


def test_entries_of_a_loop_are_read_in_the_loop() -> None:
    made = bound(SUMS)
    roles = made.stages["up"].roles
    assert roles is not None and roles.numbers is not None
    assert [one.table for one in entries_of(made.stages["up"])] == ["m"]
    plan = make_plan(made)
    verify(plan)
    loader = emit(made, plan.thresholds).text.split("def _up_loader(")[1].split("@gluon.jit")[0]
    assert loader.index("for s in range(") < loader.index("tiles.entry(pick")
    with pytest.raises(ScheduleError, match="its loop looks up entries of told, which is written while programs run"):
        bound(SUMS.replace("w[pick[s, e]", "w[told[s, e]"))


NESTED = """program nested(M, N, K, P):
    m  : in        [ranks] < P
    e  : in        [P] < P
    n  : symmetric [ranks] < P
    x  : in        [P, M, K]
    w  : in        [P, N, K]
    b  : in        [P, N]
    y  : out       [ranks, M, N]

    comm tell(p: ranks):
        tile_push_data(n[rank] @ p, m[p])
        producer_tile_notify(n[rank] @ p)

    compute gemm(s: ranks, i: M, j: N):
        {before}
        for (q: P by 1):
            {inside}
            total += dot(x[{left}, i, :], w[{right}, j, :].T)
        y[s, i, j] = total + b[{added}, j][None, :]

schedule one for nested:
    tell on sm(1)
    gemm on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)
"""


WAITED, ZEROS = "consumer_tile_wait(n[s])", "total = zeros(f32)"


def nested(
    left: str = "q", right: str = "q", added: str = "0", before: tuple[str, str] = (WAITED, ZEROS), inside: str = ""
) -> Bound:
    """Return a product of an iteration, with entries in or beside others. n is what peers tell."""
    lines = "\n        ".join(before)
    text = NESTED.format(left=left, right=right, added=added, before=lines, inside=inside)
    return bound(text, M=128, N=128, K=64, P=3)


@pytest.mark.parametrize(
    "where", [{"added": "e[n[s]]"}, {"right": "e[n[s]]", "added": "n[s]"}, {"left": "e[q]", "added": "n[s]"}],
    ids=["in another", "in another and alone", "beside one of an iteration"],
)  # fmt: skip
def test_entries_in_others_are_handed_on_too(where: dict[str, Any]) -> None:
    made = nested(**where)
    plan = make_plan(made)
    verify(plan)
    source = emit(made, plan.thresholds).text
    roles = {name: role for role, name in re.findall(r"(def _gemm_(\w+)(?:.|\n)*?)(?=@gluon|\Z)", source)}
    assert "tiles.entry(" in roles["loader"]
    assert not any("tiles.entry(" in roles[name] for name in ("consumer", "storer"))
    at = re.search(r"for q in range|\Z", roles["loader"])
    assert at is not None and not re.search(r"\be \+ q\b", roles["loader"][: at.start()])


def test_the_loader_looks_up_entries_after_all_waits_before_the_product() -> None:
    made = nested(right="n[s]", before=(ZEROS, WAITED))
    verify(make_plan(made))
    wait, start, *others = made.stages["gemm"].stage.body
    assert isinstance(wait, Wait) and not isinstance(start, Wait)
    undone = with_bodies(made, {"gemm": (start, wait, *others)})
    (found, *_) = refusals(make_plan(undone))
    assert isinstance(found, RolesError) and "looks up n, for which only a later wait waits" in found.message


def test_entries_that_only_an_iteration_waits_for_are_refused() -> None:
    made = nested(right="n[s]", before=(ZEROS, ""), inside=WAITED)
    (found, *_) = refusals(make_plan(made))
    assert isinstance(found, RolesError) and "looks up n, for which only a later wait waits" in found.message
