"""What people and programs are told of an exchange: log, metrics, the list of flows, its view."""
