"""Everything of the package is in pyproject.toml, but for the text of its page in an index.

That is the README without links to files, which are at no address there: their names stay. Nor has it a table of
contents, since headings have no address there.
"""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
CONTENTS = re.compile(r"<!-- contents: .*?<!-- end of contents -->\n+", re.DOTALL)
LINK_TO_FILE = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)([^)#]+)(#[^)]*)?\)")


def name_files(text: str) -> str:
    """`[a guide](docs/cluster.md#tls)` becomes `a guide (docs/cluster.md)`."""
    return LINK_TO_FILE.sub(
        lambda link: link[1] if link[1] == link[2] else f"{link[1]} ({link[2]})", CONTENTS.sub("", text)
    )


setup(long_description=name_files(README), long_description_content_type="text/markdown")
