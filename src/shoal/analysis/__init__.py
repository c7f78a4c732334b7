"""Compares groups of runs: did a change help, and how certain is that?

    groups = read_groups([Path("runs/alone"), Path("runs/shared")])
    comparison = compare(groups, threshold=475)
    write_report(comparison, Path("runs/compared"), command="shoal compare runs/alone runs/shared --threshold 475")

It only reads run folders: no torch, no Ray, no process. matplotlib is loaded when a picture is drawn.
"""

from shoal.analysis.comparison import compare
from shoal.analysis.page import write_report
from shoal.analysis.results import Comparison
from shoal.analysis.runs import ComparedRun, RunGroup, read_groups

__all__ = ["ComparedRun", "Comparison", "RunGroup", "compare", "read_groups", "write_report"]
