"""The GPU ranks: generated kernels on the GPUs of one node, over torch's symmetric memory."""
