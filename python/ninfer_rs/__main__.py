"""``python -m ninfer_rs``: the command line."""

from .cli import main

main()
