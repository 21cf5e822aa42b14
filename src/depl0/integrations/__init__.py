"""Callbacks for trainers that people already use; each needs the extra of its name."""
