"""Exchanges on file: written without secrets, compared, replayed, served again."""
