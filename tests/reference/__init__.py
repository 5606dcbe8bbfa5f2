"""Pure-Python twins of the native loops in ``_native/hot``: slow, short, and obviously right."""
