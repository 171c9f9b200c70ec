"""Gymnasium's environments, vectorised: populations and models play all episodes in lockstep."""

from eggroll.envs.environments import Gym, gym
from eggroll.envs.normalisation import Normalisation
from eggroll.envs.spaces import argmax, box, scales, soft

__all__ = ["Gym", "Normalisation", "argmax", "box", "gym", "scales", "soft"]
