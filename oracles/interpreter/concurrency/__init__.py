"""What the interpreter cannot show, shown: races, and schedules of the programs of a launch."""
