"""`python -m dflash`: the same as the `dflash` command."""

from dflash.cli import main

if __name__ == "__main__":
    main()
