"""The report: one page that shows what runs found."""

from fedkin.results.report.write import Findings, write_report

__all__ = ["Findings", "write_report"]
