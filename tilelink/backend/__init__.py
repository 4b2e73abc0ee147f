"""From a bound program to source: lowering renders statements from the IR, templates hold the frame."""
