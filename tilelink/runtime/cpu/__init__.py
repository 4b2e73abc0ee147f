"""CPU ranks: generated kernels in Triton's interpreter, in forked processes that share memory."""
