"""The table of options, and the settings parsed from their values."""
