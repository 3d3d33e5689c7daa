"""Sources, checks and the judge, without clock or network."""
