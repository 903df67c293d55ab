"""Accounts of the server: logins, sessions, tokens, external sign-in, and the access log."""
