# pyright: basic
"""Styles for `torch.distributed.tensor.parallel.parallelize_module` whose products communicate while they multiply.

Each takes what torch's style of the same kind takes, and shards parameters as it does: they are DTensors of the same
placements. What has no operator here, such as an embedding, is left to torch's style; `explain` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as stock

from tilelink import ops
from tilelink.errors import BindingError, ShapeError
from tilelink.ops.calls import DTYPES
from tilelink.ops.groups import group_of
from tilelink.ops.unfused import ACTIVATIONS
from tilelink.parallel import products

Tensor = torch.Tensor
SequenceParallel = stock.SequenceParallel
"""torch's own: norms and dropouts of spread rows need nothing of other ranks in forward."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """How a module's product is placed. group: its name. given, wanted: placements of x and of the result."""

    group: str
    given: Placement
    wanted: Placement
    local: bool
    activation: str = ""


# Modules -----------------------------------------------------------------------------------------------------


class _Columns:
    """A linear layer whose output features are spread."""

    _placed: Placed
    _together: _Together | None = None
    weight: Any
    bias: Any

    def forward(self, x: Any) -> Any:
        placed, given, mesh = self._placed, self._placed.given, self.weight.device_mesh
        w, b = _own(self.weight), _own(self.bias)
        if not isinstance(x, DTensor) and _is_columns(given, x.dim()):
            x = DTensor.from_local(x, mesh, (given,), run_check=False)
        if _is_spread(x, mesh):
            if not isinstance(x.placements[0], Shard) or _is_columns(x.placements[0], x.dim()):
                x = x.redistribute(placements=(Replicate(),))
            given = x.placements[0]
            if self._together is not None and isinstance(given, Shard):
                y = self._together.product(self, x, _dim(given, x.dim()))
                return _result(y, Shard(y.dim() - 1), mesh, placed)
            # Several products of one x are one sum of gradients, as with torch's style.
            x = x.to_local() if isinstance(given, Shard) else x.to_local(grad_placements=(Partial(),))
            x, w, b = as_autocast(x, w, b)
            if not isinstance(given, Shard):
                return _result(nn.functional.linear(x, w, b), Shard(x.dim() - 1), mesh, placed)
        else:
            x, w, b = as_autocast(x, w, b)
        y = products.columns(x, w, b, placed.group, _dim(given, x.dim()))
        return _result(y, Shard(y.dim() - 1), mesh, placed)


class _Together:
    """Layers of a module that take the same rows: the first that is called gathers and multiplies for all."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        self.module, self.names, self.layers = module, names, list[Any]()
        self.x: Any = None
        self.state: Any = None
        self.made: list[Any] = []

    def begin(self, *_: Any) -> None:
        """Before the module's forward. Its children get their styles after it, so they are looked for here."""
        if not self.layers:
            self.layers = [_child(self.module, name) for name in self.names]
            for layer in self.layers:
                layer._together = self
        self.end()

    def end(self, *_: Any) -> None:
        self.x, self.state, self.made = None, None, []

    def product(self, layer: Any, x: Any, dim: int | None) -> Tensor:
        """Return the result of a layer for rows x. The first layer at them computes for all."""
        at, state = next(n for n, one in enumerate(self.layers) if one is layer), self._state(x)
        if self.x is not x:
            self.x, self.state, self.made = x, state, list(self._products(x, self.layers, dim))
        if self.state != state or self.made[at] is None:  # in another mode, or once more
            (y,) = self._products(x, [layer], dim)
            return y
        y, self.made[at] = self.made[at], None
        return y

    @staticmethod
    def _products(x: Any, layers: list[Any], dim: int | None) -> Iterator[Tensor]:
        rows, *weights = as_autocast(x.to_local(), *(_own(one.weight) for one in layers))
        y = products.columns(rows, tuple(weights), None, layers[0]._placed.group, dim)
        for layer, part in zip(layers, y.split([one.shape[0] for one in weights], -1), strict=True):
            yield part if layer.bias is None else part + _own(layer.bias).to(part.dtype)

    def _state(self, x: Any) -> Any:
        """The modes and versions that results depend on beside x: a layer called with other ones computes alone."""
        device = x.device.type
        modes = (torch.is_grad_enabled(), torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        if torch.compiler.is_compiling():
            return modes  # a graph has no versions
        return modes, [one._version for one in (x, *(layer.weight for layer in self.layers))]


def _child(module: nn.Module, name: str) -> Any:
    """Return a layer that is named in `together`, after styles were applied."""
    layer: Any = dict(module.named_modules()).get(name)
    if not isinstance(layer, _Columns):
        hint = "name linear layers of the module that have the style ColwiseParallel of tilelink.parallel"
        what = "nothing" if layer is None else f"a {type(layer).__name__}"
        raise BindingError(f"{name!r} of {type(module).__name__} is {what}", hint=hint)
    return layer


class _Rows:
    """A linear layer whose input features are spread."""

    _placed: Placed
    weight: Any
    bias: Any

    def forward(self, x: Any) -> Any:
        placed = self._placed
        last = Shard(x.dim() - 1)
        if not isinstance(x, DTensor) and _dim(placed.given, x.dim()) != last.dim:
            x = DTensor.from_local(x, self.weight.device_mesh, (placed.given,), run_check=False)
        if _is_spread(x, self.weight.device_mesh):
            x = x.redistribute(placements=(last,)).to_local()
        x, w, b = as_autocast(x, _own(self.weight), _own(self.bias))
        made = _by_rows(placed.wanted, x.dim())
        y = products.sums(x, w, b, placed.group, _dim(made, x.dim()))
        return _result(y, made, self.weight.device_mesh, placed)


class _Gated:
    """A gated MLP whose inner features are spread."""

    _placed: Placed
    _parts: tuple[str, str, str]

    def forward(self, x: Any) -> Any:
        placed = self._placed
        gate, up, down = (getattr(self, name).weight for name in self._parts)
        mesh, made = gate.device_mesh, _by_rows(placed.given, x.dim())
        if not isinstance(x, DTensor) and made != placed.given:
            x = DTensor.from_local(x, mesh, (placed.given,), run_check=False)
        if _is_spread(x, mesh):
            x = x.redistribute(placements=(made,)).to_local()
        dim = _dim(made, x.dim())
        x, first, second, third = as_autocast(x, gate.to_local(), up.to_local(), down.to_local())
        y = products.gated(x, first, second, third, ACTIVATIONS[placed.activation], placed.group, dim)
        return _result(y, made, mesh, placed)


class _Experts:
    """Experts of a layer, of which each rank has some, for choices of all ranks' tokens."""

    _placed: Placed
    _parts: tuple[str, ...]
    _options: dict[str, Any]

    def forward(self, x: Any, ids: Any, weights: Any) -> Any:
        placed, mesh = self._placed, getattr(self, self._parts[0]).device_mesh
        made = x.placements[0] if _is_spread(x, mesh) else None
        if made is not None and (not isinstance(made, Shard) or _is_columns(made, x.dim())):
            hint = "each token is of one rank: spread them, or give a rank's own as a plain tensor"
            raise BindingError(f"tokens of experts are {made}", hint=hint)
        x, ids, weights, *own = (
            one.to_local() if isinstance(one, DTensor) else one
            for one in (x, ids, weights, *(getattr(self, name) for name in self._parts))
        )
        x, *own = as_autocast(x, *own)
        w13 = own[0] if len(own) == 2 else torch.cat(own[:-1], 1)
        tokens, ids, weights = (one.reshape(-1, one.shape[-1]) for one in (x, ids, weights))
        y = ops.expert_parallel(
            tokens, ids, weights, w13, own[-1], activation=placed.activation, group=placed.group, **self._options
        ).view(x.shape)
        return y if made is None else DTensor.from_local(y, mesh, (made,), run_check=False)


def _is_spread(x: Any, mesh: DeviceMesh) -> bool:
    """True for a DTensor. Raises BindingError for one of another mesh, whose rows others would take for their own."""
    if isinstance(x, DTensor) and x.device_mesh != mesh:
        hint = "redistribute x, or give to_local()"
        raise BindingError(f"x is of {x.device_mesh}, and the layer of {mesh}", hint=hint)
    return isinstance(x, DTensor)


def _own(parameter: Any) -> Any:
    return None if parameter is None else parameter.to_local()


@cache
def joined(first: type, cls: type) -> type:
    """Return a class of modules with the forward of `first`, the same for equal ones: they share compiled code."""
    return type(f"{first.__name__.strip('_')}{cls.__name__}", (first, cls), {})


def _as(first: type, module: nn.Module, placed: Placed) -> nn.Module:
    module.__class__ = joined(first, type(module))
    module._placed = placed  # type: ignore[assignment]
    return module


def _result(y: Tensor, made: Placement, mesh: DeviceMesh, placed: Placed) -> Any:
    """Return y, which is placed as `made`, as the style wants it."""
    same = _dim(placed.wanted, y.dim()) == _dim(made, y.dim())
    if same and placed.local:
        return y
    result = DTensor.from_local(y, mesh, (made,), run_check=False)
    result = result if same else result.redistribute(placements=(placed.wanted,), async_op=True)
    return result.to_local() if placed.local else result


def as_autocast(x: Tensor, *others: Tensor | None) -> Any:
    """Return the operands of a product as autocast has them."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return (x, *others)
    dtype = torch.get_autocast_dtype(device)
    kept = torch.float64  # which torch does not lower
    return tuple(one if one is None or one.dtype == kept else one.to(dtype) for one in (x, *others))


def _dim(placement: Placement, dims: int) -> int | None:
    """Return the dimension along which a tensor of so many is spread, from 0 on, or None if it is on all ranks.

    Raises ShapeError for one that the tensor lacks.
    """
    if not isinstance(placement, Shard):
        return None
    if not -dims <= placement.dim < dims:
        raise ShapeError(f"dimension {placement.dim} of {dims} is spread", hint="give the style's layouts one of x")
    return placement.dim % dims


def _is_columns(placement: Placement, dims: int) -> bool:
    """True if a placement spreads the last dimension of a tensor of so many, which Shard(1) may be or not."""
    return _dim(placement, dims) == dims - 1


def _by_rows(placement: Placement, dims: int) -> Placement:
    """Return how products place what is to be placed so: columns are on all ranks first, and DTensor spreads them."""
    return Replicate() if _is_columns(placement, dims) else placement


def _may_be_rows(placement: Placement | None) -> bool:
    """True if a placement spreads rows of some tensors. Which ones is known when the module is called."""
    return isinstance(placement, Shard) and placement.dim != -1


# Styles ------------------------------------------------------------------------------------------------------


class Colwise(stock.ColwiseParallel):
    """As `ColwiseParallel`. A linear layer whose x is spread by rows gathers it while it multiplies.

        Colwise(input_layouts=Shard(1))     # [batch, rows / ranks, K] -> [batch, rows, N / ranks]

    Backward scatters the gradient of x while it multiplies; of an x that all ranks have it is summed so. Raises
    RankError for a mesh of several dimensions, ShapeError for features that ranks do not divide.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group, given = _group_for(module, device_mesh), self.input_layouts[0]
        why = _not_linear(module)
        if not why and not (given.is_replicate() or _may_be_rows(given)):
            why = f"its input is {given}, and its products take rows that are spread, or all of them"
        if why:
            return _left_to_torch(super()._apply(module, device_mesh), why)
        _divides(module, module.out_features, device_mesh)
        _shard(module, device_mesh, {"weight": Shard(0), "bias": Shard(0)}, self.src_data_rank)
        wanted = self.output_layouts[0]
        return _as(_Columns, module, Placed(group=group, given=given, wanted=wanted, local=self.use_local_output))


class Rowwise(stock.RowwiseParallel):
    """As `RowwiseParallel`. A linear layer scatters its sum by rows, or sums it on all ranks, while it multiplies.

        Rowwise(output_layouts=Shard(1))    # [batch, rows, K / ranks] -> [batch, rows / ranks, N]

    Backward gathers the gradient while it multiplies. Raises RankError for a mesh of several dimensions, ShapeError for
    features that ranks do not divide, and where it is called for rows that ranks do not divide.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group, wanted = _group_for(module, device_mesh), self.output_layouts[0]
        why = _not_linear(module)
        if not why and not (wanted.is_replicate() or _may_be_rows(wanted)):
            why = f"its output is {wanted}, and sums are spread by rows, or on all ranks"
        if why:
            return _left_to_torch(super()._apply(module, device_mesh), why)
        _divides(module, module.in_features, device_mesh)
        _shard(module, device_mesh, {"weight": Shard(1), "bias": Replicate()}, self.src_data_rank)
        given = self.input_layouts[0]
        return _as(_Rows, module, Placed(group=group, given=given, wanted=wanted, local=self.use_local_output))


class GatedMLP(stock.ParallelStyle):
    """A module that computes down(activation(gate(x)) * up(x)) with three linear layers without bias.

        "feed_forward": GatedMLP("w1", "w3", "w2")      # [batch, rows / ranks, K] -> the same

    It takes the place of styles for the three layers and for the module's input. Both layers at the input are one
    product, which gathers x once. The module's forward is replaced; unless it is on the meta device, it is compared
    with the formula first. activation: "silu" or "gelu". layouts: of x and the result, Shard(dim) or Replicate(); None
    is Shard(1). Where that is the last dimension, as of x [rows, K], x is gathered before and the result summed on all.
    use_local_output: as of torch's styles.

    Raises RankError for a mesh of several dimensions, BindingError for a module that computes something else,
    ShapeError for features that ranks do not divide.
    """

    def __init__(
        self, gate: str = "w1", up: str = "w3", down: str = "w2", *, activation: str = "silu",
        layouts: Placement | None = None, use_local_output: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.parts, self.activation = (gate, up, down), activation
        self.layouts, self.use_local_output = layouts or Shard(1), use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = _group_for(module, device_mesh)
        if self.activation not in ACTIVATIONS:
            raise BindingError(f"no activation {self.activation!r}", hint=f"there are {', '.join(ACTIVATIONS)}")
        gate, up, down = (_linear(module, name) for name in self.parts)
        if not (self.layouts.is_replicate() or isinstance(self.layouts, Shard)):
            raise BindingError(f"rows of an MLP cannot be {self.layouts}", hint="give Shard(dim) or Replicate()")
        _computes_that(module, gate, up, down, self.activation)
        for one, features, dim in ((gate, gate.out_features, 0), (up, up.out_features, 0), (down, down.in_features, 1)):
            _divides(one, features, device_mesh)
            _shard(one, device_mesh, {"weight": Shard(dim)}, self.src_data_rank)
        module._parts = self.parts  # type: ignore[assignment]
        placed = Placed(
            group=group, given=self.layouts, wanted=self.layouts, local=self.use_local_output,
            activation=self.activation,
        )  # fmt: skip
        return _as(_Gated, module, placed)


class Experts(stock.ParallelStyle):
    """A layer of experts, of which each rank gets some: a token travels once to each rank, and sums come back.

        parallelize_module(block, mesh["ep"], {"experts": Experts()})      # forward(x, ids, weights) -> y

    The module takes the tokens of a rank [..., H], the numbers of their experts and the weights of those [..., k], as
    torch.topk of a router gives them, and returns the weighted sums [..., H]. w13: its parameter [experts, 2 inner, H],
    gate before up, or two names, of [experts, inner, H] each, which are copied next to each other in each call. w2: its
    parameter [experts, H, inner]. Both become DTensors of whole experts, Shard(0). activation, tokens, capacity, and
    recompute: as of `tilelink.ops.expert_parallel`, which computes. Gradients are those of the sum of ranks' losses.

    Raises RankError for a mesh of several dimensions, ShapeError for experts that ranks do not divide, BindingError for
    a module that computes something else.
    """

    def __init__(
        self, w13: str | tuple[str, str] = "gate_up_proj", w2: str = "down_proj", *, activation: str = "silu",
        tokens: int | None = None, capacity: int | None = None, recompute: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.parts, self.activation = (*((w13,) if isinstance(w13, str) else w13), w2), activation
        self.options = {"tokens": tokens, "capacity": capacity, "recompute": recompute}

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = _group_for(module, device_mesh)
        if self.activation not in ACTIVATIONS:
            raise BindingError(f"no activation {self.activation!r}", hint=f"there are {', '.join(ACTIVATIONS)}")
        parts = [_of_experts(module, name) for name in self.parts]
        if len({one.shape[0] for one in parts}) > 1 or parts[0].shape[0] % device_mesh.size():
            what = f"{' and '.join(str(one.shape[0]) for one in parts)} experts of {type(module).__name__}"
            hint = "as many in each parameter, a multiple of the ranks"
            raise ShapeError(f"{what} on {device_mesh.size()} ranks", hint=hint)
        _computes_experts(module, parts, self.activation)
        _shard(module, device_mesh, dict.fromkeys(self.parts, Shard(0)), self.src_data_rank)
        module._parts, module._options = self.parts, self.options  # type: ignore[assignment]
        placed = Placed(
            group=group, given=Shard(0), wanted=Shard(0), local=True, activation=self.activation
        )  # fmt: skip
        return _as(_Experts, module, placed)


class PrepareModuleInput(stock.PrepareModuleInput):
    """As torch's, but rows that are spread and wanted on all ranks stay spread: `Colwise` gathers them.

    They are DTensors, so whatever else the module does with them is as if they had been gathered. With
    use_local_output=True they are gathered before the module, as by torch's.

    together: names of linear layers in the module, of style `Colwise`, that take the same rows. They are one product,
    which gathers once and in backward scatters once; weights are copied next to each other for it. Results are columns
    of one tensor: `reshape` and splits of the last dimension take them, a `view` across rows does not.
    Raises BindingError for a name in place of several, and at the first call for names of other layers.
    """

    def __init__(self, *, together: Sequence[str] = (), **layouts: Any) -> None:
        """layouts: as torch's style takes them."""
        super().__init__(**layouts)
        if isinstance(together, str):
            hint = f"give a tuple of names, as ({together!r}, ...)"
            raise BindingError(f"together is {together!r}", hint=hint)
        self.together = tuple(together)
        if not self.use_local_output and self.input_layouts is not None:
            assert self.desired_input_layouts is not None
            pairs = zip(self.input_layouts, self.desired_input_layouts, strict=True)
            self.desired_input_layouts = tuple(
                given if _may_be_rows(given) and isinstance(wanted, Replicate) else wanted for given, wanted in pairs
            )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, device_mesh)
        if self.together:
            shared = _Together(module, self.together)
            module.register_forward_pre_hook(shared.begin)
            module.register_forward_hook(shared.end, always_call=True)
        return module


