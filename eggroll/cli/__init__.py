"""The command line of every command: options, help, the screen. Nothing of training."""
