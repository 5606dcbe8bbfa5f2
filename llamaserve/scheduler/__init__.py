"""Decides what the engine computes: slots, queue, ticks. See ``scheduler.Scheduler``."""
