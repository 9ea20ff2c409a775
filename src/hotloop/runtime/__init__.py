"""The runtime: sequences and their generation, on executables of a backend."""
