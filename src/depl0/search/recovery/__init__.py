"""Recovery of a network after a cut: refitted layers, batch-norm statistics, distillation."""
