"""Parts of accounts: records, passwords."""
