"""What two runs of one implementation have to say about each other, without a reference."""
