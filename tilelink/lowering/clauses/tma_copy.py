"""`tma_copy n`: which stages copy by the tensor memory accelerator (TMA), and in which boxes.

A program that copies by loads and stores needs many threads. All of them wait until its stores have arrived before it
can notify. TMA (PTX ISA, cp.async.bulk.tensor) needs one thread, and shared memory for the data in flight. So `tma_copy
n` puts n programs of one warp each on an SM: while one waits for the end of its tile, the others copy. They are
ordinary programs: each executes its waits, copies and notifies in the order of its tiles.

The clause is allowed for stages that execute one copy per tile, after waits and before notifies. Conditions may choose
which copy it is, and may exclude all of them. If a processor or a dialect has no such copies, or
if a tile does not consist of whole boxes of both tensors of its copy, programs use loads and stores as they do without
the clause.
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.ir.mapping import Span
from tilelink.ir.printer import print_region
from tilelink.ir.program import ITEM_BYTES, If, Notify, Region, Statement, Wait
from tilelink.ir.scalar import Index, const, mul
from tilelink.ir.sizes import power_of_two
from tilelink.ir.visitor import copied, statements
from tilelink.lowering.bound import Bound, BoundStage, Boxes
from tilelink.lowering.choose_network import reaches_other_nodes
from tilelink.lowering.clauses.clause import Clause, Known, Phase, Ties, count
from tilelink.scheduling.schedule import Fused, Sm

SHARED = 192 * 1024
"""Bytes of an SM's shared memory for boxes. A program with a large matrix product leaves no room for them."""
MAX_BOXES = 8
"""Largest number of boxes of a program."""
MIN_BOXES = 6
"""Least number of boxes of a program if its tiles are large enough: some are loaded while others are stored."""
ROW_BYTES = 256
"""Largest number of bytes in a row of a box."""
MAX_BOX = 256
"""Largest number of elements of a box along a dimension (CUDA driver API, cuTensorMapEncodeTiled)."""
ALIGNMENT = 16
"""Alignment in bytes of rows of tensors and boxes (ibid.)."""
SMEM_ALIGNMENT = 128
"""Alignment in bytes of a box in shared memory (PTX ISA, cp.async.bulk.tensor)."""
MAX_PROGRAMS = 16
"""Largest number of programs of an SM. With more, the boxes of each would be too small."""
MAX_RANKS = 16
"""Largest number of ranks. The descriptors of all ranks are kernel parameters, which hold only a few thousand bytes."""


def _apply(bound: Bound) -> Bound:
    """Return the bound program with the boxes of every stage that has the clause and can use it.

    Raises ScheduleError for a stage that is not one copy on reserved SMs.
    """
    stages = dict(bound.stages)
    for name, stage in bound.stages.items():
        part = bound.schedule.stage(name)
        programs = part[TMA_COPY]
        if not programs:
            continue
        if reason := _reason(bound, stage):
            hint = "take `tma_copy` away, or let the stage copy on SMs of its own: on sm(n)"
            raise ScheduleError(f"{name} cannot copy by TMA: {reason}", location=part.at("tma_copy"), hint=hint)
        if not bound.capabilities.tma_copies:
            continue
        boxes = _boxes(bound, stage, programs)
        if isinstance(boxes, str):
            bound = bound.leaving_out(TMA_COPY.name, name, boxes)
        else:
            stages[name] = replace(stage, tma_copy=boxes)
    return replace(bound, stages=stages)


def bulk_reason(body: tuple[Statement, ...]) -> str | None:
    """Return why the statements of a tile do not allow a copy by TMA, or None."""
    copies = [at for at, s in enumerate(body) if isinstance(s, If) or copied(s) is not None]
    if len(copies) != 1:
        return "its tiles are not one copy each"
    before, after = body[: copies[0]], body[copies[0] + 1 :]
    if not all(isinstance(s, Wait) for s in before) or not all(isinstance(s, Notify) for s in after):
        return "its tiles do more than to wait, copy and notify"
    match body[copies[0]]:
        case If(then=then, orelse=orelse):
            return next(filter(None, map(bulk_reason, filter(None, (then, orelse)))), None)
        case _:
            return None


def _reason(bound: Bound, stage: BoundStage) -> str | None:
    if not isinstance(stage.resource, Sm) or stage.resource.programs is None:
        return "it has no SMs of its own"
    if (bound.schedule.stage(stage.name)[TMA_COPY] or 0) > MAX_PROGRAMS:
        return f"an SM runs {MAX_PROGRAMS} such programs at most"
    if any(isinstance(s.resource, Fused) and s.resource.stage == stage.name for s in bound.stages.values()):
        return "another stage runs in its kernel"
    return bulk_reason(stage.stage.body)


