from __future__ import annotations

from hypothesis import settings

# A loaded machine is slow, not wrong; and a run leaves no files behind.
settings.register_profile("headrace", deadline=None, database=None)
settings.load_profile("headrace")
