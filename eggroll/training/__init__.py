"""A run: its options, loop, checkpoint, folder, statistics, trackers and pictures."""
