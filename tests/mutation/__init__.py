"""Mutation testing of the code that the proof stands on: `python -m tests.mutation --help`."""