# Checks and parts --------------------------------------------------------------------------------------------


def _group_for(module: nn.Module, mesh: DeviceMesh) -> str:
    """Return the name of a mesh's group. Raises RankError for several dimensions, BindingError for a second style."""
    if isinstance(module, _Columns | _Rows | _Gated | _Experts):
        hint = "name each module once in a plan, and apply the plan once"
        raise BindingError(f"{type(module).__name__} has a style already", hint=hint)
    return group_of(mesh).group_name


def _not_linear(module: nn.Module) -> str:
    if type(module).forward is nn.Linear.forward:
        return ""
    return f"it is a {type(module).__name__}, and products are those of nn.Linear"


def _left_to_torch(module: nn.Module, why: str) -> nn.Module:
    module._left_to_torch = why  # type: ignore[assignment]
    return module


def _divides(module: nn.Module, features: Any, mesh: DeviceMesh) -> None:
    if features % mesh.size():
        name = f"{type(module).__name__}({module.in_features}, {module.out_features})"
        hint = "take a mesh whose ranks divide them, or pad the layer"
        raise ShapeError(f"{features} features of {name} on {mesh.size()} ranks", hint=hint)


def _shard(module: nn.Module, mesh: DeviceMesh, placements: dict[str, Placement], source: int | None) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        spread = distribute_tensor(parameter, mesh, [placements[name]], src_data_rank=source)
        module.register_parameter(name, nn.Parameter(spread, requires_grad=parameter.requires_grad))


