"""GPU ranks: generated kernels on the GPUs of one node, with torch's symmetric memory."""
