"""Barriers that the warps of a block may not reach together, found in the PTX of a kernel.

A barrier of a block counts arrivals. If warps go by different branches, one warp's arrival at a barrier counts for
another's at the next barrier, and both go on too early. CPU ranks cannot show this: the interpreter executes a program
as one thread. So a barrier must not depend on a branch that warps may decide differently, nor stand in a loop that such
a branch leaves.

Each value has kinds of difference between threads:

- LANE: between the lanes of a warp, as %laneid.
- WARP: between warps, as %tid.
- TIME: between warps that look at different times: clocks, and loads with acquire, relaxed or volatile.

Alike in all threads are arguments, what is loaded from an address that is alike without such a qualifier, which nobody
writes meanwhile, and what a barrier makes so: the result of `bar.red`, and shared memory at an address that is alike.
(Triton hands the result of a scalar atomic or of a reduction to all threads by shared memory.) A shuffle makes lanes
alike, and keeps what differs between warps. A value also differs if it is assigned where only some threads come.

A block of one warp meets itself, wherever all of its lanes go.

Barriers with a number and a count of threads are those of roles, whose warps are chosen by their numbers. They must not
depend on time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

LANE, WARP, TIME, SHUFFLED = 1, 2, 4, 8
ALL = LANE | WARP | TIME
_NAMES = {LANE: "lane", WARP: "warp", TIME: "time"}

_SPECIAL = {
    "%laneid": LANE, "%lanemask_lt": LANE, "%lanemask_le": LANE, "%lanemask_gt": LANE, "%lanemask_ge": LANE,
    "%lanemask_eq": LANE, "%warpid": WARP, "%clock": ALL, "%clock64": ALL, "%clock_hi": ALL, "%globaltimer": ALL,
    "%globaltimer_lo": ALL, "%globaltimer_hi": ALL,
}  # fmt: skip
_REGISTER = re.compile(r"%[A-Za-z_]\w*")
_NO_RESULT = re.compile(
    r"st\.|st$|red\.|bar\.(cta\.)?(sync|arrive|warp)|barrier\.(cta\.|cluster\.)?(sync|arrive|wait)|bra\b|brx\b|ret\b"
    r"|exit\b|trap\b|fence|membar|cp\.|prefetch|discard|applypriority|mbarrier\.(init|inval|expect|complete)|nanosleep"
    r"|wgmma\.(fence|commit|wait)|setmaxnreg|griddepcontrol|stmatrix|tensormap|call\b|brkpt|pmevent"
)
_OF_BLOCK = re.compile(r"(bar|barrier)\.(cta\.)?(sync|red|arrive)\b")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A barrier that some warps may reach alone, and the branch that they decide differently."""

    barrier: str
    branch: str
    differs: str
    source: str

    def __str__(self) -> str:
        return f"`{self.barrier}` depends on `{self.branch}`, which differs by {self.differs} since `{self.source}`"


@dataclass(eq=False, slots=True)
class _Instruction:
    text: str
    code: str
    guard: str
    results: tuple[str, ...]
    uses: tuple[str, ...]
    operands: tuple[str, ...]
    targets: tuple[str, ...] = ()


@dataclass(eq=False)
class _Block:
    instructions: list[_Instruction] = field(default_factory=list[_Instruction])
    after: list[int] = field(default_factory=list[int])


def faults(ptx: str, *, alike: Collection[int] = ()) -> list[Fault]:
    """Return the barriers of all kernels in a text of PTX that not all warps may reach together.

    alike: the numbers of parameters whose memory all warps see alike, whatever the loads' qualifiers.
    """
    return [fault for threads, body in _kernels(ptx) for fault in _Analysis(body, threads, frozenset(alike)).faults()]


def _kernels(ptx: str) -> Iterator[tuple[int, str]]:
    """Yield the number of threads (1024 if it is not said) and the body of each kernel."""
    ptx = re.sub(r"//[^\n]*|^\s*\.loc\b[^\n]*", "", ptx, flags=re.M)
    for head in re.finditer(r"\.entry\s+\w+\s*\([^)]*\)([^{]*)\{", ptx):
        threads = re.search(r"\.(?:req|max)ntid\s+(\d+)", head[1])
        at, depth = head.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(ptx[at], 0)
            at += 1
        yield (int(threads[1]) if threads else 1024), ptx[head.end() : at - 1]


@dataclass(eq=False)
class _Scope:
    number: int
    outer: _Scope | None
    registers: set[str] = field(default_factory=set[str])
    labels: set[str] = field(default_factory=set[str])

    def register(self, name: str) -> str:
        scope: _Scope | None = self
        while scope is not None and name not in scope.registers:
            scope = scope.outer
        return f"{name}@{scope.number}" if scope is not None else name

    def label(self, name: str) -> str:
        scope = self
        while name not in scope.labels and scope.outer is not None:
            scope = scope.outer
        return f"{name}@{scope.number}"


