"""Stop strings: text passes until one is complete, whatever tokens its characters came in."""

from collections.abc import Sequence


class StopFinder:
    """Lets text through, but holds back what may be the beginning of one of `stops`."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is certain now; nothing more, once `stopped`, from the stop string on."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._take(min(found), keep=False)
        return self._take(len(self._held) - self._possible())

    def flush(self, last: str = "") -> str:
        """What was held back, and the `last` of the text, as far as it does not stop there."""
        return self.push(last) + self._take(len(self._held))

    def _possible(self) -> int:
        """Characters at the end that are the beginning of a stop string, at most."""
        longest = 0
        for stop in self._stops:
            for count in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:count]):
                    longest = count
                    break
        return longest

    def _take(self, count: int, keep: bool = True) -> str:
        text, self._held = self._held[:count], self._held[count:] if keep else ""
        return text
