"""Run folders: their files, checkpoints and locks, and the progress display of a run."""
