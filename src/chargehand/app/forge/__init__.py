"""From an issue of a forge to a merged request: accounts, claims, texts, delivery and what people write back."""
