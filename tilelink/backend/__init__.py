"""Code generation: nodes for the statements of a bound program, which templates render as source."""
