"""`python -m chargehand`."""

from chargehand.cli._root import main

if __name__ == "__main__":
    main()
