"""`prefetch` for numba kernels: asks the processor to fetch a cache line now that is needed later.

A kernel that gathers scattered rows waits for memory nearly all the time. Asking for every row of a batch first, in a loop of few
instructions, keeps as many misses in flight as the processor can track; the gathering loop itself is too long for that (2x, measured).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Fetches the cache line at an address (`array.ctypes.data` plus an offset). Only a hint: an address that is not mapped does no harm."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function_type)
        builder.call(function, [pointer, flag(0), flag(3), flag(1)])  # for reading, to be kept in all caches, data
        return context.get_dummy_value()

    return types.void(types.intp), codegen
