"""What is kept of a run: its folder, its checkpoints, its lock, and what people see of it."""

from depl0._util.optional import check_installed

check_installed("filelock", "rich", purpose="for runs")
