"""Teaches `main_ppo_sync`, the earlier form of the v1 trainer in verl 0.8, what the v1 trainer is taught.

It has no group filter and no colocated reward model, which is a stub there.
"""

from __future__ import annotations

from verl_ext.plugin._site import REST, PatchSite
from verl_ext.plugin.trainer import beginning_run
from verl_ext.plugin.trainer_v1 import SHARED
from verl_ext.plugin.trainer_v1 import site as v1

site = PatchSite(name="main_ppo_sync", module="verl.trainer.main_ppo_sync", purpose=v1.purpose)


site.wraps("PPOTrainer.__init__", "self", "config", REST)(beginning_run)
for patch in SHARED:
    site.wraps(patch.target, *patch.parameters, needed=patch.needed, vital=patch.vital)(patch.teach)
