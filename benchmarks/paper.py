"""Write the table of docs/paper.md anew: published, simulated, error, sensitivity.

    python benchmarks/paper.py

Takes a minute or two. The text around the table is written by hand.
"""

import argparse
from pathlib import Path

from hotloop.predict.validation import markdown, validate

PAGE = Path(__file__).parents[1] / "docs" / "paper.md"
BEGIN, END = "<!-- table: python benchmarks/paper.py -->", "<!-- end of the table -->"


def with_table(page: str, table: str) -> str:
    """`page` with another table between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def main() -> None:
    argparse.ArgumentParser(description="Write the table of docs/paper.md anew.").parse_args()
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(page, markdown(validate())), encoding="utf-8")


if __name__ == "__main__":
    main()
