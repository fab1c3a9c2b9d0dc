"""What every test run shares, those of notebooks as well: a progress bar is no result."""

import os

os.environ["KVLIB_PROGRESS"] = "off"
