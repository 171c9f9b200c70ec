"""The specification: programs, arithmetic, noise, credit. It knows no engine and no file."""
