"""The dialects that clients and providers speak, one module or two each, and the way from one to another."""
