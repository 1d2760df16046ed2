"""Webhooks: a rule's event sent to an address that a member named, signed, once it is owed."""