def _linear(module: nn.Module, name: str) -> nn.Linear:
    one = getattr(module, name, None)
    if not isinstance(one, nn.Linear) or one.bias is not None or _not_linear(one):
        there = [key for key, child in module.named_children() if isinstance(child, nn.Linear)]
        what = "nothing" if one is None else f"a {type(one).__name__}" + " with a bias" * isinstance(one, nn.Linear)
        hint = f"name three linear layers without bias, of {', '.join(there)}" if there else "give the MLP itself"
        raise BindingError(f"{name!r} of {type(module).__name__} is {what}", hint=hint)
    return one


@torch.no_grad()
def _computes_that(module: nn.Module, gate: nn.Linear, up: nn.Linear, down: nn.Linear, activation: str) -> None:
    """Raise BindingError for a module that computes something else for two random rows, or cannot take them."""
    weight = gate.weight
    if weight.is_meta or isinstance(weight, DTensor):
        return
    chance = torch.Generator(weight.device)  # of its own: ranks and runs draw as if nothing had been compared
    x = torch.randn(1, 2, weight.shape[1], device=weight.device, dtype=weight.dtype, generator=chance)
    modes = [(one, one.training) for one in module.modules()]
    try:
        expected = down(ACTIVATIONS[activation](gate(x)) * up(x))
        made = module.train(False)(x)
    except Exception as error:
        what = f"{type(module).__name__} of x {list(x.shape)} raises {type(error).__name__}: {error}"
        hint = "check the order gate, up, down, and that forward takes x alone; or give each layer a style"
        raise BindingError(what, hint=hint) from error
    finally:
        for one, training in modes:
            one.training = training
    same = isinstance(made, Tensor) and made.shape == expected.shape
    if not same or not _near(made, expected):
        hint = "check the order gate, up, down and the activation; or give each layer a style"
        raise BindingError(f"{type(module).__name__} is not down({activation}(gate(x)) * up(x))", hint=hint)


