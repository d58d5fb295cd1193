"""Fuzzing of every reader: each input is accepted, or refused with one readable line."""
