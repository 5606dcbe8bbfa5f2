"""Where model files come from: a path, the default model, the Hugging Face hub. Any thread; may block to download."""

from llamaserve.models.download import DownloadProgress
from llamaserve.models.source import DEFAULT_MODEL, model_name, resolve

__all__ = ["DEFAULT_MODEL", "DownloadProgress", "model_name", "resolve"]
