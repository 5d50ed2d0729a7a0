"""What verl imports in every process, by entry point or by `VERL_USE_EXTERNAL_MODULES`: it activates the plugin.

verl imports this while `verl` itself is half imported, and drops what it raises at debug level: so it imports next to
nothing, and reports its own failure.
"""

import logging

try:
    from verl_ext import plugin

    plugin.activate()
except Exception:
    logging.getLogger("verl_ext").exception("verl-ext could not be activated: verl runs as if it were not installed")
