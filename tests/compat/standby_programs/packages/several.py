"""Needs other packages, which threads import at the same time."""
import looker
import parts.one
import printer
import setter
import with_data
import with_decimal
MODULES = looker, parts, parts.one, printer, setter, with_data, with_decimal
