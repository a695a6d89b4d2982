"""The textbook page: the numbers put into the formulas, line by line, to be redone on paper."""

from simulator.explain.page import explain

__all__ = ["explain"]
