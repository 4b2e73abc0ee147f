"""`python -m tilelink`: the command line."""

from tilelink.cli import app

if __name__ == "__main__":
    app()
