"""The passes: each one pure function, a program in, a program and remarks out."""