def _boxes(bound: Bound, stage: BoundStage, programs: int) -> Boxes | str:
    """Return the boxes of a stage's tiles if `programs` of them share an SM, or why there are none."""
    if bound.ranks > MAX_RANKS:
        return f"there are descriptors for {MAX_RANKS} ranks at most"
    if not stage.total:
        return "it has no tiles"
    if reaches_other_nodes(bound, stage):
        return "it reaches other nodes"
    regions = [region for s in statements(stage.stage.body) for region in copied(s) or ()]
    sizes: set[tuple[int, int, bool]] = set()
    for region in regions:
        size = _size(bound, stage, region)
        if isinstance(size, str):
            return f"{size} in {print_region(region)}"
        sizes.add(size)
    dtypes = sorted({bound.tensors[region.tensor].dtype for region in regions})
    if len(sizes) != 1:
        return "its copies have tiles of several shapes"
    if len(dtypes) != 1 or "bool" in dtypes:
        return f"no descriptor is of {' and of '.join(dtypes)}"
    ((rows, columns, whole),), width = sizes, ITEM_BYTES[dtypes[0]]
    room = SHARED // programs
    across = power_of_two(columns) if whole else _power_dividing(columns)
    across = min(across, MAX_BOX, ROW_BYTES // width)
    down = min(_power_dividing(rows), MAX_BOX, _power_below(room // MIN_BOXES // (across * width)))
    if across * width % ALIGNMENT or down * across * width % SMEM_ALIGNMENT:
        box = f"boxes that divide a tile have {down} x {across} elements of {width} bytes"
        return f"{box}: rows of no {ALIGNMENT} bytes, or no {SMEM_ALIGNMENT} bytes in all"
    buffers = min(MAX_BOXES, room // (down * across * width))
    return Boxes(programs=programs, rows=rows, columns=columns, box=(down, across), buffers=buffers)


def _size(bound: Bound, stage: BoundStage, region: Region) -> tuple[int, int, bool] | str:
    """Return (rows, columns, True if these are all columns of the tensor) of a region.

    Return why not if it is not a block of the rows of whole tiles. The rows may begin anywhere: a tile that the end of
    its index does not cut has all of its rows within the dimension, or the rule `coverage` refuses it.
    """
    tensor = bound.tensors[region.tensor]
    spans = bound.tile_map(stage.name, region).spans
    if not spans:
        return "there is one number"
    *others, columns = spans
    rows = others.pop() if others else None
    points = all(span.kind == "point" for span in others)
    aligned = tensor.shape[-1] * ITEM_BYTES[tensor.dtype] % ALIGNMENT == 0
    if not points or columns.kind not in ("tile", "whole"):
        return "tiles are no blocks of rows"
    if not aligned:
        return f"rows are no multiple of {ALIGNMENT} bytes"
    ends = columns.index is not None and stage.extents[columns.index] == columns.extent
    if not _in_steps(stage, columns):
        return "columns are shifted"
    if not (ends or _uncut(stage, columns)):
        return f"the end of {columns.index} cuts a tile"
    if rows is None or rows.kind == "point":
        return 1, columns.size, columns.size == columns.extent
    if rows.kind == "gather":
        return "rows are those of a list"
    if not _uncut(stage, rows):
        return f"the end of {rows.index} cuts a tile"
    return rows.size, columns.size, columns.size == columns.extent


def _uncut(stage: BoundStage, span: Span) -> bool:
    """True if the end of its index cuts no tile."""
    return span.index is None or stage.extents[span.index] % span.size == 0


def _in_steps(stage: BoundStage, span: Span) -> bool:
    """True if its tiles are the first ones of the dimension, contiguous: none is shifted or out of bounds."""
    if span.index is None:
        return True
    steps = mul(Index(name=span.index), const(span.size))
    return span.start in (steps, const(0)) and stage.extents[span.index] <= span.extent


def _power_dividing(n: int) -> int:
    return n & -n


def _power_below(n: int) -> int:
    """Return the largest power of two that is at most n."""
    return 1 << (n.bit_length() - 1)


TMA_COPY: Clause[int | None] = count(
    "tma_copy",
    "an SM runs at least one program",
    formerly="bulk",
    apply=_apply,
    capability="tma_copies",
    phase=Phase.BEFORE_KERNELS,  # how many programs share an SM is a kernel's
    needs=Known(
        why="TMA copies whole boxes, whose places are known when a kernel is compiled",
        instead="take tma_copy away: on sm(n) with num_warps 8 copies by loads and stores",
    ),
    ties=Ties.SHOWN,
    manual=(
        "each of the m SMs of a stage `on sm(m)` runs n programs of one warp, n at most 16, that copy by the tensor "
        "memory accelerator (TMA); while one of them waits for the end of its tile, the others copy. For stages whose "
        "tiles are one copy each, after waits and before notifies; conditions may choose which copy it is. Programs "
        "use loads and stores instead if the processor has no TMA, on more than 16 ranks, to ranks of other nodes, and "
        "if tiles are shifted along the last dimension or not whole boxes of both tensors"
    ),
)
