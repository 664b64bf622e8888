"""What is in a case, in words and in a picture."""
