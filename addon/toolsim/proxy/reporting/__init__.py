"""Reports on exchanges for people and programs: log, metrics, flow list, content views."""
