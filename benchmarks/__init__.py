"""Measurements on GPUs and what they cost to make."""
