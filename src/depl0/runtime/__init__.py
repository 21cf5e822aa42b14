"""How a training step is executed: devices, processes, layouts, and what to do when numbers go wrong."""
