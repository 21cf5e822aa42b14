"""What makes up for channels that were cut: refitted layers, statistics, distillation."""
