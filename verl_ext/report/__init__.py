"""`verl-ext report`: which reward keys a finished run's dumps hold, for which samples, in which steps.

`read` streams rows, `summary` keeps what is known of them in bounded memory, `findings` says what stands out, `run`
ties these together, and `show`, `plain`, `page` and `parquet` write it down. `command` is what the command line calls.
"""

from verl_ext.report.run import Report, summarize

__all__ = ["Report", "summarize"]
