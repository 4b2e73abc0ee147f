"""The plan of a bound program, which the verifier checks and the simulator executes; comparison of traces with it."""
