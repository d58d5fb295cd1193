"""The command that explains."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hill.cli.common import Json, app, load_model
from hill.guard import shown


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.")],
    text: Annotated[str, typer.Argument(help="The text.")],
    label: Annotated[
        list[str] | None, typer.Option(help="Explain this label (id, name or path), predicted or not; may be repeated.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="integrated (gradients), or gradient (× input): faster, coarser.")
    ] = "integrated",
    steps: Annotated[int, typer.Option(help="Steps of integrated gradients; 0: as many as it takes.")] = 0,
    top: Annotated[int, typer.Option(help="How many words for and against to print.", min=1)] = 10,
    html: Annotated[Path | None, typer.Option(help="Write a page with the words in colour.")] = None,
    as_json: Json = False,
) -> None:
    """Tell which words of a text speak for and against its labels."""
    from hill.errors import DataError
    from hill.explain import explain as explain_text

    found = explain_text(load_model(model), text, label, method, steps)
    if html:
        try:
            html.write_text(found.html(), encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot write '{html}': {error.strerror}") from None
    if as_json:
        print(json.dumps(found.document(), ensure_ascii=False))
        return
    print(shown(found.text(top)))
    if found.read < len(text.rstrip()):
        print(f"the model reads {found.read:,} of the {len(text):,} characters of this text")
    if html:
        print(f"page: {html}")
