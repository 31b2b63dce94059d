"""Run the commands as `python -m specbench`, for when the script is not on the path."""

from specbench.cli.app import main

if __name__ == "__main__":
    main()
