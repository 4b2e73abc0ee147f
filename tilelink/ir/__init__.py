"""The intermediate representation: frozen values, equal when they mean the same (locations are not compared)."""

import tilelink.ir.printer as _printer  # gives programs their text form

__all__: list[str] = []
del _printer
