"""The command ``depl0``: stdout is the result, stderr the log; 0 done, 1 failed, 2 wrong input."""

from depl0._util.optional import check_installed

check_installed("pydantic", "tomli_w", "typer", purpose="by the command depl0")
