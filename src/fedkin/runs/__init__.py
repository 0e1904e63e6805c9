"""What a run leaves behind: its folder, tables, models and pictures."""
