"""The page of `hotloop report`: one file that opens without a network."""
