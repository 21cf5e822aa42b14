"""The built-in training loop: dense training, search and fine-tuning of a recipe."""

from depl0._util.optional import check_installed

check_installed("accelerate", "PIL", "rich", purpose="for training")
