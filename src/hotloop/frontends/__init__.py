"""Model files, tokenizers and chat templates: what comes in from outside."""
