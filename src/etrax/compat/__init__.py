"""Other libraries' public names on top of Etrax, one folder each: a program changes its import line only."""
