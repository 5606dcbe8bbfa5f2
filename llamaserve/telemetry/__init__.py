"""Distributions of what was measured: filled where it happens, read by whoever shows it. Knows nothing of requests."""
