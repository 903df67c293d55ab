"""`python -m chargehand`."""

from chargehand.cli.main import main

if __name__ == "__main__":
    main()
