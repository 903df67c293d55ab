"""Parts of accounts: passwords."""
