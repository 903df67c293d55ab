"""The dialects of clients and providers, one or two modules each, and the translation between them."""
