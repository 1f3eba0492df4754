"""What a command answers with: an exit status, and one line when there is no result."""

OK = 0  # yes
NO = 1  # the answer is no
WRONG_USE = 2
UNFINISHED = 3  # could not finish; everything is in a safe state
INTERRUPTED = 130


class Stop(Exception):
    """The end of a command without a result: one line that says why and what to do.

    Args:
        line: what was wanted, what came instead, what to do next.
        status: the exit status.

    Example:
        >>> str(Stop("port 8888 is taken; choose another with --port"))
        'port 8888 is taken; choose another with --port'
    """

    def __init__(self, line: str, status: int = UNFINISHED) -> None:
        super().__init__(" ".join(line.split()))
        self.status = status
