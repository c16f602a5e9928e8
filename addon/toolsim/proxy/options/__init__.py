"""The options: their table, and the settings parsed from their values."""
