"""Bad input of every kind, made on the spot, and what each door of the `dflash` command makes of it."""
