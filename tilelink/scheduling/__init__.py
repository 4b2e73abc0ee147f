"""Schedules: frozen values, and the words that they are made of."""
