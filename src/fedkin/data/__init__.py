"""Data sets, tables, partitions and synthetic generators."""
