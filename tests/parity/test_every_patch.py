"""No patch is forgotten: each has a test that compares it with verl's own function, whatever a scorer returns."""

from importlib import import_module
from pathlib import Path

import pytest
from sites import COVERED

from verl_ext.plugin import SITES

for file in sorted(Path(__file__).parent.glob("test_*.py")):
    import_module(file.stem)

PATCHES = [(name, patch.target) for name in SITES for patch in import_module(f"verl_ext.plugin.{name}").site._patches]


@pytest.mark.parametrize(("site", "target"), PATCHES, ids=[" ".join(patch) for patch in PATCHES])
def test_a_patch_is_compared_with_verls_own_function(site, target):
    assert (site, target) in COVERED


def test_only_patches_are_declared_to_be_covered():
    assert set(COVERED) <= set(PATCHES)
