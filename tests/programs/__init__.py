"""Programs that tests of the suite run in processes of their own."""