_PIECE = re.compile(r"\s*(?:(\{)|(\})|([$\w]+):(?!:)|([^;]*);)")


def _statements(body: str) -> Iterator[tuple[_Scope, str, str]]:
    """Yield the labels, as ("label", name), and the statements of a body, each with the scope it stands in."""
    outermost = _Scope(number=0, outer=None)
    scope, number, at = outermost, 0, 0
    found: list[tuple[_Scope, str, str]] = []
    while (piece := _PIECE.match(body, at)) is not None:
        at = piece.end()
        opens, closes, label, statement = piece.groups()
        if opens:
            number += 1
            scope = _Scope(number=number, outer=scope)
        elif closes:
            assert scope.outer is not None
            scope = scope.outer
        elif label:
            scope.labels.add(label)
            found.append((scope, "label", label))
        elif statement.startswith(".reg"):
            if scope is not outermost:
                scope.registers |= set(_REGISTER.findall(statement))
        elif statement:
            found.append((scope, "statement", " ".join(statement.split())))
    assert not body[at:].strip(), f"not understood: {body[at : at + 80]!r}"
    yield from found


def _operands(text: str) -> tuple[str, ...]:
    """Split operands at the commas that stand in no brackets."""
    parts, depth, begin = list[str](), 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "{[(") - (sign in "}])")
        if sign == "," and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return (*parts, text[begin:].strip())


def _instruction(scope: _Scope, text: str) -> _Instruction:
    guard, rest = "", text
    if found := re.match(r"@!?(%\w+)\s+", text):
        guard, rest = scope.register(found[1]), text[found.end() :]
    code, _, tail = rest.partition(" ")
    operands = _operands(tail)
    own = [tuple(scope.register(name) for name in _REGISTER.findall(part)) for part in operands]
    results: tuple[str, ...] = () if _NO_RESULT.match(code) else own[0]
    inputs = own if not results or "mma" in code else own[1:]
    uses = tuple(name for part in inputs for name in part)
    targets = (scope.label(operands[-1]),) if code.startswith("bra") else ()
    return _Instruction(text, code, guard, results, uses, operands, targets)


