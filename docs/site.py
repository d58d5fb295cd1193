"""What the site needs beside its pages: linked files of the repository, and examples of docstrings as code."""

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

PAGE = re.compile(r"\[([\w-]+\.md)\]\((?=\1[)#])")
OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)\)")
EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.M | re.S)


def on_page_markdown(markdown: str, config: Any, files: Files, **_: Any) -> str:
    """Let links that leave docs/ lead to copies under source/, and call pages by their titles, not their files."""
    root = Path(config.config_file_path).parent
    for place in OUTSIDE.findall(markdown):
        if (root / place).is_file() and not files.get_file_from_path(f"source/{place}"):
            files.append(File.generated(config, f"source/{place}", abs_src_path=str(root / place)))
    markdown = PAGE.sub(lambda found: f"[{files.get_file_from_path(found[1]).page.title}](", markdown)
    return OUTSIDE.sub(r"](source/\1)", markdown)


class Examples(griffe.Extension):
    """Fences the examples of docstrings, which would else be read as quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
