"""`chargehand bench`."""
