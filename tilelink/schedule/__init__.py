"""Schedules, the plan of a scheduled program, and its proof."""
