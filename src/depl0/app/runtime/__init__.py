"""How a training step is executed: devices, processes, layouts, and what to do on non-finite values."""

from depl0._util.optional import check_installed

check_installed("accelerate", purpose="for training")
