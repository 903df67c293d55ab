"""Keys of model providers: from the environment, the system's keyring or a file of the user's own."""

from chargehand.credentials._credentials import Credentials, Origin, SecretName, open_credentials

__all__ = ["Credentials", "Origin", "SecretName", "open_credentials"]
