"""What holds for all tests: no example of Hypothesis is too slow."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about what is tested. By default one that takes
# 200 ms fails its test, and so does a slow search for examples.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
