"""Reports of an exchange for people and programs: log, metrics, flow list, content views."""
