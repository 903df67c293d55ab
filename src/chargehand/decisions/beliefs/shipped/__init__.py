"""Networks that ship with the product, as data files."""
