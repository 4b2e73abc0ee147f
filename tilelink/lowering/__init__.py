"""Lowering of a program and a schedule to kernels: binding, the passes, and the enumerator of tiles."""
