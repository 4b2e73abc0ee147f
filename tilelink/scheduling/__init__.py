"""Schedules: frozen values, and the clauses of which they consist."""