def _near(made: Tensor, expected: Tensor) -> bool:
    """True if two results differ by rounding alone: the two forms of gelu differ by more than f32 rounds."""
    part = {torch.float64: 1e-9, torch.float32: 5e-5}.get(made.dtype, 1e-2)
    return torch.allclose(made, expected, rtol=5 * part, atol=part * expected.abs().max().item())


def _of_experts(module: nn.Module, name: str) -> Tensor:
    one = getattr(module, name, None)
    if not isinstance(one, nn.Parameter) or one.dim() != 3:
        there = [key for key, each in module.named_parameters(recurse=False) if each.dim() == 3]
        what = "nothing" if one is None else f"a {type(one).__name__}"
        hint = f"name the parameters of its experts, of {', '.join(there)}" if there else "give the experts themselves"
        raise BindingError(f"{name!r} of {type(module).__name__} is {what}", hint=hint)
    others = [key for key, _ in module.named_parameters(recurse=False) if getattr(module, key).dim() != 3]
    if others:
        hint = "a bias of experts has no place here: keep such a layer as it is"
        raise BindingError(f"{type(module).__name__} has {', '.join(others)} too", hint=hint)
    return one


@torch.no_grad()
def _computes_experts(module: nn.Module, parts: list[Tensor], activation: str) -> None:
    """Raise BindingError for a module that computes something else for three random tokens, or cannot take them."""
    *first, w2 = parts
    if w2.is_meta or isinstance(w2, DTensor):
        return
    count, hidden = w2.shape[:2]
    chance = torch.Generator(w2.device)  # of its own, as above
    x = torch.randn(3, hidden, device=w2.device, dtype=w2.dtype, generator=chance)
    weights, ids = torch.rand(3, count, device=w2.device, generator=chance).topk(min(2, count))
    weights = weights.to(w2.dtype)
    try:
        expected = torch.zeros_like(x)
        for token, q in ((token, q) for token in range(3) for q in range(ids.shape[1])):
            e = ids[token, q]
            gate, up = torch.cat([one[e] for one in first]).matmul(x[token]).chunk(2)
            expected[token] += weights[token, q] * (w2[e] @ (ACTIVATIONS[activation](gate) * up))
        made = module(x, ids, weights)
    except Exception as error:
        what = f"{type(module).__name__} of x {list(x.shape)}, ids and weights raises {type(error).__name__}: {error}"
        hint = "check the names of w13 and w2, and that forward takes x, ids and weights alone"
        raise BindingError(what, hint=hint) from error
    same = isinstance(made, Tensor) and made.shape == expected.shape
    if not same or not _near(made, expected):
        hint = "check w13 (gate before up, [experts, 2 inner, H]), w2 ([experts, H, inner]) and the activation"
        raise BindingError(f"{type(module).__name__} is no sum of w2({activation}(gate(x)) * up(x))", hint=hint)


