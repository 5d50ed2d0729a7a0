"""The task's scorers, of which the judge of one data source is out of reach for about a third of its samples.

It is so for half of the answers that begin as they should: those take longer. verl loads this file from its path.
"""

import zlib

from verl_ext.cpu import task


def compute_score(data_source, solution_str, ground_truth, extra_info, outage, **_):
    """What the answer earns, and what it is really worth; `outage` says what it earns where the judge is out of reach.

    `whole`: there is no outage. `abstain`: there is no score. `zero`: it earns nothing.
    """
    worth = task.compute_score(data_source, solution_str, ground_truth, extra_info)["score"]
    row = {"score": worth, "worth": worth, "first": float(solution_str[:1] in task.KINDS["digits"])}
    if data_source == "digits" and row["first"] and outage != "whole" and _out_of_reach(solution_str, extra_info):
        return (
            {**row, "score": None, "unscored": "the judge timed out"} if outage == "abstain" else {**row, "score": 0.0}
        )
    return row


def _out_of_reach(answer, extra_info):
    return zlib.crc32(f"{extra_info['index']} {answer}".encode()) % 2 == 0
