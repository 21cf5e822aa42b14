"""Execution of training steps: devices, processes, memory layouts, and the handling of non-finite values."""

from depl0._util.optional import check_installed

check_installed("accelerate", purpose="for training")
