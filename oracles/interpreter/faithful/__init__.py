"""What Triton's interpreter gets wrong, put right: casts, histograms, the content of masked lanes."""
