"""Execution of kernels: symmetric memory and launches. torch and triton are imported only here."""
