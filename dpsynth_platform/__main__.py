"""`python -m dpsynth_platform` is the `dpsynth` command."""

from dpsynth_platform.cli.main import main

if __name__ == "__main__":
    main()
