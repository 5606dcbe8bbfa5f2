"""Contract tests with the clients people use, each in a virtual environment of its own: ``make test-clients``."""