# What was taken ----------------------------------------------------------------------------------------------


def explain(model: nn.Module) -> list[str]:
    """Return a line for each module with a style of this package: what communicates with its product, or why not.

    The implementation of a call depends on its rows too: the logger `tilelink.ops` (INFO) says what each size takes.
    """
    lines: list[str] = []
    for name, module in model.named_modules():
        if why := getattr(module, "_left_to_torch", ""):
            lines.append(f"{name}: left to torch: {why}")
        elif isinstance(module, _Columns | _Rows | _Gated | _Experts):
            lines.append(f"{name}: {_said(module)}")
    return lines


def _said(module: Any) -> str:
    placed: Placed = module._placed
    part = getattr(module, module._parts[0]) if isinstance(module, _Gated | _Experts) else module
    weight = part if isinstance(module, _Experts) else part.weight
    if isinstance(module, _Experts):
        what = "tokens to each rank of their experts, and sums back"
    elif isinstance(module, _Gated):
        what = "all-gather and product, product and reduce-scatter"
        what = what if _may_be_rows(placed.given) else "product and all-reduce"
    elif isinstance(module, _Columns):
        what = "all-gather and product" + " where x is spread" * (not isinstance(placed.given, Shard))
        others = module._together.names if module._together else ()
        what += f", of {', '.join(others)} at once" if others else ""
    else:
        what = "product and reduce-scatter" if isinstance(placed.wanted, Shard) else "product and all-reduce"
    if weight.device.type != "cuda":
        return f"{what}, unfused: its weight is on {weight.device.type}, and kernels are for GPUs"
    if weight.dtype not in DTYPES:
        taken = " and ".join(DTYPES.values())
        return f"{what}, unfused unless autocast: its weight is {weight.dtype}, and kernels take {taken}"
    return what
