"""Execution of kernels, with torch and triton: symmetric memory and launches."""
