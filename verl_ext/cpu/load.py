"""What makes a process of verl's run on a CPU. Of verl: `VERL_USE_EXTERNAL_MODULES`, which names this module.

verl imports it in every process, at the end of `verl/__init__`; so it imports no more of verl than the platform. The
model server comes later, by `actor_rollout_ref.model.external_lib`.
"""

from verl_ext.cpu import patches
from verl_ext.cpu import platform as platform  # registers itself

patches.register()
