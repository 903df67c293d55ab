"""Keys of model providers: from the environment, the system's keyring or a file of the user."""
