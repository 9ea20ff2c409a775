"""Reports on a compiled program: what it costs, and what the compiler made of a model."""
