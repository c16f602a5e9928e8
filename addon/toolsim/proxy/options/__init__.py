"""The options: tables by group, and the settings parsed from them."""
