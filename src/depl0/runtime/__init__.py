"""How a training step is executed: devices, processes, layouts, and what to do when numbers go wrong."""

from depl0._optional import check_installed

check_installed("accelerate", purpose="for training")
