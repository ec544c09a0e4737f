"""What keeps the daemon polling."""

from typing import Any, Optional

from mkernel._calls import Handle


class Activity:
    """While it lives the daemon polls this session's rings instead of sleeping. Made by Group.keep_active()."""

    def __init__(self, handle: Handle) -> None:
        self._handle: Optional[Handle] = handle

    def close(self) -> None:
        """Ends it; a second call does nothing."""
        self._handle = None

    def __enter__(self) -> "Activity":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
