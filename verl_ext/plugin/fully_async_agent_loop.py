"""Patches the fully-async rollouter's manager where clones of verl before 0.9 have it: as `fully_async` does."""

from __future__ import annotations

from verl_ext.plugin._site import PatchSite
from verl_ext.plugin._trial import unless
from verl_ext.plugin.fully_async import EARLIER_HOME, _generate_sequences_single, aligns_single_samples
from verl_ext.plugin.fully_async import site as fully_async

site = PatchSite(
    name="fully_async_agent_loop",
    module=f"{EARLIER_HOME}.agent_loop",
    purpose=fully_async.purpose,
    requires=fully_async.requires,
    guard=fully_async.guard,
)

patch = _generate_sequences_single
site.wraps(patch.target, *patch.parameters, needed=unless(aligns_single_samples))(patch.teach)
