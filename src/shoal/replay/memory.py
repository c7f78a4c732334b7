"""Memory operations that numba lacks, for kernels that read many shards at once: prefetch, copies, loads.

Addresses are integers, so that one kernel call reads any number of mapped files.

A kernel that gathers scattered rows spends nearly all its time waiting for memory. Prefetching every row of a batch
first, in a loop of few instructions, keeps as many misses in flight as the processor can track; the gathering loop
itself is too long for that (2x, measured). And libc's memcpy is an eighth faster than LLVM's loop over words.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def _prefetch(typingctx: Any, address: Any) -> Any:
    """Fetches the cache line at an address. Only a hint: an address that is not mapped does no harm."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [_POINTER, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_POINTER], function_type)
        # Flags: for reading, keep in all caches, data.
        builder.call(function, [builder.inttoptr(args[0], _POINTER), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.intp), codegen


@intrinsic
def _copy_bytes(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    """memcpy."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (builder.inttoptr(address, _POINTER) for address in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


@intrinsic
def _clear_bytes(typingctx: Any, target: Any, count: Any) -> Any:
    """memset to zero."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.memset(builder, builder.inttoptr(args[0], _POINTER), args[1], 0)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


def _loads(result: Any, kind: ir.Type) -> Any:
    """An intrinsic that reads one value at an address."""

    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], kind.as_pointer()))

        return result(types.intp), codegen

    return load


def _copies(bits: int) -> Any:
    """An intrinsic that copies one value, faster than a call of memcpy."""

    @intrinsic
    def copy(typingctx: Any, target: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target, source = (builder.inttoptr(address, ir.IntType(bits).as_pointer()) for address in args)
            builder.store(builder.load(source, align=1), target, align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), codegen

    return copy


# As kernels call them: without the typing context that numba passes.
prefetch: Any = _prefetch
copy_bytes: Any = _copy_bytes
copy_byte: Any = _copies(8)
copy_half: Any = _copies(32)
copy_word: Any = _copies(64)
clear_bytes: Any = _clear_bytes
load_byte: Any = _loads(types.uint8, ir.IntType(8))
load_uint32: Any = _loads(types.uint32, ir.IntType(32))
load_float: Any = _loads(types.float32, ir.FloatType())
