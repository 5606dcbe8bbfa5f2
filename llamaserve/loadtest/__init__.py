"""A load generator for servers with OpenAI's API: what it sends, how it counts, what it reports.

Knows nothing of this package's server, scheduler or engine: another server is measured with the same code. Only sending
needs aiohttp, the extra ``bench``. Everything runs on one event loop, in one thread.
"""
