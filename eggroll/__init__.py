"""EGGROLL: training int8 networks by evolution strategies, without gradients or floating point."""

__version__ = "0.2.0"
