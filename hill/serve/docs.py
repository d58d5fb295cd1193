"""The page that documents the API, made from its description; unlike FastAPI's own it needs no network."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}h2{margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}
code,pre{font-family:ui-monospace,monospace;font-size:.9em}
pre{background:#f4f4f4;padding:.7rem;overflow-x:auto}table{border-collapse:collapse;width:100%}
td{border-bottom:1px solid #e4e4e4;padding:.25rem .8rem .25rem 0;vertical-align:top}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}pre{background:#2a2a2a}a{color:#8bf}}"""


def make_docs(description: dict[str, Any]) -> str:
    """The page of an OpenAPI description."""
    operations = [
        part
        for path, item in description["paths"].items()
        for method, operation in item.items()
        for part in _operation(method, path, operation)
    ]
    schemas = [part for name, schema in description["components"]["schemas"].items() for part in _schema(name, schema)]
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}: API</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{STYLE}</style><h1>{title}: API</h1><p>For programs: "
        f'<a href="openapi.json">openapi.json</a>.</p>{"".join(operations)}<h1>Fields</h1>{"".join(schemas)}</html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
    fields = [(each["name"], each["schema"], each.get("description", "")) for each in operation.get("parameters", [])]
    yield _table(fields)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<p>Body, as <code>{kind}</code>: {_kind(content['schema'])}</p>"
    yield _table([(code, _answer(each), each["description"]) for code, each in operation["responses"].items()])


def _answer(response: dict[str, Any]) -> dict[str, Any]:
    contents = list(response.get("content", {}).values())
    schema: dict[str, Any] = contents[0].get("schema", {}) if contents else {}
    return schema


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(schema.get("description", ""))}</p>'
    fields = schema.get("properties", {}).items()
    yield _table([(field, each, each.get("description", "")) for field, each in fields])
    for example in schema.get("examples", []):
        yield f"<pre>{escape(json.dumps(example, indent=1))}</pre>"


def _table(rows: list[tuple[str, dict[str, Any], str]]) -> str:
    cells = (f"<tr><td><code>{escape(n)}</code><td>{_kind(schema)}<td>{escape(text)}" for n, schema, text in rows)
    return f"<table>{''.join(cells)}</table>" if rows else ""


def _kind(schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(each))}</code>" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([escape(schema.get("type", "")), *bounds])
