"""One run of an agent: admission, sandbox, supervision, inspection."""
