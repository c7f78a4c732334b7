"""Where roles live, and what a run leaves behind: its folder, metrics and progress."""
