"""Environments: populations and models play them, all episodes in lockstep."""

from eggroll.envs.actions import argmax, box
from eggroll.envs.observations import scales
from eggroll.envs.vectorised import Gym, gym

__all__ = ["Gym", "argmax", "box", "gym", "scales"]
