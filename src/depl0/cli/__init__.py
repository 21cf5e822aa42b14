"""The command ``depl0``: stdout is the result, stderr the log; 0 done, 1 failed, 2 wrong usage."""
