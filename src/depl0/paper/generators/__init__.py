"""The paper's other generators (appendix B): importing this registers them."""

from depl0._util.registry import import_modules_of

import_modules_of(__name__)
