"""What the course answers with: one text that reads well as HTML and as plain lines."""

import html
import re
from dataclasses import dataclass

# Okabe-Ito colours: told apart by colour-blind readers, legible on light and dark pages.
COLORS = {"good": "#009E73", "wait": "#E69F00", "plain": "#56B4E9"}


@dataclass(frozen=True)
class Card:
    """A short message that a notebook shows as a box and a terminal as text.

    Args:
        text: the message; `code` and **bold** are marked as in Markdown, blank lines part paragraphs.
        code: Python source shown below the text, or "".
        tone: "good", "wait" or "plain"; the colour of the box's edge. The words never depend on it.

    Example:
        >>> Card("**Correct.** `f` does it.")
        Correct. f does it.
    """

    text: str
    code: str = ""
    tone: str = "plain"

    def __repr__(self) -> str:
        plain = re.sub(r"\*\*(.+?)\*\*", r"\1", self.text).replace("`", "")
        return f"{plain}\n\n{self.code}".rstrip() if self.code else plain

    def _repr_html_(self) -> str:
        paragraphs = "".join(f"<p style='margin:.2em 0'>{_inline(part)}</p>" for part in self.text.split("\n\n"))
        code = f"<pre style='margin:.4em 0'>{html.escape(self.code)}</pre>" if self.code else ""
        edge = COLORS[self.tone]
        return f"<div style='border-left:5px solid {edge};padding:.2em .8em'>{paragraphs}{code}</div>"


def _inline(text: str) -> str:
    """Escape text for HTML and mark up its `code`, **bold** and line breaks."""
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return text.replace("\n", "<br>")
