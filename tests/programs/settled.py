"""Prints every setting of every profile of ours, and of one that says nothing, a line each."""

from __future__ import annotations

from hypothesis import settings

from tests.profiles import COMMON, PROFILES, register

#: That these are all that there are, says a test.
NAMES = sorted(COMMON.keys() | PROFILES["dev"].keys())

if __name__ == "__main__":
    settings.register_profile("says nothing")
    register()
    for profile in (*PROFILES, "says nothing"):
        for name in NAMES:
            print(profile, name, getattr(settings.get_profile(profile), name), sep=" | ")
