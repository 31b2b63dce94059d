"""`python -m specbench`: the commands, for where no script of theirs is on the path."""

from specbench.cli.app import main

if __name__ == "__main__":
    main()
