"""``python -m llamaserve`` is the ``llamaserve`` command."""

from llamaserve.cli import main

if __name__ == "__main__":
    main()
