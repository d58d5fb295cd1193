"""Bad input for every reader: each input is accepted, or refused in one readable line."""
