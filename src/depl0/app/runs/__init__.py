"""What is kept of a run: its folder, its checkpoints, its lock, and what people see of it."""
