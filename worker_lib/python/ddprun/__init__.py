"""For Python programs that ddprun starts; none needs it. `ddprun.progress` tells how far a worker is.

Steps of PyTorch's optimizers are told without it: ddprun brings the hooks of this package into every Python program that
it starts (`ddprun.hooks`), unless DDPRUN_PYTHON_HOOKS=0.
"""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)  # ddprun.torch is a distribution of its own, maybe in another folder
