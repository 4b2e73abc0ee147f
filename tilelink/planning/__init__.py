"""The plan of a bound program, which the verifier judges and the simulator runs; traces compared with it."""
