"""The options: tables of them by group, and the settings that they amount to."""
