"""What every test shares: property tests have no deadline, since the machine may be busy with other tests."""

from hypothesis import settings

settings.register_profile("knee", deadline=None)
settings.load_profile("knee")
