"""Stands in for Triton-distributed: its language, over the interpreter of CPU ranks."""
