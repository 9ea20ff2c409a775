"""Fill the page: template, style, scripts and data in one file that asks nobody for anything.

Names of models and tensors come from files that anyone may have written. They go into the page as
JSON in which no character can end a script, and reach the document as text nodes only; the page's
own policy forbids loads of any kind.
"""

import json
from html import escape
from importlib import resources

from hotloop.report.page.data import Report

SCRIPTS = ("dom.js", "ladder.js", "timeline.js", "roofline.js", "tables.js", "program.js")
#: What could end a script element or, in old browsers, a line of it.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def html(report: Report) -> str:
    """The page of `report`."""
    parts = {
        "title": escape(f"{report.model} on {report.machine}"),
        "style": _read("page.css"),
        "data": _json(report.to_json()),
        "scripts": "\n".join(_read(name) for name in SCRIPTS),
    }
    # One pass over the template: what is filled in is not searched for places to fill.
    first, *rest = _read("page.html").split("{{")
    filled = [first]
    for part in rest:
        name, _, text = part.partition("}}")
        filled += [parts[name], text]
    return "".join(filled)


def _json(data: object) -> str:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return "".join(_UNSAFE.get(character, character) for character in text)


def _read(name: str) -> str:
    return (resources.files("hotloop.report.page") / name).read_text("utf-8")
