# pyright: basic, reportOptionalMemberAccess=false
"""The language for stock Triton's compiler: it checks types as distributed_ops.py of Triton-distributed does.

Each operation is an inline assembly whose text names it, so that a test can look for it; they compile, but do not run.
"""

import triton.language as tl
from triton.language import core


def _pointer(ptr):
    assert not ptr.type.is_block() and ptr.type.is_ptr(), "only support scalar pointer"


def _scalar(value, wide, _semantic):
    """A scalar as Triton takes shapes and offsets: a tensor of 64 bits is none of 32 bits."""
    _semantic._convert_elem_to_ir_value(value, require_i64=wide)
    return tl.cast(value, tl.int64 if wide else tl.int32, _semantic=_semantic)


def _text(name, args, like, _semantic, pure=False):
    letters = ",".join("l" if a.dtype.is_ptr() or a.dtype.primitive_bitwidth == 64 else "r" for a in args)
    width = "l" if like.is_ptr() or like.primitive_bitwidth == 64 else "r"
    names = " ".join(f"${n + 1}" for n in range(len(args)))
    move = "mov.u64 $0, 0;" if width == "l" else "mov.u32 $0, 0;"
    text, places = f"// dl.{name} {names}\n{move}", ",".join([f"={width}", *([letters] if letters else [])])
    result = core.int64 if like.is_ptr() else like
    value = core.inline_asm_elementwise(text, places, args, result, pure, 1, _semantic=_semantic)
    return value.to(like, bitcast=True, _semantic=_semantic) if like.is_ptr() else value


@core.builtin
def rank(axis=-1, _semantic=None):
    return _text("rank", [], tl.int32, _semantic, pure=True)


@core.builtin
def num_ranks(axis=-1, _semantic=None):
    return _text("num_ranks", [], tl.int32, _semantic, pure=True)


@core.builtin
def symm_at(ptr, rank, _semantic=None):
    _pointer(ptr)
    return _text("symm_at", [ptr, _scalar(rank, False, _semantic)], ptr.dtype, _semantic)


@core.builtin
def wait(barrierPtrs, numBarriers, scope, semantic, waitValue=1, _semantic=None):
    assert barrierPtrs.type.scalar.is_ptr()
    wide = barrierPtrs.dtype.element_ty in (tl.int64, tl.uint64)
    _semantic._str_to_scope(core._unwrap_if_constexpr(scope))
    _semantic._str_to_sem(core._unwrap_if_constexpr(semantic))
    args = [barrierPtrs, _semantic.to_tensor(numBarriers), _scalar(waitValue, wide, _semantic)]
    # Pure, as the library's operation only reads: who consumes no token has no wait.
    return _text("wait", args, tl.int32, _semantic, pure=True)


@core.builtin
def consume_token(value, token, _semantic=None):
    assert token.type.scalar.is_int(), "token must be of int type"
    assert value.handle is not None
    return _text("consume_token", [value, token], value.dtype, _semantic, pure=True)


@core.builtin
def notify(ptr, rank, signal=1, sig_op="set", comm_scope="inter_node", _semantic=None):
    _pointer(ptr)
    assert ptr.dtype.element_ty in (tl.int64, tl.uint64), "the dtype of signal ptr should be uint64"
    assert core._unwrap_if_constexpr(sig_op) in ("set", "add")
    assert core._unwrap_if_constexpr(comm_scope) in ("gpu", "intra_node", "inter_node")
    _text("notify", [ptr, _scalar(signal, True, _semantic), _scalar(rank, False, _semantic)], tl.int32, _semantic)
