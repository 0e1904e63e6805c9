"""The report: one page that shows what runs found."""

from fedkin.reports.write import Findings, write_report

__all__ = ["Findings", "write_report"]
