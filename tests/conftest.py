"""`make test` tries the same examples each time; `make test-slow` looks for new ones.

A build must not fail by the luck of a draw.
"""

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("explore" if os.environ.get("PSAC_EXPLORE") else "steady")
