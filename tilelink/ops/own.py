# pyright: basic
"""`tilelink.op`: a program of one's own as a function on torch tensors, which every rank of a group calls."""

from __future__ import annotations

import hashlib
import logging
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.distributed import ProcessGroup

from tilelink import compiler
from tilelink.errors import BindingError, DtypeError, RankError, ShapeError, TileLinkError, did_you_mean, public
from tilelink.frontend.variants import Template
from tilelink.ir.parameters import check_number
from tilelink.ir.program import Program, require_program
from tilelink.ops import custom, derivative
from tilelink.ops.calls import NotMade, gpu_of, made_for
from tilelink.ops.consensus import CallKind, agree, compared, of_first
from tilelink.ops.custom import is_dense, is_differentiated, is_direct, schedule_text
from tilelink.ops.device_memory import check_device_memory
from tilelink.ops.groups import Group, group_named, members_of, name_of, refuse_capture, size_of
from tilelink.ops.nodes import nodes_of
from tilelink.ops.partial_inputs import PartialInputs, Shortcut
from tilelink.ops.predict import machine_of
from tilelink.ops.reference_launch import ReferenceLaunch
from tilelink.ops.signature import Call, Signature, signature_of
from tilelink.ops.sms import target_of
from tilelink.ops.specialization import ELEMENTS, Specialization, Specializations, name_of_type
from tilelink.runtime.cuda.device import current_target
from tilelink.scheduling.schedule import Schedule
from tilelink.tuning.found import found

if TYPE_CHECKING:
    from tilelink.runtime.cuda.kernel import GpuKernel
    from tilelink.runtime.cuda.timing import Timing

NAMESPACE = "tilelink_own"
_log = logging.getLogger("tilelink.ops")
Out = torch.Tensor | Mapping[str, torch.Tensor] | Sequence[torch.Tensor]