class _Analysis:
    """The blocks of a kernel, and for each register how its value differs between threads."""

    def __init__(self, body: str, threads: int, alike: frozenset[int]) -> None:
        self.threads = threads
        self.alike = alike
        self.blocks, self.entry_of = self._blocks(body)
        self._link()
        counts: dict[str, int] = {}
        for block in self.blocks:
            for one in block.instructions:
                for name in one.results:
                    counts[name] = counts.get(name, 0) + 1
        self.many = {name for name, count in counts.items() if count > 1}
        self.once: dict[str, int] = {}
        self.parameters: dict[str, frozenset[int]] = {}
        self.shifted: dict[str, int] = {}
        """Registers that hold %tid.x, shifted to the left by so many bits."""
        self.sources: dict[str, tuple[int, str]] = {}
        self.into: list[dict[str, int]] = [{} for _ in self.blocks]
        self.reached: list[int] = [0] * len(self.blocks)
        """How threads differ in whether they come to a block."""
        self.controls = self._controls()
        self.branch: dict[int, int] = {}
        self._solve()

    def _blocks(self, body: str) -> tuple[list[_Block], dict[str, int]]:
        blocks, entries = [_Block()], dict[str, int]()
        tables: dict[str, tuple[str, ...]] = {}
        statements = list(_statements(body))
        for at, (scope, _, text) in enumerate(statements):
            if text.startswith(".branchtargets"):
                name = statements[at - 1][2]
                tables[name] = tuple(scope.label(one) for one in re.findall(r"[$\w]+", text.partition(" ")[2]))
        for scope, kind, text in statements:
            if kind == "label":
                if blocks[-1].instructions:
                    blocks.append(_Block())
                entries[scope.label(text)] = len(blocks) - 1
                continue
            if text.startswith("."):
                continue
            one = _instruction(scope, text)
            if one.code.startswith("brx"):
                one.targets = tables[one.operands[1]]
            blocks[-1].instructions.append(one)
            if re.match(r"bra|brx|ret|exit|trap", one.code):
                blocks.append(_Block())
        return blocks, entries

    def _link(self) -> None:
        for at, block in enumerate(self.blocks):
            last = block.instructions[-1] if block.instructions else None
            if last is not None and last.targets:
                block.after = [self.entry_of[name] for name in last.targets]
            ends = last is not None and (last.code.startswith("br") or re.match(r"ret|exit|trap", last.code))
            if (not ends or (last is not None and last.guard)) and at + 1 < len(self.blocks):
                block.after.append(at + 1)
            block.after = list(dict.fromkeys(block.after))

    def _controls(self) -> list[list[int]]:
        """For each block the blocks whose branch decides whether it is executed (again)."""
        count = len(self.blocks)
        end = 1 << count
        everything = (end << 1) - 1
        behind = [everything] * count
        changed = True
        while changed:
            changed = False
            for at in reversed(range(count)):
                common = everything
                for follower in self.blocks[at].after:
                    common &= behind[follower]
                new = (common if self.blocks[at].after else end) | 1 << at
                changed |= new != behind[at]
                behind[at] = new
        controls: list[list[int]] = [[] for _ in range(count)]
        for at, block in enumerate(self.blocks):
            if len(block.after) < 2:
                continue
            depends = 0
            for follower in block.after:
                depends |= behind[follower]
            depends &= ~(behind[at] & ~(1 << at)) & (end - 1)
            while depends:
                controls[(depends & -depends).bit_length() - 1].append(at)
                depends &= depends - 1
        return controls

    def _solve(self) -> None:
        changed = True
        while changed:
            changed = False
            for at, block in enumerate(self.blocks):
                state = dict(self.into[at])
                for one in block.instructions:
                    changed |= self._execute(one, state, self.reached[at])
                for follower in block.after:
                    into = self.into[follower]
                    for name, kinds in state.items():
                        if kinds & ~into.get(name, 0):
                            into[name] = into.get(name, 0) | kinds
                            changed = True
                if len(block.after) > 1:
                    last = block.instructions[-1]
                    decided = self._kinds(last.guard, state) if last.guard else self._of(last.uses, state)
                    if decided & SHUFFLED:
                        decided &= ~LANE
                    changed |= self.branch.get(at) != decided
                    self.branch[at] = decided
            for at in range(len(self.blocks)):
                new = self.reached[at]
                for control in self.controls[at]:
                    new |= (self.branch.get(control, 0) | self.reached[control]) & ALL
                changed |= new != self.reached[at]
                self.reached[at] = new

    def _kinds(self, name: str, state: dict[str, int]) -> int:
        if name == "%tid":
            return LANE | (WARP if self.threads > 32 else 0)
        if (kinds := _SPECIAL.get(name)) is not None:
            return kinds if self.threads > 32 else kinds & ~WARP
        return state.get(name, 0) if name in self.many else self.once.get(name, 0)

    def _of(self, names: Collection[str], state: dict[str, int]) -> int:
        kinds = 0
        for name in names:
            kinds |= self._kinds(name, state)
        return kinds

    def _execute(self, one: _Instruction, state: dict[str, int], reached: int) -> bool:
        if not one.results:
            return False
        kinds = self._result(one, state)
        if one.guard:
            kinds |= self._kinds(one.guard, state) | self._of(one.results, state)
        kinds |= reached
        changed = False
        for name in one.results:
            if kinds & ~self.sources.get(name, (0, ""))[0]:
                self.sources[name] = self._source(one, kinds)
            if name in self.many:
                state[name] = kinds
            elif kinds & ~self.once.get(name, 0):
                self.once[name] = self.once.get(name, 0) | kinds
                changed = True
        if len(one.results) == 1 and one.results[0] not in self.many:
            changed |= self._trace(one)
        return changed

    def _source(self, one: _Instruction, kinds: int) -> tuple[int, str]:
        """Return the kinds of a difference and the instruction with which most of it began."""
        if self._begins(one):
            return kinds, one.text
        known = [self.sources[name] for name in (*one.uses, one.guard) if name in self.sources]
        return kinds, max(known, key=lambda found: found[0] & ALL)[1] if known else one.text

    def _begins(self, one: _Instruction) -> bool:
        return re.match(r"ld\.(volatile|acquire|relaxed)|atom", one.code) is not None or "%globaltimer" in one.uses

    def _trace(self, one: _Instruction) -> bool:
        """Follow parameters through addresses, and the number of the thread through shifts."""
        (name,) = one.results
        found = frozenset[int]()
        if one.code.startswith("ld.param"):
            if parameter := re.search(r"_param_(\d+)", one.operands[1]):
                found = frozenset({int(parameter[1])})
        elif not re.match(r"ld|atom|shfl", one.code):
            found = frozenset[int]().union(*(self.parameters.get(use, ()) for use in one.uses))
        changed = found != self.parameters.get(name, frozenset())
        if changed:
            self.parameters[name] = found
        first = one.operands[1] if len(one.operands) > 1 else ""
        if one.code.startswith("mov") and first == "%tid.x":
            self.shifted[name] = 0
        elif len(one.uses) == 1 and one.uses[0] in self.shifted and re.match(r"sh[lr]|mov", one.code):
            by = int(one.operands[2]) if len(one.operands) > 2 else 0
            self.shifted[name] = self.shifted[one.uses[0]] + (by if one.code.startswith("shl") else -by)
        return changed

    def _result(self, one: _Instruction, state: dict[str, int]) -> int:
        code = one.code
        kinds = self._of(one.uses, state)
        if re.match(r"(bar|barrier)\.(cta\.)?red", code):
            return 0
        if code.startswith("ld."):
            if ".param" in code:
                return ALL if "retval" in one.operands[1] else 0
            if ".local" in code:
                return ALL
            if ".shared" not in code and re.match(r"ld\.(volatile|acquire|relaxed|mmio)", code):
                base = frozenset[int]().union(*(self.parameters.get(use, ()) for use in one.uses))
                return kinds if base and base <= self.alike else kinds | TIME | (WARP if self.threads > 32 else 0)
            return kinds
        if re.match(r"atom|mbarrier|activemask", code):
            return kinds | (ALL if self.threads > 32 else LANE | TIME)
        if code.startswith("shfl"):
            return kinds | (SHUFFLED if kinds & LANE else 0)
        if re.match(r"vote|redux|match", code):
            return kinds & ~LANE
        if code.startswith("elect"):
            return LANE
        if re.match(r"wgmma|mma|ldmatrix|wmma|tcgen", code):
            return kinds | LANE | (WARP if self.threads > 32 else 0)
        if len(one.uses) == 1 and one.uses[0] in self.shifted:
            return self._of_thread(one, kinds)
        return kinds

    def _of_thread(self, one: _Instruction, kinds: int) -> int:
        """Return which bits of the number of the thread a result has."""
        left, bits = self.shifted[one.uses[0]], self.threads - 1
        number, width = (*one.operands[2:4], "", "")[:2]
        if one.code.startswith("and") and re.fullmatch(r"-?\d+", number):
            bits = int(number) >> left if left >= 0 else int(number) << -left
        elif one.code.startswith("shr") and number.isdigit():
            bits = -1 << max(int(number) - left, 0)
        elif one.code.startswith("bfe") and number.isdigit() and width.isdigit():
            bits = ((1 << int(width)) - 1) << max(int(number) - left, 0)
        elif one.code.startswith("setp") and number.isdigit() and not left:
            edge = int(number) + (re.search(r"\.(gt|le|hi|ls)\.", one.code) is not None)
            if edge % 32 == 0 and not re.search(r"\.(eq|ne)\.", one.code):
                bits = -32
        else:
            return kinds
        bits &= (1 << (self.threads - 1).bit_length()) - 1
        return (LANE if bits & 31 else 0) | (WARP if bits & ~31 else 0)

    def faults(self) -> Iterator[Fault]:
        for at, block in enumerate(self.blocks):
            for one in block.instructions:
                if not _OF_BLOCK.match(one.code):
                    continue
                wrong = ALL if self._whole(one) else TIME
                if self.threads <= 32:
                    wrong &= LANE
                if one.guard and self._kinds(one.guard, self.into[at]) & wrong:
                    yield self._fault(one, one, self._kinds(one.guard, self.into[at]) & wrong)
                elif self.reached[at] & wrong:
                    control = self._cause(at, wrong)
                    last = self.blocks[control].instructions[-1]
                    yield self._fault(one, last, self.branch[control] & wrong)

    def _whole(self, one: _Instruction) -> bool:
        """True for a barrier of all threads of the block."""
        after = 3 if ".red" in one.code else 1
        number = one.operands[1 if ".red" in one.code else 0]
        return number == "0" and len(one.operands) <= after

    def _cause(self, at: int, wrong: int) -> int:
        """Return the block of the branch that keeps some threads from a block."""
        seen, pending = {at}, [at]
        for block in pending:
            for control in self.controls[block]:
                if self.branch.get(control, 0) & wrong:
                    return control
                if control not in seen:
                    seen.add(control)
                    pending.append(control)
        raise AssertionError("no branch decides it")

    def _fault(self, barrier: _Instruction, branch: _Instruction, kinds: int) -> Fault:
        differs = " and ".join(name for kind, name in _NAMES.items() if kinds & kind)
        name = branch.guard or branch.uses[0]
        _, source = self.sources.get(name, (kinds, name))
        return Fault(barrier=barrier.text, branch=branch.text, differs=differs, source=source)
