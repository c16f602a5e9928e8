"""Reports of an exchange for people and programs: log, metrics, the list of flows, content views."""
