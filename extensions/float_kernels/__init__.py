"""Float32 kernels of the experiments: products, layers, activations, Adam; see float_kernels.h.

Native code receives the table's address (`table()`) and includes the header (`include()`); it links
nothing. `Kernels` calls the table from Python on NumPy arrays.

Importing this package does nothing; the library is loaded at the first call.
"""

from float_kernels.blas import products
from float_kernels.calls import Gradients, Kernels, Profile, TwoLayers
from float_kernels.library import best, include, isa, isas, load, table

__all__ = [
    "Gradients",
    "Kernels",
    "Profile",
    "TwoLayers",
    "best",
    "include",
    "isa",
    "isas",
    "load",
    "products",
    "table",
]
