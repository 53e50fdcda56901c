"""What every view of the workbench is: one widget, shown by naming the view at the end of a cell, with a place for its errors.

A view's callbacks come on changing threads (JupyterLab runs a comm's messages beside a busy cell), so they set state, write a file or wake
a thread, and return. What goes wrong in one is shown in the view and nowhere else: a log nobody opens hides it.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import ipywidgets as widgets

from dflash.errors import DFlashError, in_words

Arguments = ParamSpec("Arguments")
Self = TypeVar("Self", bound="View")

STYLE = f"<style>{Path(__file__).with_name('view.css').read_text(encoding='utf-8')}</style>"


class View:
    """Base of the views. `widget` is what is shown; `tell` and `tell_error` write under it."""

    def __init__(self) -> None:
        self.message = widgets.HTML()
        self.widget = widgets.VBox([])
        self.widget.add_class("dflash")

    def compose(self, *children: widgets.Widget) -> None:
        """Lay out the view's parts, its messages last."""
        self.widget.children = [widgets.HTML(STYLE), *children, self.message]

    def tell(self, text: str, *, good: bool = True) -> None:
        """Say something under the view; empty text clears it."""
        self.message.value = f'<div class="dflash-{"good" if good else "note"}">{html.escape(text)}</div>' if text else ""

    def tell_error(self, error: Exception | str) -> None:
        """Show an error under the view."""
        known = isinstance(error, DFlashError | str)
        text = str(error) if known else in_words(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        self.message.value = f'<div class="dflash-error">{html.escape(text)}</div>'

    def close(self) -> None:
        """Remove the view from the page and end what works for it."""
        self.widget.close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self.widget._repr_mimebundle_(**kwargs)


def button(name: str, action: Callable[[], None], *, style: str = "", tooltip: str = "") -> widgets.Button:
    """A button as wide as its name; `style` is ipywidgets' (primary, warning, danger)."""
    made = widgets.Button(description=name, button_style=style, tooltip=tooltip, layout={"width": "auto"})
    made.on_click(lambda _button: action())
    return made


def shows_errors(
    callback: Callable[Concatenate[Self, Arguments], None],
) -> Callable[Concatenate[Self, Arguments], None]:
    """A callback of a view whose errors appear in the view."""

    def guarded(self: Self, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        try:
            callback(self, *arguments, **named)
        except Exception as error:
            self.tell_error(error)

    functools.update_wrapper(guarded, callback)
    return guarded
