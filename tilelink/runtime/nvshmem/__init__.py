"""GPU ranks of several nodes: pointers inside a node, NVSHMEM between nodes."""
