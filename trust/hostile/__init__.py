"""`make hostile`: damaged and hostile files of every kind that Etrax reads, by the thousand; see ../README.md."""
