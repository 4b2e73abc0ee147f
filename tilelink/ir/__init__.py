"""The intermediate representation: frozen values that compare by meaning (source locations are not compared)."""

import tilelink.ir.printer as _printer  # gives programs their text form

__all__: list[str] = []
del _printer
