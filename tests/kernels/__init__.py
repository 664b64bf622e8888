"""The main job: properties of the kernels, checked on drawn and on stored cases."""
