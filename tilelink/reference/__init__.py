"""The meaning of a program without any schedule: the oracle of every numerical check."""
