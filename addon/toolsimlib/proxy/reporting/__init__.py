"""What people and programs learn of an exchange: log, metrics, the list of flows, its view."""