class Op:
    """A program as a function of tensors: `y = my_op(x, w)`. Every rank of a group calls it on its own tensors.

    Tensors are given in the order of the program's inputs or by name, and inputs that may be left out can be. Sizes are
    those of the tensors. By name come dimensions that no input tells, parameters, and choices of functions and element
    types. The result is the output, or a named tuple of several, in new tensors. Tensors that the program reads and
    writes in place are changed; they are the result of a program without outputs.

    On GPUs the first call of each kind (sizes, types, choices, schedule, group) compiles a kernel, which is collective.
    Further calls are asynchronous launches on the current stream. On CPU tensors each rank computes the reference
    result of all ranks' inputs, after the program and its schedule were verified.
    """

    def __init__(
        self, program: Program, schedule: str, fixed: Mapping[str, Any], backward: Sequence[Any] | None,
        tables: Mapping[str, Any], dtype: str | None, name: str,
    ) -> None:  # fmt: skip
        """Use `tilelink.op`, which checks what it is given. name: of the custom operator, "namespace::name"."""
        self.program, self.schedule, self.name = program, schedule, name
        self._made_of = (program, schedule, fixed, backward, tables, dtype)
        self.signature = signature_of(program)
        self._fixed, self._tables = dict(fixed), dict(tables)
        self._specializations = Specializations(program, self.signature, self._tables, dtype)
        self._names = frozenset(self.signature.names)
        self._params = {one.name: one for one in program.params if one.name in self.signature.numbers}
        self._fitting: set[Any] = set()
        self._partial = PartialInputs(program)
        self._shortcut = Shortcut(self._partial, self.signature.inputs, self._fixed)
        free = self.signature.optional | {*self._partial.counts}
        self._required = tuple(one for one in self.signature.inputs if one not in free)
        results = self.signature.results
        self._output = results[0]
        self._several: Any = namedtuple(program.name, results, rename=True) if len(results) > 1 else None
        self._parts = None if backward is None else derivative.parts_of(backward, self.signature)
        self.__name__, self.__doc__ = program.name, f"{program.name}, a program as a function of tensors."
        self._declare()

    def __deepcopy__(self, memo: dict[int, Any]) -> Op:
        return self  # copies of a module that holds an operator share it, as they share functions

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._made_of

    def __repr__(self) -> str:
        return f"<tilelink.op {self.name}({', '.join(self.signature.inputs)})>"

    # Calls ---------------------------------------------------------------------------------------------------

    def __call__(
        self, *tensors: torch.Tensor | int | None, out: Out | None = None, group: Group = None,
        schedule: Schedule | str | None = None, **named: Any,
    ) -> Any:  # fmt: skip
        """Compute the outputs.

        out: a tensor for the output, or several by name or in order, to be written instead of new ones; they share no
        memory with inputs or each other, and the call has no gradients. group: of torch.distributed, its name, or None
        for all ranks. schedule: another one than the operator's. named: inputs, dimensions, parameters and choices.

        Raises ShapeError, DtypeError or BindingError for what does not fit the program, on all ranks RankError or
        ShapeError if their first calls differ, and what `tilelink.compile` raises.
        """
        members = members_of(group)
        text = self.schedule if schedule is None else schedule_text(schedule)
        if self._partial.counts:
            return self._call_in_part(tensors, named, members, text, out)
        operands = cast("tuple[torch.Tensor | None, ...]", tensors)  # integers are counts
        if out is None and is_direct(operands):
            known = made_for(members).calls
            key = (self, text, *[t if t is None else (t.shape, t.dtype, t.is_cuda) for t in operands], *named.items())
            try:
                found = known.get(key)
            except TypeError:  # some argument has no hash, and so is no number
                found = None
            if found is None:
                found = self._first(tensors, named, members, text, known, key)
            if found is not None:
                launch, places = found
                return self._results(launch({name: tensors[place] for name, place in places}))
        values = self._bound(tensors, named)
        given = [values.get(name) for name in self.signature.inputs]
        if out is not None:
            return self._call_into(values, given, self._given_outputs(out), members, text)
        self._require_no_gradients(given)
        made = self._new(*[values.get(name) for name in self.signature.names], name_of(members), text)
        if not self.signature.outputs:
            return self._results(values)
        return made if self._several is None else self._several(*made)

    def _require_no_gradients(self, given: Sequence[torch.Tensor | None]) -> None:
        """Raise BindingError for a call that changes tensors in place, and would have gradients."""
        if self.signature.in_place and is_differentiated(given):
            message = (
                f"a call of {self.program.name} changes {self.signature.in_place[0]} in place, and has no gradients"
            )
            raise BindingError(message, hint="call it in torch.no_grad()")

    def _call_in_part(
        self, tensors: tuple[Any, ...], named: Mapping[str, Any], members: ProcessGroup | str, text: str,
        out: Out | None,
    ) -> Any:  # fmt: skip
        """Compute the outputs of a call that gives a part of some inputs, by the kernel for all of them."""
        key = None
        if self._shortcut.works and out is None and not named and len(tensors) <= len(self.signature.inputs):
            short = self._shortcut.whole(tensors) if is_direct([t for t in tensors if type(t) is not int]) else None
            if short is not None:
                whole, known_counts = short
                kept = made_for(members).calls
                key = (self, text, *[None if t is None else (t.shape, t.dtype, t.is_cuda) for t in whole])
                if (launch := kept.get(key)) is not None:
                    made = launch({n: t for n, t in zip(self.signature.inputs, whole, strict=True) if t is not None})
                    return self._results(self._shortcut.cut(made, known_counts))
        values = self._bound(tensors, named)
        operands = [value for value in values.values() if isinstance(value, torch.Tensor)]
        into = None if out is None else self._given_outputs(out)
        direct = is_direct((*operands, *(into or {}).values()))
        if direct:
            self._check_room(values, members)
        given, counts = self._partial.whole(values, direct=direct)
        if into is not None:
            written = self._partial.into(into, given)
            self._call_into(given, [given.get(name) for name in self.signature.inputs], written, members, text)
            return self._results(into)
        self._require_no_gradients(operands)
        found = self._new(*[given.get(name) for name in self.signature.names], name_of(members), text)
        if key is not None and direct and not isinstance(launch := self._prepared(given, members, text), _Wanted):
            kept[key] = launch
        if not self.signature.outputs:
            return self._results(values)
        found = dict(zip(self.signature.outputs, [found] if self._several is None else found, strict=True))
        return self._results(self._partial.cut(found, counts))

    def _check_room(self, values: Mapping[str, Any], members: ProcessGroup | str) -> None:
        """Raise BindingError if the tensors for the largest size have no room, once for each kind of a call."""
        largest = self._partial.largest(values)
        key = tuple((name, shape, values[name].device) for name, shape in largest.items())
        if key in self._fitting:
            return
        ranks = size_of(members)
        shaped = {n: torch.empty(shape, dtype=values[n].dtype, device="meta") for n, shape in largest.items()}
        counts = {name: None for name in self._partial.counts}
        form = self._specializations.of(self._as_call({**values, **counts, **shaped}), ranks)
        check_device_memory(form, ranks, next(values[name].device for name in largest), self._partial)
        self._fitting.add(key)

    def _results(self, made: Mapping[str, torch.Tensor]) -> Any:
        """Return the outputs of a call, by their names, as the call returns them."""
        if self._several is None:
            return made[self._output]
        return self._several._make([made[name] for name in self.signature.results])

    def _first(
        self, tensors: tuple[Any, ...], named: Mapping[str, Any], members: ProcessGroup | str, text: str,
        known: dict[Any, Any], key: Any,
    ) -> tuple[Any, list[tuple[str, int]]] | None:  # fmt: skip
        """Return what launches calls of this kind, and the places of their tensors, and keep it with a key of the call.

        None for a call with tensors by name: those may need gradients, and are in no key.
        """
        values = self._bound(tensors, named)
        if any(isinstance(value, torch.Tensor) for value in named.values()):
            return None
        places = [(name, place) for place, name in enumerate(self.signature.inputs) if values.get(name) is not None]
        found = self._prepared(values, members, text), places
        if not isinstance(found[0], _Wanted):
            known[key] = found
        return found

    def kernel(
        self, *tensors: torch.Tensor | None, group: Group = None, schedule: Any = None, **named: Any
    ) -> GpuKernel:
        """Return the kernel that a call with these arguments launches; for GPU tensors. Collective the first time."""
        values, members = self._bound(tensors, named), members_of(group)
        if self._partial.counts:
            values, _ = self._partial.whole(values, direct=True)
        found = self._prepared(values, members, self.schedule if schedule is None else schedule_text(schedule))
        if isinstance(found, ReferenceLaunch):
            hint = "tilelink.compile(program, ranks=..., dims=...) runs the generated kernels on CPU ranks"
            raise BindingError(f"{self.program.name} has no kernel for CPU tensors", hint=hint)
        return found

    def bench(
        self, *tensors: torch.Tensor | None, samples: int = 20, warmups: int = 5, group: Group = None,
        schedule: Any = None, **named: Any,
    ) -> Timing:  # fmt: skip
        """Return the time of a call with these tensors on GPUs, as `GpuKernel.bench` measures it. Collective."""
        kernel = self.kernel(*tensors, group=group, schedule=schedule, **named)
        values = self._bound(tensors, named)
        if self._partial.counts:
            values, _ = self._partial.whole(values, direct=True)
        inputs = {name: values[name] for name in self.signature.inputs if values.get(name) is not None}
        return kernel.bench(inputs, samples=samples, warmups=warmups)

    def _bound(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name. Raises BindingError for those that do not fit."""
        inputs, name = self.signature.inputs, self.program.name
        if len(tensors) > len(inputs):
            hint = f"its inputs are {self.signature.takes}; numbers and choices are given by name"
            raise BindingError(f"{name} is given {len(tensors)} tensors", hint=hint)
        values: dict[str, Any] = {**self._fixed, **dict(zip(inputs, tensors, strict=False))}
        for key, value in named.items():
            if key not in self._names:
                hint = did_you_mean(key, self._names, f"it takes {', '.join(self.signature.names)}")
                raise BindingError(f"{name} takes no {key!r}", hint=hint)
            if key in inputs[: len(tensors)]:
                raise BindingError(f"{key} of {name} is given twice", hint="by its place, and by its name")
            values[key] = value
        for key in self._required:
            if values.get(key) is None:
                raise BindingError(f"{name} is not given {key}", hint=f"its inputs are {self.signature.takes}")
        for key in inputs:
            value = values.get(key)
            if value is not None and not isinstance(value, torch.Tensor):
                if key in self._partial.counts and isinstance(value, int | np.integer | torch.SymInt):
                    values[key] = value if isinstance(value, torch.SymInt) else int(value)
                    continue
                hint = f"its inputs are tensors: {self.signature.takes}"
                raise BindingError(f"{key} of {name} is a {type(value).__name__}", hint=hint)
            self._require_dense(key, value)
        for key, value in values.items():
            if key not in inputs and value is not None:
                values[key] = self._plain(key, value)
        return values

    def _require_dense(self, key: str, value: torch.Tensor | None) -> None:
        if value is not None and not is_dense(value):
            what = "nested" if value.is_nested else f"of the layout {str(value.layout).removeprefix('torch.')}"
            hint = "kernels take dense tensors, with an element at each place of their shape"
            raise BindingError(f"{key} of {self.program.name} is {what}", hint=hint)

    def _plain(self, key: str, value: Any) -> Any:
        """Return a number or a choice as torch takes it. Raises BindingError for anything else."""
        if isinstance(value, np.generic):
            value = value.item()
        kinds: Any = str if key in self.signature.choices else (int, float, torch.SymInt, torch.SymFloat)
        if not isinstance(value, kinds):
            hint = "the name of a function or of an element type" if kinds is str else "a number"
            raise BindingError(f"{key} of {self.program.name} is a {type(value).__name__}", hint=hint)
        if key in self._params and isinstance(value, int | float) and not torch.compiler.is_compiling():
            check_number(self._params[key], value)
        return value

    def _given_outputs(self, out: Out) -> dict[str, torch.Tensor]:
        """Return given outputs by name. Raises BindingError unless there is a tensor for each."""
        names = self.signature.outputs
        if not names:
            hint = f"it changes {', '.join(self.signature.in_place)} in place"
            raise BindingError(f"{self.program.name} has no output that out= could be", hint=hint)
        if isinstance(out, torch.Tensor):
            out = (out,)
        found: dict[str, Any] = {}
        if isinstance(out, Mapping | Sequence):  # callers may give anything
            found = dict(out) if isinstance(out, Mapping) else dict(zip(names, out, strict=False))
        wrong = not found or len(out) != len(names) or set(found) != set(names)
        if wrong or not all(isinstance(one, torch.Tensor) for one in found.values()):
            hint = f"out= takes {'one tensor' if len(names) == 1 else 'a tensor for each of ' + ', '.join(names)}"
            raise BindingError(f"out of {self.program.name} is not that of its outputs", hint=hint)
        for key, value in found.items():
            self._require_dense(f"out {key}", value)
        return found

    def _call_into(
        self, values: dict[str, Any], given: list[Any], out: dict[str, torch.Tensor],
        members: ProcessGroup | str, text: str,
    ) -> Any:  # fmt: skip
        if is_differentiated((*given, *out.values())):
            hint = "leave out= out, or call it in torch.no_grad()"
            raise BindingError(f"a call of {self.program.name} with out= has no gradients", hint=hint)
        ordered = [out[name] for name in self.signature.outputs]
        self._into(*[values.get(name) for name in self.signature.names], name_of(members), text, *ordered)
        return self._results(out)

    # Running -------------------------------------------------------------------------------------------------

    def _run(
        self, values: Mapping[str, Any], members: ProcessGroup | str, schedule: str,
        out: Mapping[str, torch.Tensor] | None = None,
    ) -> Any:  # fmt: skip
        """Return the output, or all outputs in a tuple; None if there is none."""
        launch = self._prepared(values, members, schedule)
        inputs = {name: values[name] for name in self.signature.inputs if values.get(name) is not None}
        if out is not None and isinstance(launch, ReferenceLaunch):
            self._check_out(values, members, out)
        made = launch(inputs, out)
        found = [made[name] for name in self.signature.outputs]
        return tuple(found) if len(found) > 1 else found[0] if found else None

    def _prepared(self, values: Mapping[str, Any], members: ProcessGroup | str, schedule: str) -> Any:
        """Return the kernel of a call, or its meaning; made at the first call of its kind."""
        made = made_for(members)
        key = (self.name, schedule, *[_keyed(values.get(name)) for name in self.signature.names])
        found = made.calls.get(key)
        if found is None:
            first = next(values[name] for name in self.signature.inputs if values.get(name) is not None)
            with gpu_of(first):
                found = self._made(self._as_call(values), first.device, made.group, schedule)
            if not isinstance(found, _Wanted):
                made.calls[key] = found
        return found

    def _made(self, call: Call, device: torch.device, group: ProcessGroup, schedule: str) -> Any:
        """Make the kernel of a call, or its meaning. Collective.

        All ranks compare their calls before any of them waits for the others in it: on GPUs once, here; on CPUs in
        every launch, which gathers what the ranks give anyway.
        """
        if device.type == "cuda":
            refuse_capture(
                f"{self.program.name} is compiled at its first call, which no CUDA graph holds",
                "call it once before the capture, on all ranks, with tensors of these sizes",
            )
        same = CallKind(self.program.name, self._words(call, schedule))
        try:
            form = self._specializations.of(call, group.size())
            self._check_devices(call, device)
            chosen = self._schedule(form.program, schedule)
            if device.type == "cpu":
                return ReferenceLaunch(
                    form.program, chosen, dims=form.dims, dtype=form.dtype, tables=self._tables, group=group, same=same
                )  # fmt: skip
        except TileLinkError as error:
            agree(same, group, device, error)
            raise
        agree(same, group, device)
        if not schedule:
            chosen = self._schedule(form.program, self._of_first(form, group)) or chosen
        try:
            kernel = made_for(group).kernel(self.name, form.program, chosen, form.dims, form.dtype, self._tables)
        except NotMade:
            return _Wanted(form, device)
        return compared(kernel, same, group, device)

    def _of_first(self, form: Specialization, group: ProcessGroup) -> str:
        """Return the schedule that rank 0 finds, for which the others wait. Collective."""
        text = ""
        failed: Exception | None = None
        if group.rank() == 0:
            try:
                text = self._found(form, group)
            except Exception as error:  # whatever it is, the others wait for this rank
                failed = error
        text, why = of_first((text, repr(failed) if failed else ""), group)
        if failed is not None:
            raise failed
        if why:
            hint = 'schedule="default" takes the built-in one, and searches nothing'
            raise RankError(f"rank 0 cannot search a schedule for {self.program.name}", details=why, hint=hint)
        return text

    def _found(self, form: Specialization, group: ProcessGroup) -> str:
        """Return the schedule that the model finds for a call without any, "" for the built-in one, and log it."""
        machine = machine_of(torch.cuda.get_device_name())
        one = None if machine is None else found(
            form.program, ranks=group.size(), dims=form.dims, machine=machine, dtype=form.dtype, tables=self._tables,
            target=target_of(group) or current_target(group), nodes=nodes_of(group),
        )  # fmt: skip
        if one is None:
            return ""
        _log.info("%s; pasted into the file it takes the place of that:\n%s", one, one.text)
        return str(one.schedule)

    def _schedule(self, program: Program, text: str) -> Schedule | None:
        if "\n" in text:
            return compiler.parse(text).schedules[0]
        return compiler.schedule_of(program, text or None)

    def _as_call(self, values: Mapping[str, Any]) -> Call:
        return self.signature.call([values.get(name) for name in self.signature.names])

    def _words(self, call: Call, schedule: str) -> tuple[str, ...]:
        """Return a call in words, which are the same on all ranks that make the same call."""
        parts = [
            f"{name} {list(t.shape)} {name_of_type(t.dtype)} on {t.device.type}" for name, t in call.tensors.items()
        ]
        parts += [f"{name}={value}" for name, value in (*call.numbers.items(), *call.choices.items())]
        first = schedule.splitlines()[0].rstrip(":") if schedule else "the default schedule"
        digest = f" ({hashlib.sha256(schedule.encode()).hexdigest()[:8]})" if "\n" in schedule else ""
        return (*parts, first + digest)

    def _check_devices(self, call: Call, device: torch.device) -> None:
        for name, tensor in call.tensors.items():
            if tensor.device != device:
                message = f"{name} of {self.program.name} lies on {tensor.device}, the first input on {device}"
                raise DtypeError(message, hint="all tensors of a call lie on one device")
        if device.type not in ("cpu", "cuda"):
            raise DtypeError(f"{self.program.name} is given tensors on {device}", hint="on a GPU, or on the CPU")

    def _check_out(
        self, values: Mapping[str, Any], members: ProcessGroup | str, out: Mapping[str, torch.Tensor]
    ) -> None:
        """Raise ShapeError or DtypeError for outputs that a kernel could not write either."""
        form = self._specializations.of(self._as_call(values), size_of(members))
        for name, (shape, dtype) in form.outputs.items():
            tensor = out[name]
            if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype or not tensor.is_contiguous():
                laid = "" if tensor.is_contiguous() else ", not contiguous"
                message = (
                    f"out {name} of {self.program.name} is {list(tensor.shape)} {name_of_type(tensor.dtype)}{laid}"
                )
                hint = f"it is written as {list(shape)} {name_of_type(dtype)}, contiguous"
                raise ShapeError(message, location=self.program.tensor(name).location, hint=hint)

    # The custom operators ------------------------------------------------------------------------------------

    def _declare(self) -> None:
        """Declare the operator to torch, and the one that writes given tensors."""
        signature, count = self.signature, len(self.signature.names)

        def run(*arguments: Any, out: tuple[Any, ...] = ()) -> Any:
            *given, group, schedule = arguments
            named = dict(zip(signature.outputs, out, strict=True)) if out else None
            return self._run(dict(zip(signature.names, given, strict=True)), group, schedule, named)

        def shapes(*arguments: Any) -> Any:
            call, ranks = signature.call(arguments), group_named(arguments[count]).size()
            form, first = self._specializations.of(call, ranks), next(iter(call.tensors.values()))
            made = [first.new_empty(*form.outputs[name][:1], dtype=form.outputs[name][1]) for name in signature.outputs]
            return tuple(made) if len(made) > 1 else made[0] if made else None

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            call, parts = signature.call(inputs), self._parts or ()
            taken = {name for part in parts for name in part.takes}
            made = dict(zip(signature.outputs, output if isinstance(output, tuple) else (output,), strict=True))
            ctx.kept = [name for name in (*signature.inputs, *signature.outputs) if name in taken]
            ctx.save_for_backward(*[{**call.tensors, **made}.get(name) for name in ctx.kept])
            ctx.group, ctx.values = inputs[count], {**call.numbers, **call.choices}
            if taken & signature.numbers.keys():
                ctx.values |= self._specializations.of(call, group_named(ctx.group).size()).dims
            ctx.shapes = {name: tensor.shape for name, tensor in call.tensors.items()}

        def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[Any, ...]:
            if self._parts is None:
                hint = "tilelink.op(program, backward=...) takes a function, a program or an operator"
                raise BindingError(f"{self.program.name} has no gradient", hint=hint)
            known = dict.fromkeys((*signature.names, *signature.outputs)) | ctx.values
            known |= dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
            known |= {f"d{name}": value for name, value in zip(signature.outputs, given, strict=True)}
            needed = [name for name, wanted in zip(signature.inputs, ctx.needs_input_grad, strict=False) if wanted]
            known |= {derivative.GROUP: ctx.group, derivative.NEEDS: tuple(needed)}
            found = derivative.gradients(self._parts, signature, known, needed, ctx.shapes)
            return (*[found.get(name) for name in signature.inputs], *[None] * (count - len(signature.inputs) + 2))

        gradients: Any = {} if signature.in_place else {"keep": keep, "backward": backward}
        one = custom.Declaration(
            name=self.name, schema=signature.schema(), run=run, shapes=shapes, writes=signature.in_place, **gradients
        )  # fmt: skip
        self._new: Callable[..., Any] = custom.declare(one)
        self._into: Callable[..., Any] = custom.declare_into(one, signature.outputs)


@dataclass(frozen=True)
class _Wanted:
    """Stands for a kernel that is not made yet, while `prepare` collects those: its results are of any value."""

    form: Specialization
    device: torch.device

    def __call__(self, inputs: Any, out: Any = None) -> dict[str, torch.Tensor]:
        del inputs
        new = {name: (shape, dtype) for name, (shape, dtype) in self.form.outputs.items() if name not in (out or {})}
        made = {name: torch.empty(shape, dtype=dtype, device=self.device) for name, (shape, dtype) in new.items()}
        return {**made, **(out or {})}


def _keyed(value: Any) -> Any:
    return (value.shape, value.dtype, value.device) if isinstance(value, torch.Tensor) else value


# Making operators --------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Known:
    """The operators that there are: by what they were made of, and by their names."""

    by_parts: dict[Any, Op] = field(default_factory=dict[Any, Op])
    names: set[str] = field(default_factory=set[str])


_known = _Known()


@public
def op(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    backward: Any = None,
    tables: compiler.Tables | None = None,
    dtype: str | None = None,
    **fixed: Any,
) -> Op:
    """Return a program as a function on torch tensors: a custom operator of torch, with shapes for `torch.compile`.

        ring = tilelink.op(program, "h200")
        y = ring(x, w)

    schedule: a Schedule, the name of one of the program's file, "program:name" of the library, "default" for the
    file's own of that name or the built-in one, or None: as "default", but on GPUs the model finds one for a program
    whose file has none.
    backward: what gives the gradients: a program, an operator, a function, or several of these in a tuple.
    They take inputs, outputs and the gradients of outputs (`dy` of `y`) by name and give gradients of inputs (`dx` of
    `x`), a function in a dict. It may take `group` (its name) and `needs` (names of inputs that need gradients) too.
    tables: values of the program's tables, [ranks, *shape], for all calls. dtype: the element type of tensors that
    declare none, if no input tells it. fixed: dimensions, parameters and choices that calls need not give.

    Of an input that is given up to a count, `x : in [M[: m], K]`, calls with M fixed give tensors of any number of rows
    up to M, for one kernel. The count is left out, an integer, or a tensor; outputs up to a count that the host knows
    have as many rows.

    The operator's name is that of the program with a digest of all this, the same in every process. Equal arguments
    give the same operator.

    Raises UnknownNameError for a schedule that there is not, BindingError for other arguments that do not fit.
    """
    require_program(program)
    compiler.check(program)
    signature = signature_of(program)
    _check_program(program, signature)
    _check_values(program, signature, tables, dtype, fixed)
    if backward is not None and signature.in_place:
        hint = f"{signature.in_place[0]} as an input, and an output for what it is afterwards"
        message = f"{program.name} changes {signature.in_place[0]} in place, and such a call has no gradients"
        raise BindingError(message, location=program.tensor(signature.in_place[0]).location, hint=hint)
    if isinstance(schedule, Schedule) and schedule.program != program.name:
        hint = f"take one for {program.name}, or name it as {schedule.program!r}:{schedule.name!r}"
        raise BindingError(f"schedule {schedule.name} is for {schedule.program}", location=schedule.location, hint=hint)
    way = schedule_text(compiler.schedule_of(program, schedule) or schedule)  # "default" stays: nothing is searched
    gradient = _operators(backward)
    arrays = {name: np.asarray(value) for name, value in (tables or {}).items()}
    facts = _facts(program, signature, way, gradient, arrays, dtype, fixed)
    parts = (facts, None if gradient is None else tuple(map(id, gradient)))
    if parts not in _known.by_parts:
        name = _free(f"{NAMESPACE}::{program.name}_{hashlib.sha256(facts.encode()).hexdigest()[:8]}")
        _known.by_parts[parts] = Op(program, way, fixed, gradient, arrays, dtype, name)
    return _known.by_parts[parts]


@cache
def of_library(programs: str | tuple[str, ...], schedule: str, dtype: str | None = None, **fixed: Any) -> Op:
    """Return a program of the library as an operator, or one of some programs of a file.

    schedule: as `schedule_text` has it, "" for the defaults: "program:name" or a text says which program it is, and
    otherwise it is the first one. fixed: what that has of it.
    """
    names, way = (programs,) if isinstance(programs, str) else programs, None
    name, module = names[0], compiler.library_module(names[0])
    if schedule.startswith("schedule "):
        way = compiler.parse(schedule).schedules[0]
        name = way.program if way.program in names else name
    elif schedule:
        of, _, way = schedule.rpartition(":")
        name, way = (of, way) if of in names else (name, schedule)
    program = module.program(name)
    there = {one.name for one in program.params}
    return op(program, way, dtype=dtype, **{size: value for size, value in fixed.items() if size in there})


def _check_program(program: Program, signature: Signature) -> None:
    """Raise BindingError for a program that is no function on tensors, the same on all ranks."""
    if not signature.inputs:
        hint = "an operator has its device from its inputs; tilelink.compile takes programs without any"
        raise BindingError(f"{program.name} has no input", location=program.location, hint=hint)
    if kept := [tensor for tensor in program.tensors if tensor.space == "kept"]:
        hint = f"{kept[0].name} : inout [...], which the caller keeps and gives with each call"
        message = f"{program.name} keeps {kept[0].name} between launches, and an operator has no state of its own"
        raise BindingError(message, location=kept[0].location, hint=hint)
    if alone := [
        tensor for tensor in program.tensors if tensor.on is not None and (tensor.is_given or tensor.is_result)
    ]:
        hint = "an operator takes and returns the same tensors on all ranks; tilelink.compile takes such programs"
        message = f"only the ranks of {alone[0].on} have {alone[0].name}"
        raise BindingError(message, location=alone[0].location, hint=hint)


def _check_values(
    program: Program, signature: Signature, tables: compiler.Tables | None, dtype: str | None, fixed: Mapping[str, Any]
) -> None:
    """Raise BindingError or DtypeError for a type, a dimension, a parameter, a choice or a table that does not fit."""
    for one in program.params:
        if fixed.get(one.name) is not None and isinstance(fixed[one.name], int | float | np.generic):
            check_number(one, fixed[one.name])
    if dtype is not None and dtype not in ELEMENTS:
        raise DtypeError(f"unknown dtype {str(dtype)!r}", hint=f"one of {', '.join(ELEMENTS)}")
    if unknown := [name for name in fixed if name not in (*signature.numbers, *signature.choices)]:
        there = [*signature.numbers, *signature.choices]
        hint = did_you_mean(unknown[0], there, f"it has {', '.join(there) or 'none'}")
        raise BindingError(f"{program.name} has no parameter {unknown[0]!r}", location=program.location, hint=hint)
    if tables is not None and (unknown := [n for n in tables if n not in {t.name for t in program.tensors}]):
        there = [tensor.name for tensor in program.tensors if tensor.space == "table"]
        hint = did_you_mean(unknown[0], there, f"it has {', '.join(there) or 'none'}")
        raise BindingError(f"{program.name} has no table {unknown[0]!r}", location=program.location, hint=hint)
    if any(name in signature.choices for name in fixed) and isinstance(program.template, Template):
        chosen = {name: value for name, value in fixed.items() if name in signature.choices}
        program.template.variant(program, program.name, chosen)  # or it raises


def _facts(
    program: Program, signature: Signature, way: str, gradient: tuple[Any, ...] | None,
    arrays: Mapping[str, Any], dtype: str | None, fixed: Mapping[str, Any],
) -> str:  # fmt: skip
    """Return all that makes an operator, in the same words in every process."""
    source = program.template.syntax.source.lines if isinstance(program.template, Template) else ()
    return repr((
        str(program), signature.schema(), source, way, sorted(fixed.items()), dtype,
        [(name, value.shape, value.tobytes()) for name, value in sorted(arrays.items())],
        [_digested(one) for one in gradient or ()],
    ))  # fmt: skip


def _again(
    program: Program, schedule: str, fixed: Mapping[str, Any], backward: tuple[Any, ...] | None,
    tables: Mapping[str, Any], dtype: str | None,
) -> Op:  # fmt: skip
    """Return the operator that was pickled, in this process."""
    way = compiler.parse(schedule).schedules[0] if schedule else None
    return op(program, way, backward=backward, tables=tables, dtype=dtype, **fixed)


def _operators(backward: Any) -> tuple[Any, ...] | None:
    """Return the sources of gradients; programs are made operators."""
    if backward is None:
        return None
    several = backward if isinstance(backward, (tuple, list)) else (backward,)
    return tuple(op(one) if isinstance(one, Program) else one for one in several)


def _digested(source: Any) -> str:
    """Return what tells a source of gradients from others, in every process alike."""
    code = getattr(source, "__code__", None)
    if isinstance(source, Op) or code is None:
        return str(getattr(source, "name", ""))
    return repr((code.co_code, code.co_names, [one for one in code.co_consts if isinstance(one, (int, float, str))]))


def _free(name: str) -> str:
    """Return a name that no operator has: functions with the same code may differ in what they enclose."""
    number, free = 2, name
    while free in _known.names:
        free, number = f"{name}_{number}", number + 1
    _known.names.add(free)
    return free
